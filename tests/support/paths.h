// Where a test finds what lies outside its own program.
#pragma once

#include <string>

namespace paceline::test {

// The root of the source tree.
std::string source_dir();

// The folder of the built programs, for instance build/cpu/bin.
std::string program_dir();

// The folder of a data set such as "mnist": below $PACELINE_DATA, or below ../shared/data beside the source tree.
// Empty when it is not there: the test skips and says so.
std::string data_dir(const std::string& data_set);

}  // namespace paceline::test
