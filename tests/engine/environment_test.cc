#include "environment.h"

#include <paceline/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace paceline::detail {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class EnvironmentTest : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("PACELINE_SCHEDULE_SEED");
    unsetenv("PACELINE_ENGINE");
  }
};

TEST_F(EnvironmentTest, TheScheduleSeedIsANumber) {
  unsetenv("PACELINE_SCHEDULE_SEED");
  EXPECT_EQ(schedule_seed_wanted(), 0u);
  setenv("PACELINE_SCHEDULE_SEED", "18446744073709551615", 1);
  EXPECT_EQ(schedule_seed_wanted(), ~std::uint64_t{0});
  for (const char* wrong : {"", "x", "7x", "-1", " 7", "18446744073709551616"}) {
    setenv("PACELINE_SCHEDULE_SEED", wrong, 1);
    EXPECT_THAT([] { schedule_seed_wanted(); },
                ThrowsMessage<InvalidArgument>(HasSubstr("PACELINE_SCHEDULE_SEED is '" + std::string(wrong))));
  }
}

TEST_F(EnvironmentTest, TheDefaultEngineIsThreadedOrSerial) {
  unsetenv("PACELINE_ENGINE");
  EXPECT_FALSE(serial_engine_wanted());
  setenv("PACELINE_ENGINE", "threaded", 1);
  EXPECT_FALSE(serial_engine_wanted());
  setenv("PACELINE_ENGINE", "serial", 1);
  EXPECT_TRUE(serial_engine_wanted());
  setenv("PACELINE_ENGINE", "fast", 1);
  EXPECT_THAT([] { serial_engine_wanted(); }, ThrowsMessage<InvalidArgument>(HasSubstr("known: serial threaded")));
}

}  // namespace
}  // namespace paceline::detail
