#include "compression_setting.h"

#include <algorithm>

namespace paceline {
namespace {

std::string take_text(Options* options, const char* key) {
  const std::string text = options->get(key, "");
  options->erase(key);
  return text;
}

std::vector<std::string> split(const std::string& text, char mark) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(mark, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Moves what the codec knows from a mode's options into the codec's.
void take_codec_options(Options* options, Spec* codec) {
  const auto& make = compression_catalog().at(codec->name);
  for (const std::string& item : split(options->text(), ',')) {
    const std::string key = item.substr(0, item.find('='));
    const Options only = Options::parse(item);
    make(only);
    if (codec->name != "none") only.get("error_feedback", false);
    try {
      only.reject_unknown("compression");
    } catch (const InvalidArgument&) {
      continue;
    }
    codec->options.set(key, options->get(key, ""));
    options->erase(key);
  }
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) { return matches(p, name); });
}

}  // namespace

bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] != '*' && pattern[p] == text[t]))) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

CompressionSetting CompressionSetting::take(Options* options) {
  CompressionSetting setting;
  const bool pushes = options->has("compression"), pulls = options->has("pull");
  if (!pushes && !pulls) return setting;
  setting.push.name = pushes ? take_text(options, "compression") : "none";
  take_codec_options(options, &setting.push);
  const auto push = make_codec(setting.push);
  setting.pull.name = pulls ? take_text(options, "pull") : push && push->suits_weights() ? setting.push.name : "none";
  const auto pull = make_codec(setting.pull);
  require(!pull || pull->suits_weights(), "pull=", setting.pull.name, ": weights travel as none, bf16 or fp16");
  // A raw gradient is no vote: a learning rate that suits one does not suit the other.
  if (push && push->votes()) setting.min_bytes = 0;
  setting.min_bytes = options->get("min_bytes", setting.min_bytes);
  if (options->has("bandwidth")) {
    setting.measured = true;
    if (options->get("bandwidth", "") != "measured") {
      setting.bandwidth = options->get("bandwidth", 0.0);
      require(setting.bandwidth > 0, "bandwidth is ", setting.bandwidth, ", expected bytes per second or 'measured'");
    }
  }
  require(setting.min_bytes >= 0, "min_bytes is ", setting.min_bytes, ", expected at least 0");
  options->erase("min_bytes");
  options->erase("bandwidth");
  setting.except = split(take_text(options, "except"), '+');
  setting.only = split(take_text(options, "only"), '+');
  return setting;
}

void CompressionSetting::suit(bool lockstep) {
  auto codec = make_codec(push);
  if (!codec) return;
  if (const Options more = codec->in_lockstep(); lockstep && !measured && !more.empty()) {
    for (const std::string& item : split(more.text(), ',')) {
      const std::size_t mark = item.find('=');
      push.options.set(item.substr(0, mark), item.substr(mark + 1));
    }
    if (push.options.get("error_feedback", true)) push.options.erase("error_feedback");  // it has its own
    codec = make_codec(push);
  }
  if (!codec->two_rounds()) return;
  require(lockstep, "compression '", push.text(), "' takes two rounds, which only mode dist_sync without backup does; ",
          "leave out rounds=2");
  require(!measured, "compression '", push.text(), "' takes two rounds, for which all workers must encode the same keys: ",
          "leave out bandwidth=");
}

bool CompressionSetting::covers(const KeyInfo& key) const {
  return key.dtype == DType::kFloat32 && !key.average && key.bytes() >= std::max<std::int64_t>(min_bytes, 1) &&
         !matches_any(except, key.name) && (only.empty() || matches_any(only, key.name));
}

std::int64_t CompressionSetting::row_of(const KeyInfo& key) const {
  const auto codec = make_codec(push);
  const bool matrix = key.shape.ndim() > 1 && key.shape[0] > 0 && key.shape.size() > key.shape[0];
  return codec && codec->by_rows() && matrix && covers(key) ? key.shape.size() / key.shape[0] : 0;
}

std::string CompressionSetting::text() const {
  return active() ? "compression=" + push.text() + ",pull=" + pull.text() : std::string();
}

}  // namespace paceline
