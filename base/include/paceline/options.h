#pragma once
// Options in text form: `key=value,key=value`, and a spec `NAME[:key=value,...]`, the grammar of modes, optimizers,
// staleness policies and compressions. A key that nobody asked for is an error that lists the known keys.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace paceline {

class Options {
 public:
  Options() = default;
  Options(std::initializer_list<std::pair<const std::string, std::string>> values) : values_(values) {}

  // Parses `key=value,key=value`; a key alone means `key=1`. Throws InvalidArgument on a repeated or empty key.
  static Options parse(std::string_view text);

  // The value of `key` as T (bool, std::int64_t, int, double, float, std::string), or `otherwise` where it is absent.
  // Remembers that `key` is known. Throws InvalidArgument if the whole text is not a T.
  template <class T>
  T get(const std::string& key, const T& otherwise) const;
  std::string get(const std::string& key, const char* otherwise) const { return get<std::string>(key, otherwise); }

  bool has(const std::string& key) const { return values_.count(key) > 0; }
  void set(const std::string& key, const std::string& value) { values_[key] = value; }
  void erase(const std::string& key) { values_.erase(key); }
  bool empty() const { return values_.empty(); }

  // Throws InvalidArgument naming `owner`, the first key that was never asked for, and the known keys.
  void reject_unknown(std::string_view owner) const;

  // `key=value,...` in key order; parse(text()) gives the same options.
  std::string text() const;

 private:
  std::map<std::string, std::string> values_;
  mutable std::set<std::string> known_;
};

// `dist_async:bound=4` -> name "dist_async", options {bound: 4}.
struct Spec {
  std::string name;
  Options options;

  static Spec parse(std::string_view text);
  std::string text() const;
};

}  // namespace paceline
