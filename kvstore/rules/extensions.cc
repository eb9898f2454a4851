#include <paceline/compression.h>
#include <paceline/extensions.h>
#include <paceline/mode.h>
#include <paceline/staleness.h>

#include <algorithm>

#include "mode_names.h"
#include "own_objects.h"

namespace paceline {
namespace {

template <class Object, class Factory>
void check_objects(const char* kind, const OwnObjects<Object>& own, const Catalog<Factory>& catalog) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (const auto& [name, object] : own) {
    require(!name.empty() && std::ranges::all_of(name, allowed), "a ", kind, " of your own cannot be named '", name,
            "': a name holds letters, digits and '_'");
    require(std::ranges::find(catalog.entries(), name, &Catalog<Factory>::Entry::first) == catalog.entries().end(),
            "the library has a ", kind, " '", name, "'; give your own another name");
    require(object != nullptr, "the ", kind, " '", name, "' of your own is a null pointer");
  }
}

}  // namespace

void Extensions::check() const {
  check_objects("mode", modes, mode_catalog());
  check_objects("staleness policy", policies, staleness_catalog());
  check_objects("codec", codecs, compression_catalog());
  for (const auto& [name, mode] : modes) {
    require(mode_name(name) == name && std::ranges::find(kModesWithoutServers, name) == kModesWithoutServers.end(),
            "the library has a mode '", name, "'; give your own another name");
    const ModeTraits traits = mode->traits();
    require(!traits.holds_tables || traits.applies != Applies::kWithBackups, "the mode '", name,
            "' of your own applies rounds with backups, which tables do not have; its traits() must say holds_tables = "
            "false");
    require(!traits.lockstep || traits.applies == Applies::kInRounds, "the mode '", name,
            "' of your own is in lockstep without rounds; its traits() must say applies = Applies::kInRounds");
  }
}

}  // namespace paceline
