#include <fcntl.h>
#include <gmock/gmock.h>
#include <paceline/cluster.h>
#include <paceline/error.h>
#include <support/descriptor_limit.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace paceline {
namespace {

using testing::HasSubstr;

// The variables of one test; what was there comes back.
class ClusterEnvironment : public testing::Test {
 protected:
  ClusterEnvironment() {
    for (const char* name :
         {"DMLC_ROLE",          "DMLC_PS_ROOT_URI",   "DMLC_PS_ROOT_PORT",       "DMLC_NUM_SERVER",
          "DMLC_NUM_WORKER",    "DMLC_NODE_HOST",     "DMLC_INTERFACE",          "DMLC_TASK_ID",
          "PACELINE_JOB_ID",    "PACELINE_PORT_FILE", "PACELINE_ENDED_FILE",     "PACELINE_LOST_FILE",
          "PACELINE_FAULTS",    "PACELINE_TRANSPORT", "PACELINE_START_DEADLINE", "PACELINE_SILENCE_DEADLINE",
          "PACELINE_HEARTBEAT", "PACELINE_NODE_PORT", "PACELINE_ON_WORKER_LOSS", "PACELINE_MESSAGE_BYTES",
          "PACELINE_KEY_FD",    "PACELINE_KEY_FILE",  "PACELINE_INSECURE",       "PACELINE_CORE_DUMPS"}) {
      const char* value = std::getenv(name);
      before_[name] = value ? value : "";
      unsetenv(name);
    }
    set("DMLC_ROLE", "worker");
    set("DMLC_PS_ROOT_URI", "10.0.0.4");
    set("DMLC_PS_ROOT_PORT", "9091");
    set("DMLC_NUM_SERVER", "2");
    set("DMLC_NUM_WORKER", "3");
    set("PACELINE_INSECURE", "1");
  }
  ~ClusterEnvironment() override {
    for (const auto& [name, value] : before_) value.empty() ? unsetenv(name.c_str()) : set(name.c_str(), value);
  }
  static int set(const char* name, const std::string& value) { return setenv(name, value.c_str(), 1); }
  static std::string error() {
    try {
      ClusterConfig::from_environment();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }

 private:
  std::map<std::string, std::string> before_;
};

class JobSecret : public ClusterEnvironment {
 protected:
  JobSecret() {
    getrlimit(RLIMIT_CORE, &core_);
    unsetenv("PACELINE_INSECURE");
    set("PACELINE_KEY_FILE", path_);
    write(kKey + "\n", 0600);
  }
  ~JobSecret() override {
    setrlimit(RLIMIT_CORE, &core_);
    std::filesystem::remove(path_);
  }
  void write(const std::string& text, mode_t mode) const {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
  }
  // The reading end of a pipe that holds the text.
  static int pipe_with(const std::string& text) {
    int ends[2];
    if (pipe(ends) != 0) throw IoError("no pipe");
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(ends[1]);
    return ends[0];
  }

  const std::string kKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1C1D1E1F";
  const std::string path_ = testing::TempDir() + "job-key-" + std::to_string(getpid());
  rlimit core_ = {};
};

TEST_F(JobSecret, comes_from_a_file_of_its_owner) {
  const std::string secret = ClusterConfig::from_environment().secret;
  ASSERT_EQ(secret.size(), 32u);
  for (std::size_t i = 0; i < secret.size(); ++i) EXPECT_EQ(secret[i], static_cast<char>(i));
  write(kKey, 0640);
  EXPECT_THAT(error(), HasSubstr(path_ + " is open to other users; run `chmod 600 "));
  write(kKey, 0600);
  EXPECT_EQ(error(), "");
  write(kKey.substr(2), 0600);
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("does not hold a key; a key is 64 hexadecimal digits"),
                                      testing::Not(HasSubstr("0405060708"))));
  std::filesystem::remove(path_);
  EXPECT_THAT(error(), HasSubstr("PACELINE_KEY_FILE=" + path_ + " cannot be opened: No such file"));
}

TEST_F(JobSecret, comes_from_a_pipe_that_is_then_closed) {
  const int pipe = pipe_with(kKey);
  unsetenv("PACELINE_KEY_FILE");
  set("PACELINE_KEY_FD", std::to_string(pipe));
  const std::string secret = ClusterConfig::from_environment().secret;
  EXPECT_EQ(secret.size(), 32u);
  EXPECT_EQ(fcntl(pipe, F_GETFD), -1);
  EXPECT_EQ(ClusterConfig::from_environment().secret, secret);
  set("PACELINE_KEY_FD", "12345");
  EXPECT_THAT(error(), HasSubstr("PACELINE_KEY_FD=12345 is no pipe of this process"));
  set("PACELINE_KEY_FD", "2x");
  EXPECT_THAT(error(), HasSubstr("PACELINE_KEY_FD='2x' is not a whole number"));
}

TEST_F(JobSecret, a_process_without_a_key_refuses_unless_it_is_told_to_do_without) {
  unsetenv("PACELINE_KEY_FILE");
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("no key of its job"), HasSubstr("PACELINE_INSECURE=1")));
  set("PACELINE_INSECURE", "yes");
  EXPECT_THAT(error(), HasSubstr("PACELINE_INSECURE='yes' is neither 0 nor 1"));
  set("PACELINE_INSECURE", "1");
  testing::internal::CaptureStderr();
  EXPECT_EQ(ClusterConfig::from_environment().secret, "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("PACELINE_INSECURE=1: nothing is encrypted"));
  unsetenv("PACELINE_INSECURE");
  set("PACELINE_TRANSPORT", "inproc");
  EXPECT_EQ(error(), "");
}

