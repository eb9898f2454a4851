#include "send/compression_setting.h"

#include <algorithm>

#include "own_objects.h"
#include "pattern.h"

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

// Does the codec know the option in `item`, "key=value", whatever the value is?
bool takes(const std::string& codec, const std::string& item) {
  const Options only = Options::parse(item);
  try {
    compression_catalog().at(codec)(only);
  } catch (const InvalidArgument&) {
    // The codec has read the option, even if it refuses the value.
  }
  try {
    only.reject_unknown("compression");
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

// Moves the options that the codec knows from the mode's options to the codec's options.
void take_codec_options(Options* options, Spec* codec, const Extensions& own) {
  const bool is_own = own_object(own.codecs, compression_catalog(), codec->name) != nullptr;
  for (const std::string& item : split(options->text(), ',')) {
    const std::string key = item.substr(0, item.find('='));
    const Options only = Options::parse(item);
    if (!is_own) compression_catalog().at(codec->name)(only);
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

// Parses PATTERN:CODEC[:key=value...].
CompressionSetting::Rule parse_rule(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  require(parts.size() >= 2, "rules=", text, ": a rule is written PATTERN:CODEC or PATTERN:CODEC:key=value:key=value");
  CompressionSetting::Rule rule;
  rule.pattern = parts[0];
  std::string options;
  for (std::size_t i = 2; i < parts.size(); ++i) options += (i > 2 ? "," : "") + parts[i];
  rule.push = {parts[1], Options::parse(options)};
  return rule;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) { return matches(p, name); });
}

}  // namespace

void reject_unknown(const Options& options, const Spec& mode) {
  try {
    options.reject_unknown("mode '" + mode.name + "'");
  } catch (const InvalidArgument& error) {
    for (const std::string& item : split(options.text(), ',')) {
      const std::string key = item.substr(0, item.find('='));
      if (std::string_view(error.what()).find("option '" + key + "' of") == std::string_view::npos) continue;
      std::string codecs;
      for (const auto& [name, make] : compression_catalog().entries())
        if (takes(name, item)) codecs += (codecs.empty() ? "" : ", ") + name;
      if (!codecs.empty())
        throw InvalidArgument(str("option '", key, "' of mode '", mode.text(), "' is of the codecs ", codecs,
                                  "; name the one that is meant, as compression=", codecs.substr(0, codecs.find(',')),
                                  ",", item));
    }
    throw;
  }
}

CompressionSetting CompressionSetting::take(Options* options, const Extensions& own) {
  CompressionSetting setting;
  setting.own = own;
  const bool pushes = options->has("compression"), pulls = options->has("pull");
  if (!pushes && !pulls && !options->has("rules")) return setting;
  setting.push.name = pushes ? take_text(options, "compression") : "none";
  take_codec_options(options, &setting.push, own);
  const std::string named = take_text(options, "pull");
  const auto choose_pull = [&](KeyCodecs& codecs) {
    // Weights are encoded without a state, so a codec with error feedback does not suit them.
    const auto suits = [](const std::shared_ptr<const Codec>& codec) {
      return codec && codec->suits_weights() && codec->state_names().empty();
    };
    codecs.pull.name = pulls ? named : suits(make_codec({codecs.push.name, {}}, own)) ? codecs.push.name : "none";
    const auto pull = make_codec(codecs.pull, own);
    require(!pull || suits(pull), "pull=", codecs.pull.name, ": weights travel as none, bf16 or fp16");
    return make_codec(codecs.push, own);
  };
  const auto push = choose_pull(setting);
  for (const std::string& text : split(take_text(options, "rules"), '+')) {
    Rule rule = parse_rule(text);
    const auto codec = choose_pull(rule);
    require(!codec || !(codec->takes_momentum() || codec->votes() || codec->two_rounds()), "rules=", text, ": '",
            rule.push.text(),
            "' changes what the optimizer does, or takes two rounds: it can only be the codec of all ",
            "keys that no rule names");
    setting.rules.push_back(std::move(rule));
  }
  // A learning rate that suits votes does not suit raw gradients, so small keys vote too.
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
  auto codec = make(push);
  if (!codec) return;
  if (const Options more = codec->in_lockstep(); lockstep && !measured && !more.empty()) {
    for (const std::string& item : split(more.text(), ',')) {
      const std::size_t mark = item.find('=');
      push.options.set(item.substr(0, mark), item.substr(mark + 1));
    }
    if (push.options.get("error_feedback", true)) push.options.erase("error_feedback");  // the codec now has its own
    codec = make(push);
  }
  if (!codec->two_rounds()) return;
  require(lockstep, "compression '", push.text(), "' takes two rounds, which only mode dist_sync without backup does; ",
          "leave out rounds=2");
  require(!measured, "compression '", push.text(),
          "' takes two rounds, for which all workers must encode the same keys: ", "leave out bandwidth=");
}

bool CompressionSetting::active() const {
  return KeyCodecs::active() || std::any_of(rules.begin(), rules.end(), [](const Rule& rule) { return rule.active(); });
}

std::size_t CompressionSetting::rule_of(const std::string& key) const {
  std::size_t rule = 0;
  while (rule < rules.size() && !matches(rules[rule].pattern, key)) ++rule;
  return rule;
}

std::set<std::string> CompressionSetting::names() const {
  std::set<std::string> names;
  for (std::size_t rule = 0; rule <= rules.size(); ++rule)
    names.insert({codecs(rule).push.name, codecs(rule).pull.name});
  names.erase("none");
  return names;
}

bool CompressionSetting::covers(const KeyInfo& key) const {
  if (key.dtype != DType::kFloat32 || key.average || key.bytes() < std::max<std::int64_t>(min_bytes, 1)) return false;
  if (const std::size_t rule = rule_of(key.name); rule < rules.size()) return rules[rule].active();
  return !matches_any(except, key.name) && (only.empty() || matches_any(only, key.name));
}

std::int64_t CompressionSetting::row_of(const KeyInfo& key) const {
  const auto codec = make(codecs(rule_of(key.name)).push);
  const bool matrix = key.shape.ndim() > 1 && key.shape[0] > 0 && key.shape.size() > key.shape[0];
  return codec && codec->by_rows() && matrix && covers(key) ? key.shape.size() / key.shape[0] : 0;
}

std::string CompressionSetting::describe() const {
  const auto of = [](const KeyCodecs& codecs) {
    return "gradients as " + codecs.push.text() + ", weights as " + codecs.pull.text();
  };
  std::string text = "compression: " + of(*this);
  for (const std::string& pattern : only) text += (pattern == only.front() ? " of keys " : "+") + pattern;
  for (const std::string& pattern : except) text += (pattern == except.front() ? " but of keys " : "+") + pattern;
  for (const Rule& rule : rules) text += "; of keys " + rule.pattern + " " + of(rule);
  return text + str("; raw are keys below ", min_bytes, " bytes and all that is not float32");
}

std::string CompressionSetting::text() const {
  if (!active()) return "";
  const auto of = [](const KeyCodecs& codecs) { return codecs.push.text() + ",pull=" + codecs.pull.text(); };
  std::string text = "compression=" + of(*this);
  for (const Rule& rule : rules) text += ",rules=" + rule.pattern + "=" + of(rule);
  if (const auto usual = CompressionSetting().min_bytes; min_bytes != usual) text += str(",min_bytes=", min_bytes);
  for (const std::string& pattern : std::set(except.begin(), except.end())) text += ",except=" + pattern;
  for (const std::string& pattern : std::set(only.begin(), only.end())) text += ",only=" + pattern;
  return text;
}

}  // namespace paceline
