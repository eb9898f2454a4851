// The calls that the fixtures were written for, by family and function.
#pragma once

#include <paceline/ndarray.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace paceline::test {

using GoldenCall = std::function<std::vector<NDArray>(const std::vector<NDArray>&)>;
using GoldenCalls = std::map<std::string, GoldenCall>;

const std::map<std::string, GoldenCalls>& golden_calls();

}  // namespace paceline::test
