#pragma once
// The part of a mode's text that is about compression: `compression=top_k,ratio=0.01,pull=bf16,except=*bias*+norm*`,
// or, for keys of different kinds, `compression=bf16,rules=embedding*:top_k:ratio=0.01+*norm*:none`.

#include <paceline/compression.h>

#include <string>
#include <vector>

#include "key_partition.h"

namespace paceline {

// What some keys travel as.
struct KeyCodecs {
  Spec push{"none", {}};  // codec of gradients, with its options
  Spec pull{"none", {}};  // of weights

  bool active() const { return push.name != "none" || pull.name != "none"; }
};

struct CompressionSetting : KeyCodecs {  // of the keys that no rule names
  struct Rule : KeyCodecs {
    std::string pattern;  // of key names
  };
  std::vector<Rule> rules;                // the first that a key matches is its own
  std::int64_t min_bytes = 4096;          // smaller keys travel raw; of codecs that vote: 0
  std::vector<std::string> except, only;  // patterns of keys that no rule names; `only` empty: all
  // Only keys whose encoding was measured to take less time than the bytes it saves: an exception to the same bits from
  // run to run.
  bool measured = false;
  double bandwidth = 0;  // of the link, bytes per second; 0: measured, too

  // Takes its keys out of a mode's options. Throws InvalidArgument listing what is known.
  static CompressionSetting take(Options* options);
  // Settles what depends on the mode: does its every round wait for all workers? Throws InvalidArgument on what it
  // cannot do.
  void suit(bool lockstep);

  // Is anything compressed?
  bool active() const;
  // The number of the key's rule; none: that of rules.
  std::size_t rule_of(const std::string& key) const;
  const KeyCodecs& codecs(std::size_t rule) const {
    if (rule < rules.size()) return rules[rule];
    return *this;
  }
  // May this key travel encoded at all?
  bool covers(const KeyInfo& key) const;
  // How many elements of this key are best kept together, in few slices; 0: it may be cut anywhere.
  std::int64_t row_of(const KeyInfo& key) const;
  // What travels as what, for people to read.
  std::string describe() const;
  // Empty where nothing is compressed; else what every worker must agree on.
  std::string text() const;
};

// Throws InvalidArgument on options that nobody has asked for, as Options::reject_unknown(). Of one that codecs take it
// names them.
void reject_unknown(const Options& options, const Spec& mode);

}  // namespace paceline
