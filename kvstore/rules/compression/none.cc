// Values travel as they are.
#include <paceline/compression.h>

namespace paceline {

std::unique_ptr<Codec> make_none_compression(const Options&) { return nullptr; }

}  // namespace paceline
