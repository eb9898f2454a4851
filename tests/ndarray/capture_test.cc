// What a plan makes of a captured function; operators and training are captured in tests/nn.
#include "../conformance/ndarray_suite.h"

#include <paceline/capture.h>
#include <paceline/detail/array_builder.h>
#include <paceline/error.h>
#include <paceline/kernel.h>

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

namespace paceline::test {
namespace {

using Arrays = std::vector<NDArray>;

class CaptureTest : public ArraySuite {
 protected:
  NDArray like(const NDArray& x) { return NDArray(x.shape(), x.dtype(), device(), engine()); }
  NDArray sum(const NDArray& x) {
    const NDArray out({1}, x.dtype(), device(), engine());
    kernels::reduce_sum(x, out);
    return out;
  }
};
INSTANTIATE_ARRAY_SUITE(CaptureTest);

TEST_P(CaptureTest, ThePlanHasOnlyWhatIsNeeded) {
  constexpr std::int64_t kSize = 1000, kBytes = 4 * kSize;
  const NDArray fixed = NDArray::zeros({kSize}, DType::kFloat32, device(), engine());
  int ran = 0;
  const Captured::Function function = [&](const Arrays& in) {
    ++ran;
    const NDArray& x = in[0];
    const NDArray three = NDArray::full(x.shape(), 3, x.dtype(), device(), engine());  // a constant
    const NDArray a = like(x), unused = like(x), b = like(x), c = like(x), d = like(x);
    kernels::add(x, x, a);  // left out: written again before it is read
    kernels::add(x, three, a);
    kernels::add(a, x, unused);  // left out
    kernels::add(a, a, b);
    const NDArray total = sum(b);
    const NDArray copy = b.clone();  // left out, as is the next copy: b is computed in the place of `fixed`
    kernels::scale(2, copy);
    fixed.narrow(0, 0, x.size()).copy_from(copy);
    kernels::add(x, x, c);
    kernels::add(c, three, d);  // in the place of c
    return Arrays{total, sum(d)};
  };
  Captured captured(function);
  EXPECT_EQ(captured.plan().launches, 0) << "before there is a plan";
  EXPECT_EQ(captured.plan().constants, 0) << "before there is a plan";
  for (int call = 1; call <= 5; ++call) {
    const Arrays results = captured({NDArray::full({kSize}, call, DType::kFloat32, device(), engine())});
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].item<float>(), kSize * 2 * (call + 3));
    EXPECT_EQ(results[1].item<float>(), kSize * (2 * call + 3));
    EXPECT_EQ(fixed.to_vector<float>(), std::vector<float>(kSize, static_cast<float>(4 * (call + 3))));
  }
  EXPECT_EQ(ran, 2) << "once eagerly, once noted";

  const CapturePlan& plan = captured.plan();
  EXPECT_EQ(plan.launches, 12);
  EXPECT_EQ(plan.unused, 2);
  EXPECT_EQ(plan.constants, 1);
  EXPECT_EQ(plan.copies, 2);
  EXPECT_EQ(plan.kernels, 12 - 2 - 1 - 2);
  EXPECT_EQ(plan.in_place, 1);
  EXPECT_EQ(plan.chains, 2) << "up to each sum";
  EXPECT_EQ(plan.chained, 2 + 3);
  EXPECT_EQ(plan.tasks, 2) << "one up to the last write of what is taken from elsewhere";
  // And what the sums need beside their arrays.
  EXPECT_GE(plan.eager_bytes, 7 * kBytes);
  EXPECT_LT(plan.eager_bytes, 8 * kBytes);
  EXPECT_LT(plan.planned_bytes, 3 * kBytes) << "the constant, and one place for the others";
}

TEST_P(CaptureTest, EachShapeAndTypeHasAPlan) {
  int ran = 0;
  Captured captured([&](const Arrays& in) {
    ++ran;
    const NDArray twice = like(in[0]);
    kernels::add(in[0], in[0], twice);
    return Arrays{twice};
  });
  for (int call = 1; call <= 4; ++call)
    for (const DType dtype : {DType::kFloat32, DType::kInt32})
      for (const std::int64_t size : {3, 7})
        EXPECT_EQ(captured({NDArray::full({size}, call, dtype, device(), engine())})[0].to_vector<int>(),
                  std::vector<int>(static_cast<std::size_t>(size), 2 * call));
  EXPECT_EQ(ran, 2 * 4);
}

