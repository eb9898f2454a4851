#pragma once
// Options as text: the grammar of modes, optimizers, staleness policies and codecs.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace paceline {

// Values by key, `key=value,key=value`. reject_unknown() throws for a key that get() was never asked for. Not
// thread-safe.
class Options {
 public:
  Options() = default;
  // From keys and values; of a repeated key the first counts.
  Options(std::initializer_list<std::pair<const std::string, std::string>> values) : values_(values) {}

  // Parses `key=value,key=value`; a key alone means `key=1`. Throws InvalidArgument on a repeated or empty key.
  static Options parse(std::string_view text);

  // The value of `key` as T (bool, std::int64_t, int, double, float, std::string), or `otherwise` where it is absent.
  // Remembers that `key` is known. Throws InvalidArgument unless the whole text is a T.
  template <class T>
  T get(const std::string& key, const T& otherwise) const;
  std::string get(const std::string& key, const char* otherwise) const { return get<std::string>(key, otherwise); }

  // Is there a value? Does not make the key known.
  bool has(const std::string& key) const { return values_.count(key) > 0; }
  // Adds a value, or replaces the one of this key.
  void set(const std::string& key, const std::string& value) { values_[key] = value; }
  // Removes the value of `key` if there is one.
  void erase(const std::string& key) { values_.erase(key); }
  // Are there no values?
  bool empty() const { return values_.empty(); }

  // Throws InvalidArgument if a key was never asked for. The message names `owner`, the first such key and the known
  // ones.
  void reject_unknown(std::string_view owner) const;

  // `key=value,...` in key order. parse(text()) gives the same options if parse() could give every key and value.
  std::string text() const;

 private:
  std::map<std::string, std::string> values_;
  mutable std::set<std::string> known_;
};

// A choice with its options, `NAME[:key=value,...]`: `dist_async:bound=4` is the name "dist_async" with {bound: 4}.
struct Spec {
  std::string name;  // before the colon
  Options options;   // behind it

  static Spec parse(std::string_view text);  // throws InvalidArgument for no name, and as Options::parse()
  std::string text() const;                  // parse(text()) gives the same spec
};

}  // namespace paceline
