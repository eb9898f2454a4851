// Applies every gradient as it is: plain asynchronous SGD.
#include <paceline/staleness.h>

namespace paceline {
namespace {

class None final : public Staleness {
 public:
  bool corrects(const StaleContext&) const override { return false; }
  void correct(const Tile<float>&, const StaleContext&) const override {}
  void correct(const Tile<double>&, const StaleContext&) const override {}
};

}  // namespace

std::unique_ptr<Staleness> make_none_staleness(const Options&) { return std::make_unique<None>(); }

}  // namespace paceline
