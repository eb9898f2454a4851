#include <gtest/gtest.h>
#include <paceline/error.h>
#include <spawn.h>
#include <support/paths.h>
#include <support/server_processes.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace paceline::test {
namespace {

class Processes final : public ServerProcesses {
 public:
  explicit Processes(const ClusterConfig& config) {
    const auto port_file = std::filesystem::temp_directory_path() /
                           ("paceline_cluster_test." + std::to_string(getpid()) + "." + std::to_string(++count));
    std::filesystem::remove(port_file);
    key_file_ = port_file;
    key_file_ += ".key";
    write_key(config.secret);
    spawn(config, "scheduler", 0, port_file);
    for (int tries = 0; port_ == 0 && tries < 20000; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::string host;
      std::ifstream(port_file) >> host >> port_;
    }
    std::filesystem::remove(port_file);
    if (port_ == 0) throw Timeout("the scheduler's process wrote no port file within 100 s");
    for (int s = 0; s < config.servers; ++s) spawn(config, "server", port_, "");
  }

  ~Processes() override {
    std::filesystem::remove(key_file_);
    for (const pid_t pid : pids_) {
      int status = 0;
      pid_t ended = 0;
      for (int tries = 0; ended == 0 && tries < 20000; ++tries) {
        ended = waitpid(pid, &status, WNOHANG);
        if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      if (ended == 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        ADD_FAILURE() << "a server process did not end within 100 s";
      }
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "a server process ended with status " << status;
    }
  }

  int port() const override { return port_; }

 private:
  void write_key(const std::string& secret) const {
    std::ofstream file(key_file_);
    std::filesystem::permissions(key_file_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    for (const char byte : secret)
      file << std::hex << std::setw(2) << std::setfill('0') << int{static_cast<unsigned char>(byte)};
  }

  void spawn(const ClusterConfig& config, const std::string& role, int port, const std::string& port_file) {
    std::vector<std::string> variables{"DMLC_ROLE=" + role,
                                       "DMLC_PS_ROOT_URI=127.0.0.1",
                                       "DMLC_PS_ROOT_PORT=" + std::to_string(port),
                                       "DMLC_NUM_SERVER=" + std::to_string(config.servers),
                                       "DMLC_NUM_WORKER=" + std::to_string(config.workers),
                                       "PACELINE_JOB_ID=" + config.job,
                                       "PACELINE_KEY_FILE=" + key_file_.string(),
                                       "PACELINE_TRANSPORT=" + config.transport,
                                       "PACELINE_FAULTS=" + config.faults,
                                       "PACELINE_SILENCE_DEADLINE=" + std::to_string(config.silence_deadline_seconds),
                                       "PACELINE_HEARTBEAT=" + std::to_string(config.heartbeat_seconds)};
    if (!config.ended_file.empty()) variables.push_back("PACELINE_ENDED_FILE=" + config.ended_file);
    if (!config.lost_file.empty()) variables.push_back("PACELINE_LOST_FILE=" + config.lost_file);
    if (!port_file.empty()) variables.push_back("PACELINE_PORT_FILE=" + port_file);
    for (char** entry = environ; *entry; ++entry) variables.emplace_back(*entry);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::string program = program_dir() + "/paceline_server";
    char* arguments[] = {program.data(), nullptr};
    pid_t pid = 0;
    if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environment.data()) != 0)
      throw IoError("cannot start " + program);
    pids_.push_back(pid);
  }

  static inline int count = 0;
  std::filesystem::path key_file_;
  std::vector<pid_t> pids_;
  int port_ = 0;
};

}  // namespace

std::unique_ptr<ServerProcesses> ServerProcesses::start(const ClusterConfig& config) {
  return std::make_unique<Processes>(config);
}

}  // namespace paceline::test