// Sizes that are no multiple of the alignment: what lies side by side in a plan must not touch.
TEST_P(CaptureTest, PlacesOfOddSizesAreApart) {
  for (const std::int64_t size : {1, 63, 64, 65, 129}) {
    Captured captured([&](const Arrays& in) {
      const NDArray one = NDArray::full(in[0].shape(), 1, in[0].dtype(), device(), engine());
      const NDArray two = NDArray::full(in[0].shape(), 2, in[0].dtype(), device(), engine());
      const NDArray a = like(in[0]), b = like(in[0]);
      kernels::add(in[0], one, a);
      kernels::add(in[0], two, b);
      const NDArray tens = like(in[0]);
      tens.copy_from(b);
      kernels::axpy(10, a, tens);
      return Arrays{tens, sum(a), sum(b)};
    });
    for (int call = 0; call < 4; ++call) {
      const Arrays results = captured({NDArray::full({size}, call, DType::kUint8, device(), engine())});
      EXPECT_EQ(results[0].to_vector<int>(), std::vector<int>(static_cast<std::size_t>(size), 11 * call + 12));
      EXPECT_EQ(results[1].item<int>(), (size * (call + 1)) % 256);
      EXPECT_EQ(results[2].item<int>(), (size * (call + 2)) % 256);
    }
  }
}

// The reads and writes of parts keep their order.
TEST_P(CaptureTest, PartsOfWhatIsTakenFromElsewhereAreWritten) {
  const NDArray fixed = NDArray::zeros({4}, DType::kFloat32, device(), engine());
  Captured captured([&](const Arrays& in) {
    fixed.narrow(0, 0, 2).copy_from(in[0].narrow(0, 2, 4));
    fixed.narrow(0, 2, 4).copy_from(in[0].narrow(0, 0, 2));
    const NDArray out = like(in[0]);
    kernels::add(fixed, in[0], out);
    return Arrays{out, fixed};
  });
  for (int call = 0; call < 4; ++call) {
    fixed.fill(0);
    const NDArray x = count({4});
    kernels::scale(call, x);
    const auto n = static_cast<float>(call);
    const Arrays results = captured({x});
    EXPECT_THAT(results[0].to_vector<float>(), testing::ElementsAre(2 * n, 4 * n, 2 * n, 4 * n));
    EXPECT_THAT(fixed.to_vector<float>(), testing::ElementsAre(2 * n, 3 * n, 0, n));
    ASSERT_FALSE(results[1].is_none()) << "call " << call;
    EXPECT_EQ(results[1].data(), fixed.data());
  }
}

TEST_P(CaptureTest, AReplayDoesNotHealTheRestOfAnArray) {
  if (!on_host()) GTEST_SKIP() << "CUDA kernels do not throw";
  Captured captured([](const Arrays& in) {
    in[0].fill(7);
    return Arrays{};
  });
  for (int call = 0; call < 2; ++call) captured({count({4})});
  const NDArray both = count({2, 4});
  launch_host("broken", {}, std::span(&both, 1), [](auto&&...) { throw IoError("planted"); });
  captured({both.at(0)});
  EXPECT_THROW(both.at(1).wait(), IoError);
  both.fill(1);
  captured({both.at(0)});
  EXPECT_THAT(both.to_vector<float>(), testing::ElementsAre(7, 7, 7, 7, 1, 1, 1, 1));
}

TEST_P(CaptureTest, ACallThatThrowsIsNotTheFirst) {
  NDArray weight;
  bool throws = true;
  Captured captured([&](const Arrays& in) {
    if (std::exchange(throws, false)) throw IoError("planted");
    if (weight.is_none()) weight = NDArray::full(in[0].shape(), 0, in[0].dtype(), device(), engine());
    kernels::add(weight, in[0], weight);
    return Arrays{weight.clone()};
  });
  const NDArray one = NDArray::full({4}, 1, DType::kFloat32, device(), engine());
  EXPECT_THROW(captured({one}), IoError);
  for (int call = 1; call <= 4; ++call)
    EXPECT_EQ(captured({one})[0].to_vector<float>(), std::vector<float>(4, static_cast<float>(call)));
}

