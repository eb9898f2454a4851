#pragma once
// A table of what a user can select by name.

#include <paceline/error.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

// A table from name to factory. It is built from an explicit list, which CMake generates, never by static registration:
// so it is the same in a static and a shared library. Constant after construction, so thread-safe.
template <class Factory>
class Catalog {
 public:
  using Entry = std::pair<std::string, Factory>;  // a name and its factory

  // `kind` is the word for messages, such as "optimizer". The names must differ.
  Catalog(std::string kind, std::initializer_list<Entry> entries) : kind_(std::move(kind)), entries_(entries) {}

  // The factory of that name. Throws InvalidArgument "unknown <kind> '<name>'; known: ..." where there is none.
  const Factory& at(const std::string& name) const {
    for (const Entry& entry : entries_)
      if (entry.first == name) return entry.second;
    std::string known;
    for (const Entry& entry : entries_) known += " " + entry.first;
    throw InvalidArgument("unknown " + kind_ + " '" + name + "'; known:" + known);
  }

  // All entries, in the order of the list.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::string kind_;
  std::vector<Entry> entries_;
};

}  // namespace paceline
