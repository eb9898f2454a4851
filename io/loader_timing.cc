#include <paceline/loader_timing.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>
#include <utility>

namespace paceline {
namespace {

// What may be waited for without being called a limit.
constexpr double kLittle = 0.05;

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

LoaderBound bound_of(const LoaderTiming& timing) {
  if (timing.waited <= kLittle * timing.seconds) return LoaderBound::kConsumer;
  const std::array<std::pair<double, LoaderBound>, 4> stages{{{timing.decode + timing.augment, LoaderBound::kDecoder},
                                                              {timing.read, LoaderBound::kDisk},
                                                              {timing.fetch, LoaderBound::kNetwork},
                                                              {timing.copy, LoaderBound::kCopy}}};
  return std::max_element(stages.begin(), stages.end(), [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

const char* name_of(LoaderBound bound) {
  switch (bound) {
    case LoaderBound::kConsumer: return "consumer";
    case LoaderBound::kNetwork: return "network";
    case LoaderBound::kDisk: return "disk";
    case LoaderBound::kDecoder: return "decoder";
    case LoaderBound::kCopy: return "copy";
  }
  return "";
}

std::ostream& operator<<(std::ostream& out, const LoaderTiming& timing) {
  const double work = timing.work();
  char text[160];
  std::snprintf(text, sizeof text, "waited %.2f s of %.2f s (%.0f %%) for data; ", timing.waited, timing.seconds,
                percent(timing.waited, timing.seconds));
  out << text;
  if (timing.threads > 0) {
    std::snprintf(text, sizeof text, "%d thread%s, busy %.0f %%", timing.threads, timing.threads == 1 ? "" : "s",
                  std::min(100.0, percent(work, timing.seconds * timing.threads)));
    out << text;
  } else {
    out << "no threads ahead";
  }
  const char* before = ": ";
  for (const auto& [name, seconds] : std::array<std::pair<const char*, double>, 6>{{{"fetch", timing.fetch},
                                                                                    {"read", timing.read},
                                                                                    {"decode", timing.decode},
                                                                                    {"augment", timing.augment},
                                                                                    {"copy", timing.copy},
                                                                                    {"other", timing.other}}}) {
    if (seconds <= 0) continue;
    std::snprintf(text, sizeof text, "%s%s %.0f %%", before, name, percent(seconds, work));
    out << text;
    before = ", ";
  }
  return out << "; bound by the " << name_of(bound_of(timing));
}

}  // namespace paceline
