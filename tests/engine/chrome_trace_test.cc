#include <paceline/detail/device_runtime.h>
#include <paceline/engine_observer.h>
#include <paceline/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <thread>

namespace paceline {
namespace {

TEST(ChromeTrace, WritesOneSlicePerTaskAndRowsWithoutOverlap) {
  const std::string path = testing::TempDir() + "/paceline_trace.json";
  const auto engine = make_threaded_engine({.cpu_lanes = 2});
  const auto trace = make_chrome_trace(path);
  engine->add_observer(trace);
  const Variable variable = engine->new_variable();
  std::thread answering;
  engine->push_async({"pull \"quoted\"", Device("cpu"), Lane::kCommunication}, {}, {},
                     [&](TaskContext&, Completion completion) {
                       answering = std::thread([completion = std::move(completion)]() mutable { completion.done(); });
                     });
  for (int i = 0; i < 20; ++i) {
    engine->push({"work"}, {}, {}, [](TaskContext&) {});
    engine->push({"device work", Device("sim:0")}, {}, {{variable}}, [](TaskContext& c) { c.stream->enqueue([] {}); });
  }
  engine->push({"fail"}, {}, {{variable}}, [](TaskContext&) { throw Error("bad"); });
  EXPECT_THROW(engine->wait_all(), Error);
  answering.join();
  trace->flush();

  const auto json = nlohmann::json::parse(std::ifstream(path));
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> rows;
  std::map<std::string, int> tasks;
  std::vector<std::string> processes;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") == "M") {
      if (event.at("name") == "process_name") processes.push_back(event.at("args").at("name"));
      continue;
    }
    ASSERT_EQ(event.at("ph"), "X");
    ++tasks[event.at("name")];
    const double start = event.at("ts");
    // Rows of a lane stand together, in the order of the lanes.
    const auto lane = event.at("name") == "pull \"quoted\"" ? Lane::kCommunication : Lane::kCompute;
    EXPECT_EQ(event.at("tid").get<int>() / 1000, static_cast<int>(lane));
    EXPECT_GE(event.at("tid").get<int>(), 0);
    rows[{event.at("pid"), event.at("tid")}].emplace_back(start, start + event.at("dur").get<double>());
    EXPECT_EQ(event.at("args").at("failed").get<bool>(), event.at("name") == "fail");
  }
  EXPECT_EQ(tasks,
            (std::map<std::string, int>{{"pull \"quoted\"", 1}, {"work", 20}, {"device work", 20}, {"fail", 1}}));
  EXPECT_EQ(processes.size(), 2u);
  for (auto& [row, slices] : rows) {
    std::sort(slices.begin(), slices.end());
    for (std::size_t i = 1; i < slices.size(); ++i) EXPECT_LE(slices[i - 1].second, slices[i].first + 1e-3);
  }
}

TEST(ChromeTrace, TakesNamesThatAreNotUtf8) {
  const std::string path = testing::TempDir() + "/paceline_latin_trace.json";
  {
    const auto engine = make_threaded_engine();
    engine->add_observer(make_chrome_trace(path));
    engine->push({"na\xefve"}, {}, {}, [](TaskContext&) {});
  }
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(path)).at("traceEvents").size(), 3u);
}

TEST(ChromeTrace, MayBeFlushedByTwoThreads) {
  const std::string path = testing::TempDir() + "/paceline_flushed_trace.json";
  const auto engine = make_serial_engine();
  const auto trace = make_chrome_trace(path);
  engine->add_observer(trace);
  for (int round = 0; round < 100; ++round) {
    std::thread other([&] { trace->flush(); });
    engine->push({"one more task"}, {}, {}, [](TaskContext&) {});
    trace->flush();
    other.join();
    EXPECT_TRUE(nlohmann::json::accept(std::ifstream(path))) << "round " << round;
  }
}

TEST(ChromeTrace, SaysWhereItCannotWrite) {
  const auto trace = make_chrome_trace("/no/such/folder/trace.json");
  EXPECT_THAT(
      [&] { trace->flush(); },
      testing::ThrowsMessage<IoError>(testing::HasSubstr("/no/such/folder/trace.json: No such file or directory")));
}

}  // namespace
}  // namespace paceline