TEST_F(JobSecret, core_dumps_are_off_unless_asked_for) {
  rlimit limit = core_;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_CORE, &limit);
  set("PACELINE_CORE_DUMPS", "1");
  EXPECT_EQ(error(), "");
  getrlimit(RLIMIT_CORE, &limit);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
  unsetenv("PACELINE_CORE_DUMPS");
  EXPECT_EQ(error(), "");
  getrlimit(RLIMIT_CORE, &limit);
  EXPECT_LE(limit.rlim_cur, 1u);
}

TEST_F(JobSecret, a_worker_may_open_as_many_descriptors_as_the_system_allows) {
  const test::DescriptorLimit few(100);
  EXPECT_EQ(error(), "");
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST_F(ClusterEnvironment, five_variables_are_enough) {
  const ClusterConfig config = ClusterConfig::from_environment();
  EXPECT_EQ(config.role, Role::kWorker);
  EXPECT_EQ(config.scheduler_host, "10.0.0.4");
  EXPECT_EQ(config.scheduler_port, 9091);
  EXPECT_EQ(config.servers, 2);
  EXPECT_EQ(config.workers, 3);
  EXPECT_EQ(config.task, -1);
  EXPECT_EQ(config.transport, "shm");
  EXPECT_EQ(config.job, "");
  EXPECT_EQ(config.start_deadline_seconds, 60);
  EXPECT_EQ(config.silence_deadline_seconds, 15);
  EXPECT_EQ(config.heartbeat_seconds, 1);
}

TEST_F(ClusterEnvironment, a_wrong_text_names_its_variable) {
  set("PACELINE_FAULTS", "drop everything");
  EXPECT_EQ(error().find("[cluster] PACELINE_FAULTS: "), 0u) << error();
  unsetenv("PACELINE_FAULTS");
  set("PACELINE_TRANSPORT", "pigeon");
  EXPECT_EQ(error().find("[cluster] PACELINE_TRANSPORT: "), 0u) << error();
}

TEST_F(ClusterEnvironment, the_others_are_read) {
  set("DMLC_INTERFACE", "lo");
  EXPECT_EQ(ClusterConfig::from_environment().node_host, "127.0.0.1");
  set("DMLC_NODE_HOST", "hostB");
  set("DMLC_TASK_ID", "7");
  set("PACELINE_JOB_ID", "job");
  set("PACELINE_FAULTS", "drop 0.5; seed 3");
  set("PACELINE_START_DEADLINE", "2.5");
  set("PACELINE_SILENCE_DEADLINE", "2");
  set("PACELINE_MESSAGE_BYTES", "100000");
  set("PACELINE_NODE_PORT", "9000");
  set("PACELINE_ON_WORKER_LOSS", "stop");
  const ClusterConfig config = ClusterConfig::from_environment();
  EXPECT_EQ(config.node_host, "hostB");
  EXPECT_EQ(config.task, 7);
  EXPECT_EQ(config.job, "job");
  EXPECT_EQ(config.faults, "drop 0.5; seed 3");
  EXPECT_EQ(config.start_deadline_seconds, 2.5);
  EXPECT_EQ(config.silence_deadline_seconds, 2);
  EXPECT_EQ(config.heartbeat_seconds, 0.5);
  EXPECT_EQ(config.node_port, 9000);
  EXPECT_EQ(config.message_bytes, 100000);
  EXPECT_TRUE(config.stop_on_worker_loss);
}

TEST_F(ClusterEnvironment, what_is_missing_or_wrong_is_named) {
  for (const char* name :
       {"DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_SERVER", "DMLC_NUM_WORKER"}) {
    const std::string value = std::getenv(name);
    unsetenv(name);
    EXPECT_THAT(error(), HasSubstr(std::string(name) + " is not set"));
    set(name, value);
  }
  const std::map<std::string, std::pair<std::string, std::string>> wrong = {
      {"DMLC_ROLE", {"boss", "known: scheduler server worker"}},
      {"DMLC_PS_ROOT_URI", {"116", "DMLC_PS_ROOT_URI='116'"}},
      {"DMLC_PS_ROOT_PORT", {"70000", "DMLC_PS_ROOT_PORT='70000' is not a whole number from 1 to 65535"}},
      {"DMLC_NUM_SERVER", {"-1", "DMLC_NUM_SERVER='-1'"}},
      {"DMLC_NUM_WORKER", {"0", "DMLC_NUM_WORKER='0'"}},
      {"DMLC_INTERFACE", {"nothing0", "known: "}},
      {"DMLC_TASK_ID", {"x", "DMLC_TASK_ID='x'"}},
      {"PACELINE_SILENCE_DEADLINE", {"soon", "PACELINE_SILENCE_DEADLINE='soon' is not a number of seconds"}},
      {"PACELINE_ON_WORKER_LOSS", {"cry", "known: continue stop"}},
  };
  for (const auto& [name, value_and_error] : wrong) {
    const char* before = std::getenv(name.c_str());
    const std::string value = before ? before : "";
    set(name.c_str(), value_and_error.first);
    EXPECT_THAT(error(), HasSubstr(value_and_error.second));
    value.empty() ? unsetenv(name.c_str()) : set(name.c_str(), value);
  }
  EXPECT_EQ(error(), "");
}

}  // namespace
}  // namespace paceline
