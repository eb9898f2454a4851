// Values and gradients of a call of ours beside those that PyTorch computed (generate.py).
#pragma once

#include "golden/calls.h"

#include <map>
#include <string>

namespace paceline::test {

// Of one case: inputs x0, x1, ..., outputs y0, ..., gradients dx0, ...
using CaseArrays = std::map<std::string, NDArray>;
// By function, by case.
std::map<std::string, std::map<std::string, CaseArrays>> load_cases(const std::string& path);

// Gives an array of the same values.
using View = std::function<NDArray(const NDArray&)>;

// Expects of `call` on the device what the case says. Floating inputs are cast to `dtype`; each goes through `view`
// first, if there is one. Where numbers cancel, as drawn ones may, `noise` in units of the type is let pass.
void compare(const std::string& name, const GoldenCall& call, const CaseArrays& arrays, DType dtype, const View& view,
             Device device, double noise = 0);

}  // namespace paceline::test
