#pragma once
// How im2rec and to_rec convert: with progress, a list of what is bad, and an end by signals that leaves things tidy.

#include <paceline/convert.h>
#include <paceline/error.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "interrupt.h"
#include "progress.h"

namespace paceline::tools {

// Prints what was written. `one` is what an entry is: "image", "row". A signal before it ends the program at once, as
// there is nothing to tidy up yet.
inline int convert_and_tell(const std::string& prefix, const RecordSource& source, ConvertOptions options,
                            const char* one) {
  notice_signals();
  std::signal(SIGPIPE, SIG_IGN);  // nobody reads the progress
  constexpr int kMostPrinted = 20;
  int printed = 0;
  std::unique_ptr<Progress> progress;
  std::int64_t told = 0;
  const std::string unit = std::string(one) + "s";
  options.progress = [&](std::int64_t done, std::int64_t entries) {
    if (!progress) progress = std::make_unique<Progress>(static_cast<double>(entries), unit.c_str());
    progress->add(static_cast<double>(done - told));
    told = done;
  };
  options.check = [] {
    if (interrupted) throw IoError("interrupted");
  };
  options.on_bad = [&](const std::string& place, const std::string& problem) {
    if (printed < kMostPrinted) std::fprintf(stderr, "bad %s: %s: %s\n", one, place.c_str(), problem.c_str());
    if (printed == kMostPrinted)
      std::fprintf(stderr, "further bad %ss are listed in %s.bad.txt only\n", one, prefix.c_str());
    ++printed;
  };
  const ConvertReport report = convert(prefix, source, options);
  progress.reset();
  if (report.resumed > 0)
    std::printf("%lld shards were finished by an earlier run\n", static_cast<long long>(report.resumed));
  for (std::size_t i = 0; i < report.sets.size(); ++i) {
    const ConvertedSet& set = report.sets[i];
    std::printf("%s: %lld records in %d shard%s", set.manifest.c_str(), static_cast<long long>(set.records), set.shards,
                set.shards == 1 ? "" : "s");
    if (report.bad > 0 && i + 1 == report.sets.size())
      std::printf(", %lld bad %ss left out", static_cast<long long>(report.bad), one);
    std::printf("\n");
  }
  return 0;
}

}  // namespace paceline::tools
