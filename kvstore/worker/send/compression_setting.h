#pragma once
// The compression options of a mode's text: `compression=top_k,ratio=0.01,pull=bf16,except=*bias*+norm*`, or with rules
// for groups of keys `compression=bf16,rules=embedding*:top_k:ratio=0.01+*norm*:none`.

#include <paceline/compression.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "key_partition.h"

namespace paceline {

// The codecs of a group of keys.
struct KeyCodecs {
  Spec push{"none", {}};  // codec of gradients, with its options
  Spec pull{"none", {}};  // codec of weights

  bool active() const { return push.name != "none" || pull.name != "none"; }
};

struct CompressionSetting : KeyCodecs {  // the codecs are those of keys that no rule matches
  struct Rule : KeyCodecs {
    std::string pattern;  // pattern of key names
  };
  std::vector<Rule> rules;                // the first rule that matches a key counts
  std::int64_t min_bytes = 4096;          // smaller keys travel raw; 0 with codecs that vote
  std::vector<std::string> except, only;  // patterns for keys that no rule matches; `only` empty: all keys
  // True: encodes only keys that arrive sooner that way, by the measured speed of the codec and by `bandwidth`. Results
  // may then differ from run to run.
  bool measured = false;
  double bandwidth = 0;  // of the link, in bytes per second; 0: measured as well
  Extensions own;        // the user's own codecs, which the text may name

  // Takes the options of compression out of a mode's options. Throws InvalidArgument listing the known codecs and
  // options.
  static CompressionSetting take(Options* options, const Extensions& own = {});
  // Adapts the setting to the mode. `lockstep`: every round of the mode waits for all workers. Throws InvalidArgument
  // if the mode cannot use the codec.
  void suit(bool lockstep);

  // Is anything compressed?
  bool active() const;
  // The number of the key's rule; rules.size() if no rule matches.
  std::size_t rule_of(const std::string& key) const;
  const KeyCodecs& codecs(std::size_t rule) const {
    if (rule < rules.size()) return rules[rule];
    return *this;
  }
  // Null for `none`.
  std::shared_ptr<const Codec> make(const Spec& codec) const { return make_codec(codec, own); }
  // The names of all codecs that keys may travel with.
  std::set<std::string> names() const;
  // May this key travel encoded at all?
  bool covers(const KeyInfo& key) const;
  // The number of elements of a row, if slices of this key should consist of whole rows; 0: it may be cut anywhere.
  std::int64_t row_of(const KeyInfo& key) const;
  // The codecs of all keys, as a text for logs.
  std::string describe() const;
  // The text that every worker must agree on; empty if nothing is compressed. `bandwidth` may differ between workers,
  // except where it decides whether a codec takes two rounds.
  std::string text() const;
};

// Throws InvalidArgument for options that nothing has read, as Options::reject_unknown() does. If codecs have such an
// option, the error names these codecs.
void reject_unknown(const Options& options, const Spec& mode);

}  // namespace paceline