TEST_P(CaptureTest, AnInputThatTheFunctionAlsoTakesFromElsewhereIsNotedWhereNothingChangesIt) {
  const NDArray weight = NDArray::full({4}, 1, DType::kFloat32, device(), engine());
  for (const bool changes_weight : {true, false}) {
    Captured captured([&](const Arrays& in) {
      const NDArray changed = changes_weight ? weight : in[0];
      kernels::scale(2, changed);
      return Arrays{weight.clone()};
    });
    captured({weight});
    EXPECT_THROW(captured({weight}), InvalidArgument);
  }
  weight.fill(3);
  Captured reads([&](const Arrays& in) {
    const NDArray out = like(in[0]);
    kernels::add(weight, in[0], out);
    return Arrays{out};
  });
  for (int call = 0; call < 4; ++call)
    EXPECT_EQ(reads({weight})[0].to_vector<float>(), std::vector<float>(4, 6)) << "call " << call;
}

TEST_P(CaptureTest, AResultThatIsAViewOfAnInputIsOneInEveryCall) {
  Captured captured([](const Arrays& in) {
    kernels::scale(2, in[0]);
    return Arrays{in[0].at(1)};
  });
  const NDArray whole = count({3, 2, 2});
  for (int call = 0; call < 4; ++call) {
    const NDArray x = whole.at(1), result = captured({x})[0];
    EXPECT_TRUE(result.shares_memory_with(x)) << "call " << call;
    x.fill(call);
    EXPECT_EQ(result.to_vector<float>(), std::vector<float>(2, static_cast<float>(call)));
    EXPECT_EQ(result.data(), x.at(1).data());
  }
}

// Kernels of a chain run piece by piece. One that reads the next piece's elements must not be in it.
TEST_P(CaptureTest, AKernelThatReadsWithAnOffsetIsInNoChainWithTheOneThatWrites) {
  constexpr std::int64_t kSize = 30000;
  const NDArray fixed = NDArray::zeros({kSize + 1}, DType::kFloat32, device(), engine());
  Captured captured([&](const Arrays& in) {
    kernels::add(in[0], in[0], fixed.narrow(0, 0, kSize));
    const NDArray out = like(in[0]);
    kernels::add(fixed.narrow(0, 1, kSize + 1), in[0], out);
    return Arrays{out};
  });
  std::vector<float> expected;
  for (int i = 0; i + 1 < kSize; ++i) expected.push_back(static_cast<float>(2 * (i + 1) + i));
  expected.push_back(kSize - 1);
  for (int call = 0; call < 4; ++call) {
    fixed.fill(0);
    EXPECT_EQ(captured({count({kSize})})[0].to_vector<float>(), expected) << "call " << call;
  }
}

// Two results, one of which is held now and then: both come back with the memory of one earlier run, even while no run
// is complete. So the addresses stay few, and CUDA devices replay graphs.
TEST(CapturedResults, ComeBackTogetherHoweverFarTheTasksAreBehind) {
  const NDArray x = NDArray::full({16}, 1, DType::kFloat32);
  Captured captured([](const Arrays& in) {
    const NDArray doubled(in[0].shape(), in[0].dtype()), tripled(in[0].shape(), in[0].dtype());
    kernels::add(in[0], in[0], doubled);
    kernels::add(doubled, in[0], tripled);
    return Arrays{doubled, tripled};
  });
  for (int call = 0; call < 2; ++call) captured({x})[0].wait();  // eager, noted

  std::atomic<bool> blocked = true;
  const NDArray gate = NDArray::zeros({1}, DType::kFloat32);
  default_engine().push({"gate"}, {}, std::array{x.variable(), gate.variable()}, [&](TaskContext&) {
    while (blocked) std::this_thread::yield();
  });
  std::set<std::pair<const void*, const void*>> places;
  const auto place = [](const NDArray& array) { return ArrayBuilder::data(array); };
  NDArray held;
  for (int call = 0; call < 30; ++call) {
    const Arrays results = captured({x});
    places.emplace(place(results[0]), place(results[1]));
    if (call % 3 == 0) held = results[call % 2];
  }
  blocked = false;
  EXPECT_EQ(held.to_vector<float>(), std::vector<float>(16, 3));
  EXPECT_LE(places.size(), 3u);
}

}  // namespace
}  // namespace paceline::test
