#pragma once
// The codecs that workers name, each made once.

#include <paceline/compression.h>
#include <paceline/error.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace paceline {

class CodecCache {
 public:
  // `own`: the user's codecs, which workers may name besides those of the library.
  explicit CodecCache(Extensions own) : own_(std::move(own)) {}

  // Throws Corrupt if `text` names no codec, or if too many different codecs were named.
  const std::shared_ptr<const Codec>& at(const std::string& text) {
    const auto found = codecs_.find(text);
    if (found != codecs_.end()) return found->second;
    if (codecs_.size() >= kMost) throw Corrupt(str("more than ", kMost, " codecs were named"));
    std::shared_ptr<const Codec> codec;
    try {
      codec = make_codec(Spec::parse(text), own_);
    } catch (const InvalidArgument& error) {
      throw Corrupt(str("a codec is named '", text, "': ", error.what()));
    }
    if (!codec) throw Corrupt(str("'", text, "' does not encode"));
    return codecs_.emplace(text, std::move(codec)).first->second;
  }

 private:
  static constexpr std::size_t kMost = 64;
  const Extensions own_;
  std::map<std::string, std::shared_ptr<const Codec>> codecs_;
};

}  // namespace paceline
