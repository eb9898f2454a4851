#include <paceline/parallel.h>

namespace paceline::nn {

NDArray to_device(const NDArray& x, Device device) { return x.to(device); }

Parts scatter(const NDArray& x, int axis, const std::vector<Device>& devices) {
  const int place = normalize_axis(axis, x.ndim(), "scatter");
  require(!devices.empty() && x.size(place) >= static_cast<std::int64_t>(devices.size()), "[scatter] axis ", axis,
          " of x, ", x.describe(), ", cannot be cut into ", devices.size(), " parts");
  Parts parts;
  const auto count = static_cast<std::int64_t>(devices.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t size = x.size(place), begin = size * i / count, end = size * (i + 1) / count;
    parts.push_back(x.narrow(place, begin, end).to(devices[static_cast<std::size_t>(i)]));
  }
  return parts;
}

}  // namespace paceline::nn
