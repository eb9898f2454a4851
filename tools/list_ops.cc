// Prints the catalogue of operators: inputs, outputs, attributes with their default values, gradient and devices.

#include <paceline/op.h>

#include <cstdio>

#include "flags.h"

namespace paceline {
namespace {

std::string inputs_of(const OpDef& op) {
  std::string text;
  for (const OpDef::Input& input : op.inputs()) {
    text += text.empty() ? "" : ", ";
    text += input.name + (op.is_variadic() ? "..." : input.optional ? "?" : input.mutated ? "!" : "");
  }
  return text;
}

std::string outputs_of(const OpDef& op) {
  std::string text;
  for (const std::string& output : op.outputs()) text += (text.empty() ? "" : ", ") + output;
  return text.empty() ? "out" : text;
}

void print(const OpDef& op) {
  std::string attributes;
  for (const auto& [key, value] : op.attribute_text(nullptr)) attributes += "  " + key + "=" + value;
  std::printf("%s(%s) -> %s%s%s%s\n", op.name().c_str(), inputs_of(op).c_str(), outputs_of(op).c_str(),
              attributes.c_str(), op.has_gradient() ? "  [gradient]" : "",
              op.has_kernel(DeviceKind::kCuda) ? "  [cuda]" : "");
}

}  // namespace
}  // namespace paceline

int main() {
  return paceline::tools::run_main("list_ops", [] {
    std::printf("x? may be none, x! is written in place, x... any number\n");
    for (const paceline::OpDef* op : paceline::all_operators()) paceline::print(*op);
    return 0;
  });
}
