// Array suites run on every pair of engine and device; a device that is not there is skipped with its reason.
#pragma once

#include <paceline/detail/device_runtime.h>
#include <paceline/ndarray.h>

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

namespace paceline::test {

inline std::unique_ptr<Engine> make_engine(const std::string& name) {
  return name == "serial" ? make_serial_engine() : make_threaded_engine();
}

class ArraySuite : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    try {
      detail::runtime(device());
    } catch (const NotAvailable& reason) {
      GTEST_SKIP() << reason.what();
    }
    engine_ = make_engine(std::get<0>(GetParam()));
  }

  Device device() const { return Device(std::get<1>(GetParam())); }
  Engine& engine() { return *engine_; }
  bool on_host() const { return device().kind != DeviceKind::kCuda; }

  template <class T>
  NDArray array(const std::vector<T>& values, const Shape& shape) {
    return NDArray::from(values, shape, device(), engine());
  }
  // 0, 1, 2, ...
  NDArray count(const Shape& shape, DType dtype = DType::kFloat32) {
    std::vector<float> values(static_cast<std::size_t>(shape.size()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    return array(values, shape).cast(dtype);
  }

 private:
  std::unique_ptr<Engine> engine_;
};

inline std::string suite_name(const ::testing::TestParamInfo<std::tuple<const char*, const char*>>& info) {
  std::string name = std::get<0>(info.param);
  for (const char c : std::string(std::get<1>(info.param)))
    if (c != ':') name += c;
  return name;
}

#define INSTANTIATE_ARRAY_SUITE(Suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(Everywhere, Suite,                                                        \
                           ::testing::Combine(::testing::Values("serial", "threaded"),               \
                                              ::testing::Values("cpu", "cpu:1", "sim:0", "cuda:0")), \
                           ::paceline::test::suite_name)

}  // namespace paceline::test
