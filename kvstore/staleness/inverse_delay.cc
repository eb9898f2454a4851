// Divides a late gradient by its delay, so that very old gradients hardly move the weights (Zhang et al. 2016).
#include <paceline/staleness.h>

namespace paceline {
namespace {

struct InverseDelay {
  template <class T>
  HOST_DEVICE T operator()(T gradient, const StaleElement<T>& at) const {
    return at.context.delay > 1 ? gradient / static_cast<T>(at.context.delay) : gradient;
  }
};

}  // namespace

std::unique_ptr<Staleness> make_inverse_delay_staleness(const Options&) { return element_rule(InverseDelay{}, false); }

}  // namespace paceline
