// The index arithmetic that CUDA kernels share with the host, against the plain statement of what it finds.
#include "convolution/geometry.h"
#include "index/pairs.h"
#include "pool/window.h"
#include "shared/rows.h"
#include "sort/order.h"
#include "upsample/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace paceline {
namespace {

TEST(Places, LinesOfAnAxisCoverTheArrayOnce) {
  const Shape shape{3, 4, 5};
  for (int axis = 0; axis < 3; ++axis) {
    const AxisView view = around_axis(shape, axis);
    std::set<std::int64_t> seen;
    for (std::int64_t line = 0; line < view.lines(); ++line)
      for (std::int64_t i = 0; i < view.size; ++i) {
        const std::int64_t at = view.first(line) + i * view.inner;
        EXPECT_EQ(at / row_major(shape)[axis] % shape[axis], i);
        EXPECT_TRUE(seen.insert(at).second);
      }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), shape.size());
  }
}

TEST(Places, PairsOfGatherPointIntoTheLineOfTheirOwn) {
  const Shape positions{2, 4, 3}, array{2, 7, 5};
  const IndexPairs pairs(positions, array, 1);
  std::set<std::int64_t> seen;
  for (std::int64_t line = 0; line < pairs.lines(); ++line) {
    std::int64_t place, element;
    pairs.begin(line, place, element);
    for (std::int64_t i = 0; i < positions[1]; ++i, place += pairs.step()) {
      EXPECT_EQ(place / 3 % 4, i);
      EXPECT_EQ(element, place / 12 * 35 + place % 3) << "position 0 of the same line";
      EXPECT_TRUE(seen.insert(place).second);
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(seen.size()), positions.size());
  EXPECT_EQ(pairs.strides[1], 5);
}

TEST(Places, WindowsWithAPlaceAreThoseThatHoldIt) {
  for (const bool ceil : {false, true})
    for (std::int64_t size = 1; size <= 12; ++size)
      for (std::int64_t kernel = 1; kernel <= 4; ++kernel)
        for (std::int64_t stride = 1; stride <= 5; ++stride)
          for (std::int64_t padding = 0; padding < kernel; ++padding) {
            if (size + 2 * padding < kernel) continue;
            const Windows windows =
                make_windows("test", {1, 1, size},
                             {.kernel = {kernel}, .stride = {stride}, .padding = {padding}, .ceil_mode = ceil});
            const WindowAxis& axis = windows.axes[2];
            for (std::int64_t place = 0; place < size; ++place)
              for (std::int64_t i = 0; i < axis.count; ++i)
                ASSERT_EQ(axis.begin(i) <= place && place < axis.end(i),
                          axis.first_with(place) <= i && i < axis.end_with(place))
                    << size << ' ' << kernel << ' ' << stride << ' ' << padding << ": place " << place << " window "
                    << i;
          }
}

TEST(Places, EqualPartsWithAPlaceAreThoseThatHoldIt) {
  for (std::int64_t size = 1; size <= 12; ++size)
    for (std::int64_t count = 1; count <= 15; ++count) {
      const WindowAxis axis{.size = size, .count = count, .equal_parts = true};
      for (std::int64_t place = 0; place < size; ++place)
        for (std::int64_t i = 0; i < count; ++i)
          ASSERT_EQ(axis.begin(i) <= place && place < axis.end(i),
                    axis.first_with(place) <= i && i < axis.end_with(place))
              << size << ' ' << count << ": place " << place << " window " << i;
    }
}

TEST(Places, ConvolutionsFindTheWayThereAndBack) {
  for (std::int64_t size = 1; size <= 9; ++size)
    for (std::int64_t stride = 1; stride <= 3; ++stride)
      for (std::int64_t dilation = 1; dilation <= 2; ++dilation)
        for (std::int64_t padding = 0; padding <= 2; ++padding) {
          constexpr std::int64_t kKernel = 3;
          if (size + 2 * padding < dilation * (kKernel - 1) + 1) continue;
          const ConvolutionGeometry g =
              make_geometry("test", {1, 1, size}, {1, 1, kKernel},
                            {.stride = {stride}, .padding = {padding}, .dilation = {dilation}});
          std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> there, back;
          for (std::int64_t under = 0; under < kKernel; ++under) {
            for (std::int64_t at = 0; at < g.result[2]; ++at) {
              const std::int64_t place = at * stride + under * dilation - padding;
              ASSERT_EQ(g.input_place(2, at, under) >= 0, place >= 0 && place < size);
              if (g.input_place(2, at, under) >= 0) there.insert({place, under, at});
            }
            for (std::int64_t place = 0; place < size; ++place)
              if (const std::int64_t at = g.output_place(2, place, under); at >= 0) back.insert({place, under, at});
          }
          ASSERT_EQ(there, back) << size << ' ' << stride << ' ' << dilation << ' ' << padding;
        }
}

TEST(Places, ResamplingSharesOutEveryPlaceOnce) {
  for (const bool linear : {false, true})
    for (std::int64_t from = 1; from <= 9; ++from)
      for (std::int64_t to = 1; to <= 20; ++to) {
        const UpsampleAxis axis{from, to, linear};
        std::vector<double> shares(static_cast<std::size_t>(to));
        for (std::int64_t place = 0; place < from; ++place)
          for (std::int64_t i = axis.first_from(place); i < axis.end_from(place); ++i)
            shares[static_cast<std::size_t>(i)] += axis.weight<double>(i, place);
        for (std::int64_t i = 0; i < to; ++i)
          ASSERT_NEAR(shares[static_cast<std::size_t>(i)], 1, 1e-12) << from << " to " << to << ", place " << i;
      }
}

TEST(Places, MergingByPlacesSorts) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (std::int64_t size = 1; size <= 70; ++size)
    for (const bool descending : {false, true}) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < size; ++i)
        values.push_back(random() % 11 == 0 ? std::nanf("") : static_cast<float>(random() % 7));
      const auto comes_first = [&](std::int64_t i, std::int64_t j) {
        return is_first(descending, values[static_cast<std::size_t>(i)], i, values[static_cast<std::size_t>(j)], j);
      };
      std::vector<std::int64_t> expected(static_cast<std::size_t>(size));
      std::iota(expected.begin(), expected.end(), 0);
      std::vector<std::int64_t> places = expected;
      std::sort(expected.begin(), expected.end(), comes_first);
      for (std::int64_t width = 1; width < size; width *= 2) {
        std::vector<std::int64_t> merged(places.size(), -1);
        for (std::int64_t at = 0; at < size; ++at) {
          const std::int64_t to = merged_place(at, width, size, [&](std::int64_t i, std::int64_t j) {
            return comes_first(places[static_cast<std::size_t>(i)], places[static_cast<std::size_t>(j)]);
          });
          ASSERT_EQ(merged.at(static_cast<std::size_t>(to)), -1);
          merged[static_cast<std::size_t>(to)] = places[static_cast<std::size_t>(at)];
        }
        places = merged;
      }
      ASSERT_EQ(places, expected) << size;
    }
}

}  // namespace
}  // namespace paceline
