#include <paceline/catalog.h>
#include <paceline/cores.h>
#include <paceline/detail/split_mix.h>
#include <paceline/device.h>
#include <paceline/exit_code.h>
#include <paceline/log.h>
#include <paceline/mutex.h>
#include <paceline/options.h>
#include <paceline/unique_function.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <utility>

namespace paceline {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// ---- options

TEST(Options, ReadsEveryType) {
  const Options options = Options::parse("a=4,b=0.5,c,d=text with blanks,e=-7000000000,f=false,g=");
  EXPECT_EQ(options.get("a", 0), 4);
  EXPECT_EQ(options.get("b", 0.0), 0.5);
  EXPECT_EQ(options.get("b", 0.0f), 0.5f);
  EXPECT_TRUE(options.get("c", false));
  EXPECT_EQ(options.get("d", ""), "text with blanks");
  EXPECT_EQ(options.get("e", std::int64_t{0}), -7000000000);
  EXPECT_FALSE(options.get("f", true));
  EXPECT_EQ(options.get("g", "other"), "");
  EXPECT_EQ(options.get("absent", 12), 12);
  options.reject_unknown("test");
}

TEST(Options, RefusesWhatIsNotTheType) {
  const Options options = Options::parse("a=4x,b=,c=maybe,e=1.5");
  EXPECT_THAT([&] { options.get("a", 0); }, ThrowsMessage<InvalidArgument>(HasSubstr("a=4x is not a whole number")));
  EXPECT_THROW(options.get("b", 0.0), InvalidArgument);
  EXPECT_THAT([&] { options.get("c", false); }, ThrowsMessage<InvalidArgument>(HasSubstr("true or false")));
  EXPECT_THROW(options.get("e", 0), InvalidArgument);
}

TEST(Options, SaysWhichNumbersAreTooLarge) {
  const Options options = Options::parse("a=3000000000,b=99999999999999999999,c=1e999,d=3000000000x");
  EXPECT_THAT([&] { options.get("a", 0); }, ThrowsMessage<InvalidArgument>("option a=3000000000 is out of range"));
  EXPECT_THAT([&] { options.get("b", std::int64_t{0}); }, ThrowsMessage<InvalidArgument>(HasSubstr("out of range")));
  EXPECT_THAT([&] { options.get("c", 0.0); }, ThrowsMessage<InvalidArgument>(HasSubstr("out of range")));
  EXPECT_THAT([&] { options.get("d", 0); }, ThrowsMessage<InvalidArgument>(HasSubstr("not a whole number")));
}

TEST(Options, RefusesRepeatedAndEmptyKeys) {
  EXPECT_THAT([] { Options::parse("a=1,a=2"); }, ThrowsMessage<InvalidArgument>(HasSubstr("'a' is given twice")));
  EXPECT_THROW(Options::parse("a=1,,b=2"), InvalidArgument);
  EXPECT_THROW(Options::parse("=3"), InvalidArgument);
  EXPECT_TRUE(Options::parse("").empty());
}

TEST(Options, NamesTheUnknownKeyAndTheKnownOnes) {
  const Options options = Options::parse("bound=4,bund=5");
  options.get("bound", 0);
  options.get("clip", 0.0);
  EXPECT_THAT(
      [&] { options.reject_unknown("mode dist_async"); },
      ThrowsMessage<InvalidArgument>(std::string("unknown option 'bund' of mode dist_async; known: bound clip")));
}

TEST(Options, ItsTextParsesToTheSame) {
  const std::string text = "a=1,b=x=y,c=";
  EXPECT_EQ(Options::parse(text).text(), text);
  Options options = Options::parse(text);
  options.erase("b");
  options.set("d", "2");
  EXPECT_EQ(options.text(), "a=1,c=,d=2");
  EXPECT_FALSE(options.has("b"));
}

TEST(Spec, IsANameWithOptions) {
  const Spec spec = Spec::parse("dist_async:bound=4,clip=0.5");
  EXPECT_EQ(spec.name, "dist_async");
  EXPECT_EQ(spec.options.get("bound", 0), 4);
  EXPECT_EQ(spec.text(), "dist_async:bound=4,clip=0.5");
  EXPECT_EQ(Spec::parse("local").text(), "local");
  EXPECT_THROW(Spec::parse(":bound=4"), InvalidArgument);
  EXPECT_THROW(Spec::parse(""), InvalidArgument);
}

// ---- devices and catalogues

TEST(Device, ParsesItsName) {
  EXPECT_EQ(Device("cpu"), Device());
  EXPECT_EQ(Device("cpu:1"), Device(DeviceKind::kCpu, 1));
  EXPECT_EQ(Device("cuda:3"), Device(DeviceKind::kCuda, 3));
  EXPECT_EQ(Device("cuda"), Device(DeviceKind::kCuda, 0));
  EXPECT_EQ(Device("sim:2"), Device(DeviceKind::kSim, 2));
  for (const char* name : {"cpu", "cpu:1", "cuda:0", "sim:3"}) EXPECT_EQ(Device(name).name(), name);
  for (const char* name : {"", "gpu", "cpu:", "cpu:x", "cpu:1x", "cpu:-1", "cuda:99999999999", "CPU", ":0", "cpu 0"})
    EXPECT_THAT([&] { Device device(name); }, ThrowsMessage<InvalidArgument>(HasSubstr("known: cpu"))) << name;
}

TEST(Device, CountsWhatIsHere) {
  EXPECT_EQ(device_count(DeviceKind::kCpu), 16);
  EXPECT_EQ(device_count(DeviceKind::kSim), 4);
  EXPECT_GE(device_count(DeviceKind::kCuda), 0);
}

TEST(Catalog, FindsAndListsNames) {
  const Catalog<int> catalog("fruit", {{"apple", 1}, {"pear", 2}});
  EXPECT_EQ(catalog.at("pear"), 2);
  EXPECT_EQ(catalog.entries().size(), 2u);
  EXPECT_THAT([&] { catalog.at("plum"); },
              ThrowsMessage<InvalidArgument>(std::string("unknown fruit 'plum'; known: apple pear")));
}

// ---- functions

TEST(UniqueFunction, HoldsSmallAndLargeMoveOnlyClosures) {
  const auto counted = std::make_shared<int>(5);
  {
    UniqueFunction<int(int)> small = [counted, own = std::make_unique<int>(2)](int x) { return *counted * *own + x; };
    std::array<int, 100> numbers{};
    numbers[99] = 7;
    UniqueFunction<int(int)> large = [counted, numbers](int x) { return numbers[99] + x; };
    EXPECT_EQ(small(1), 11);
    EXPECT_EQ(large(1), 8);
    UniqueFunction<int(int)> moved = std::move(large);
    EXPECT_FALSE(large);  // NOLINT: what a move leaves behind is part of the contract
    EXPECT_EQ(moved(2), 9);
    moved = std::move(small);
    EXPECT_EQ(moved(0), 10);
    EXPECT_EQ(counted.use_count(), 2) << "the replaced closure is gone";
    moved.reset();
    EXPECT_FALSE(moved);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(UniqueFunction, ForwardsReferencesAndMoveOnlyArguments) {
  UniqueFunction<void(int&, std::unique_ptr<int>)> add = [](int& sum, std::unique_ptr<int> value) { sum += *value; };
  int sum = 1;
  add(sum, std::make_unique<int>(4));
  EXPECT_EQ(sum, 5);
}

// ---- threads

TEST(Cores, TeamSizeBelongsToTheThread) {
  EXPECT_GE(core_budget(), 1);
  const int before = team_size();
  std::thread([] {
    name_thread("a name longer than fifteen characters");
    become_single_threaded();
    EXPECT_EQ(team_size(), 1);
  }).join();
  EXPECT_EQ(team_size(), before);
}

// OpenMP reads the variable before main.
TEST(Cores, TeamsAreNoLargerThanOpenMpAllows) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exit_with_team = [](int threads) {
    set_team_size(threads);
    std::_Exit(team_size());
  };
  setenv("OMP_THREAD_LIMIT", "3", 1);
  for (const auto& [asked, given] : {std::pair(0, 1), std::pair(2, 2), std::pair(3, 3), std::pair(4, 3)})
    EXPECT_EXIT(exit_with_team(asked), testing::ExitedWithCode(given), "") << asked;
}

TEST(Cores, TheBudgetComesFromTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exit_with_budget = [](const char* text) {
    setenv("PACELINE_NUM_THREADS", text, 1);
    try {
      std::_Exit(core_budget());
    } catch (const InvalidArgument&) {
      std::_Exit(99);
    }
  };
  EXPECT_EXIT(exit_with_budget("3"), testing::ExitedWithCode(3), "");
  for (const char* wrong : {"0", "-2", "two", "2x"})
    EXPECT_EXIT(exit_with_budget(wrong), testing::ExitedWithCode(99), "") << wrong;
}

// ---- exit codes

TEST(ExitCode, IsTwoForWhatCanNeverWorkHereAndElseOne) {
  EXPECT_EQ(exit_code_of(InvalidArgument("no such mode")), 2);
  EXPECT_EQ(exit_code_of(NotAvailable("no such device")), 2);
  EXPECT_EQ(exit_code_of(IoError("the disk is full")), 1);
  EXPECT_EQ(exit_code_of(Timeout("worker 1 is silent")), 1);
  EXPECT_EQ(exit_code_of(NetworkError("worker 1 is lost")), 1);
  EXPECT_EQ(exit_code_of(Corrupt("the file is damaged")), 1);
  EXPECT_EQ(exit_code_of(DeviceError("the device is gone")), 1);
  EXPECT_EQ(exit_code_of(OutOfMemory("no memory for an array")), 1);
  EXPECT_EQ(exit_code_of(Error("something else")), 1);
  EXPECT_EQ(exit_code_of(std::bad_alloc()), 1);
}

// ---- random numbers

TEST(SplitMix, MakesTheKnownNumbers) {
  constexpr std::uint64_t kSeed = 1234567;
  constexpr std::uint64_t kNumbers[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                        4593380528125082431u, 16408922859458223821u};
  std::uint64_t state = kSeed;
  for (const std::uint64_t number : kNumbers) EXPECT_EQ(detail::finalised(state += detail::kSplitMixStep), number);
  EXPECT_EQ(detail::split_mix(kSeed), kNumbers[0]);
}

TEST(Mutex, ConditionsWaitWithAndWithoutDeadline) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  {
    const Lock lock(mutex);
    EXPECT_FALSE(changed.wait_for(mutex, std::chrono::milliseconds(1), [&] { return ready; }));
  }
  std::thread setter([&] {
    const Lock lock(mutex);
    ready = true;
    changed.notify_all();
  });
  {
    const Lock lock(mutex);
    changed.wait(mutex, [&] { return ready; });
    EXPECT_TRUE(ready);
  }
  setter.join();
}

TEST(Log, CarriesTheIdentity) {
  start_logging("base_tests");
  set_log_identity("worker 3@here");
  testing::internal::CaptureStderr();
  LOG(WARNING) << "hello";
  const std::string line = testing::internal::GetCapturedStderr();
  set_log_identity("");
  EXPECT_THAT(line, HasSubstr("worker 3@here"));
  EXPECT_THAT(line, HasSubstr("hello"));
  EXPECT_EQ(line[0], 'W');
}

}  // namespace
}  // namespace paceline
