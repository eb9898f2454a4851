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
  Spec pull{"none", {}};  // of weights

  bool active() const { return push.name != "none" || pull.name != "none"; }
};

struct CompressionSetting : KeyCodecs {  // of the keys that no rule names
  struct Rule : KeyCodecs {
    std::string pattern;  // of key names
  };
  std::vector<Rule> rules;                // the first rule that matches a key counts
  std::int64_t min_bytes = 4096;          // smaller keys travel raw; 0 with codecs that vote
  std::vector<std::string> except, only;  // patterns of keys that no rule names; `only` empty: all
  // Encodes only keys whose pushes were measured to become faster. Results may then differ from run to run.
  bool measured = false;
  double bandwidth = 0;  // of the link, bytes per second; 0: measured, too
  Extensions own;        // what the text may name besides the library's codecs

  // Takes its keys out of a mode's options. Throws InvalidArgument listing what is known.
  static CompressionSetting take(Options* options, const Extensions& own = {});
  // Settles what depends on the mode: does its every round wait for all workers? Throws InvalidArgument on what it
  // cannot do.
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
  // The names of all codecs that keys travel as.
  std::set<std::string> names() const;
  // May this key travel encoded at all?
  bool covers(const KeyInfo& key) const;
  // The number of elements of a row, if slices of this key should consist of whole rows; 0: it may be cut anywhere.
  std::int64_t row_of(const KeyInfo& key) const;
  // The codecs of all keys, as a text for logs.
  std::string describe() const;
  // The text that every worker must agree on; empty if nothing is compressed.
  std::string text() const;
};

// Throws InvalidArgument for options that nothing has read, as Options::reject_unknown() does. If codecs have such an
// option, the error names these codecs.
void reject_unknown(const Options& options, const Spec& mode);

}  // namespace paceline
