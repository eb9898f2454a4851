// Applies every gradient as it is: plain asynchronous SGD.
#include <paceline/staleness.h>

namespace paceline {
namespace {

struct None {
  template <class T>
  HOST_DEVICE T operator()(T gradient, const StaleElement<T>&) const { return gradient; }
};

}  // namespace

std::unique_ptr<Staleness> make_none_staleness(const Options&) { return element_rule(None{}, false); }

}  // namespace paceline
