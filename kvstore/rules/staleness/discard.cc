// Refuses gradients whose delay is above `discard_above` (the simplest form of Ringmaster ASGD, 2025). The default is
// four times the number of workers.
#include <paceline/staleness.h>

namespace paceline {
namespace {

class Discard final : public Staleness {
 public:
  explicit Discard(std::int64_t above) : above_(above) {}
  bool accepts(const StaleContext& context) const override {
    return context.delay <= (above_ > 0 ? above_ : 4 * context.workers);
  }
  void correct(const Tile<float>&, const StaleContext&) const override {}
  void correct(const Tile<double>&, const StaleContext&) const override {}

 private:
  std::int64_t above_;
};

}  // namespace

std::unique_ptr<Staleness> make_discard_staleness(const Options& options) {
  const std::int64_t above = options.get("discard_above", std::int64_t{0});
  require(above >= 0, "discard_above is ", above, ", expected at least 0 (four times the number of workers)");
  return std::make_unique<Discard>(above);
}

}  // namespace paceline
