#pragma once
// Finds objects by name, among those of the user (extensions.h) and those of a catalog of the library.

#include <paceline/catalog.h>
#include <paceline/error.h>
#include <paceline/extensions.h>

#include <memory>
#include <string>
#include <utility>

namespace paceline {

template <class Object>
using OwnObjects = std::map<std::string, std::shared_ptr<const Object>>;

template <class Object>
std::string names_of(const OwnObjects<Object>& own) {
  std::string names;
  for (const auto& [name, object] : own) names += " " + name;
  return names;
}

// Null if `own` is empty, which it nearly always is. Every partition keeps such a pointer instead of three empty maps.
inline std::shared_ptr<const Extensions> shared(Extensions own) {
  if (own.modes.empty() && own.policies.empty() && own.codecs.empty()) return nullptr;
  return std::make_shared<const Extensions>(std::move(own));
}

// The user's own object of this name, or null if the name is in the catalog. Throws InvalidArgument, listing the known
// names, if the name is in neither.
template <class Object, class Factory>
std::shared_ptr<const Object> own_object(const OwnObjects<Object>& own, const Catalog<Factory>& catalog,
                                         const std::string& name) {
  if (const auto found = own.find(name); found != own.end()) return found->second;
  try {
    catalog.at(name);
  } catch (const InvalidArgument& error) {
    if (own.empty()) throw;
    throw InvalidArgument(str(error.what(), "; of your own:", names_of(own)));
  }
  return nullptr;
}

// The user's own object of this name, or an object that the catalog makes from `options`. Throws as own_object() does.
template <class Object, class Factory>
std::shared_ptr<const Object> make_object(const OwnObjects<Object>& own, const Catalog<Factory>& catalog,
                                          const std::string& name, const Options& options) {
  if (auto object = own_object(own, catalog, name)) return object;
  return catalog.at(name)(options);
}

}  // namespace paceline
