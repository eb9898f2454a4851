// The main function of every test program. Where PACELINE_TEST_EVENTS names a file, it writes there what tests/runner
// needs to run many tests in one process: a line when a test begins and one when it ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/test_events.h>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  paceline::test::report_events();
  return RUN_ALL_TESTS();
}
