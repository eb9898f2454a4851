#pragma once

namespace paceline::test {

// Appends the begin and end of every test to the file that PACELINE_TEST_EVENTS names; does nothing where it is not
// set. The format is described in tests/runner/events.py. Call it once, after InitGoogleTest().
void report_events();

}  // namespace paceline::test
