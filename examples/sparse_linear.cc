// Logistic regression on sparse examples, alone or as a worker of a distributed job. Weights are a row-sparse table of
// one number a row; the loop is in common/sparse.cc.
#include "common/program.h"
#include "common/sparse.h"

using namespace paceline;

int main(int argc, char** argv) {
  const examples::Program program{
      .name = "sparse_linear",
      .usage =
          "sparse_linear --train FILE [--test FILE] [flags]\n\n"
          "Logistic regression on sparse examples in LibSVM's format, alone or as a worker of a job:\n"
          "  sparse_linear --train a9a --test a9a.t\n"
          "  launch.py -n 2 -s 2 sparse_linear --kvstore dist_async --train a9a --test a9a.t",
      .flags_of = {__FILE__, examples::kSparseFlags},
      .defaults = {{"optimizer", "adam"}, {"lr", "0.01"}}};
  return examples::run(program, argc, argv, [] {
    examples::train_or_evaluate(
        "sparse_linear", {{{.name = "weights", .width = 1}}, [](const Csr& examples, const std::vector<NDArray>& rows) {
                            return csr_matmul(examples, rows[0]);
                          }});
  });
}
