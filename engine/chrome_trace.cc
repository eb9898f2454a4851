// Tasks as complete slices ("X") in Chrome's trace format: one process per device, one thread per lane. Tasks of a lane
// that overlap (asynchronous ones, accelerators) are spread over several rows, because slices of one row must nest.

#include <paceline/engine_observer.h>
#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/mutex.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <system_error>
#include <unordered_map>
#include <vector>

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLaneNames[] = {"compute", "copy in", "copy out", "communication"};

class ChromeTraceFile final : public ChromeTrace {
 public:
  explicit ChromeTraceFile(std::string path) : path_(std::move(path)) {}

  ~ChromeTraceFile() override {
    try {
      flush();
    } catch (const std::exception& error) {
      LOG(ERROR) << "the trace " << path_ << " is not complete: " << error.what();
    }
  }

  void on_start(const TaskEvent& event) override {
    const Lock lock(mutex_);
    started_[event.id] = event.time;
  }

  void on_finish(const TaskEvent& event) override {
    const Lock lock(mutex_);
    const auto start = started_.find(event.id);
    if (start == started_.end()) return;
    slices_.push_back({event, start->second});
    started_.erase(start);
  }

  void flush() override {
    const Lock lock(mutex_);
    const std::string text = to_json().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    std::ofstream out(path_);
    out << text << '\n';
    out.close();
    if (!out) throw IoError(str("cannot write the trace file ", path_, ": ", std::generic_category().message(errno)));
  }

 private:
  struct Slice {
    TaskEvent event;  // its end
    Clock::time_point start;
  };

  static double microseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
  }

  static nlohmann::json name_row(const char* what, int process, int row, const std::string& name) {
    return {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", row}, {"args", {{"name", name}}}};
  }

  nlohmann::json to_json() PACELINE_REQUIRES(mutex_) {
    std::sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) { return a.start < b.start; });
    constexpr int kMostRows = 1000;
    std::map<Device, int> processes;
    std::map<std::pair<Device, Lane>, std::vector<Clock::time_point>> row_ends;
    auto events = nlohmann::json::array();
    for (const Slice& slice : slices_) {
      const TaskInfo& info = slice.event.info;
      const auto [process, new_process] = processes.emplace(info.device, static_cast<int>(processes.size()));
      if (new_process) events.push_back(name_row("process_name", process->second, 0, info.device.name()));

      auto& ends = row_ends[{info.device, info.lane}];
      const auto row = std::find_if(ends.begin(), ends.end(), [&](auto end) { return end <= slice.start; });
      const int tid = static_cast<int>(info.lane) * kMostRows + static_cast<int>(row - ends.begin());
      if (row == ends.end()) {
        ends.push_back(slice.event.time);
        events.push_back(
            name_row("thread_name", process->second, tid, kLaneNames[static_cast<std::size_t>(info.lane)]));
      } else {
        *row = slice.event.time;
      }
      events.push_back({{"ph", "X"},
                        {"name", info.name},
                        {"cat", "task"},
                        {"pid", process->second},
                        {"tid", tid},
                        {"ts", microseconds(slice.start - begin_)},
                        {"dur", microseconds(slice.event.time - slice.start)},
                        {"args",
                         {{"id", slice.event.id},
                          {"priority", info.priority},
                          {"thread", slice.event.thread},
                          {"failed", slice.event.failed}}}});
    }
    return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  }

  const std::string path_;
  const Clock::time_point begin_ = Clock::now();
  Mutex mutex_;
  std::unordered_map<std::uint64_t, Clock::time_point> started_ PACELINE_GUARDED_BY(mutex_);
  std::vector<Slice> slices_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<ChromeTrace> make_chrome_trace(const std::string& path) {
  return std::make_shared<ChromeTraceFile>(path);
}

}  // namespace paceline
