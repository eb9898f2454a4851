#include <fcntl.h>
#include <gtest/gtest.h>
#include <support/test_events.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace paceline::test {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// Of this process and of the children that it has waited for.
double processor_seconds() {
  double sum = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    sum += seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  return sum;
}

// How much has been printed so far, where standard output is a file.
long long printed_bytes() {
  std::cout.flush();
  std::fflush(nullptr);
  struct stat status {};
  return fstat(STDOUT_FILENO, &status) == 0 ? static_cast<long long>(status.st_size) : 0;
}

// Looks for leaks, so that a leak belongs to one test. A thread of ZeroMQ may still hold the only pointer to what it is
// about to free, where the first look does not see it. What is lost stays lost, so a later look decides.
bool leaks() {
#if defined(__SANITIZE_ADDRESS__)
  if (__lsan_do_recoverable_leak_check() == 0) return false;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return __lsan_do_recoverable_leak_check() != 0;
#else
  return false;
#endif
}

class Events final : public testing::EmptyTestEventListener {
 public:
  explicit Events(int file) : file_(file) {}

  void OnTestStart(const testing::TestInfo& test) override {
    const long long printed = printed_bytes();
    processor_seconds_ = processor_seconds();
    begin_ = std::chrono::steady_clock::now();
    std::ostringstream line;
    line << "begin " << name_of(test) << ' ' << printed << '\n';
    append(line.str());
  }

  void OnTestEnd(const testing::TestInfo& test) override {
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const double processor = processor_seconds() - processor_seconds_;
    const testing::TestResult& result = *test.result();
    const bool leaked = leaks(), failed = result.Failed() || leaked;
    std::ostringstream line;
    line << "end " << name_of(test) << ' ' << printed_bytes() << ' ' << wall << ' ' << processor << ' '
         << (failed             ? "failed"
             : result.Skipped() ? "skipped"
                                : "passed")
         << ' ';
    for (int i = 0; i < result.total_part_count(); ++i)
      if (result.GetTestPartResult(i).skipped()) line << first_line(result.GetTestPartResult(i).message());
    line << '\n';
    append(line.str());
    if (leaked) _exit(1);  // it would be found again after every other test
  }

  void OnTestProgramEnd(const testing::UnitTest&) override { append("finished\n"); }

 private:
  static std::string name_of(const testing::TestInfo& test) {
    return std::string(test.test_suite_name()) + '.' + test.name();
  }
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  // One write, so that the line is whole even if the process is killed right after it.
  void append(std::string line) const {
    const bool forked = getpid() != process_;  // a child that a test has forked and not ended
    if (forked) line = "forked\n";
    if (write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
    if (forked) _exit(1);
  }

  const int file_;
  const pid_t process_ = getpid();
  std::chrono::steady_clock::time_point begin_;
  double processor_seconds_ = 0;
};

}  // namespace

void report_events() {
  const char* path = std::getenv("PACELINE_TEST_EVENTS");
  // The child of a death test is a part of its parent's test.
  if (!path || !GTEST_FLAG_GET(internal_run_death_test).empty()) return;
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    std::perror(path);
    std::exit(2);  // NOLINT(concurrency-mt-unsafe): before any test
  }
  testing::UnitTest::GetInstance()->listeners().Append(new Events(file));
}

}  // namespace paceline::test
