// A factorization machine (Rendle 2010) on sparse examples, alone or as a worker of a distributed job: a linear model
// plus, for each pair of features, the product of their vectors. Both are row-sparse tables; the loop is in
// common/sparse.cc.
#include "common/program.h"
#include "common/sparse.h"

DEFINE_int32(factors, 8, "length of each feature's vector");

using namespace paceline;

namespace {

// Sum over all pairs i < j of <v_i, v_j> x_i x_j, which is ((sum of v_i x_i)^2 - sum of (v_i x_i)^2) / 2, summed over
// the factors.
NDArray pairs(const Csr& examples, const NDArray& vectors) {
  Csr squares = examples;
  squares.values = square(examples.values);
  return sum(square(csr_matmul(examples, vectors)) - csr_matmul(squares, square(vectors)), {1}, true) * 0.5;
}

}  // namespace

int main(int argc, char** argv) {
  const examples::Program program{
      .name = "factorization_machine",
      .usage =
          "factorization_machine --train FILE [--test FILE] [flags]\n\n"
          "A factorization machine on sparse examples in LibSVM's format, alone or as a worker of a job:\n"
          "  factorization_machine --train a9a --test a9a.t\n"
          "  launch.py -n 2 -s 2 factorization_machine --kvstore dist_async --train a9a --test a9a.t",
      .flags_of = {__FILE__, examples::kSparseFlags},
      .defaults = {{"optimizer", "adam"}, {"lr", "0.01"}}};
  return examples::run(program, argc, argv, [] {
    require(FLAGS_factors >= 1, "--factors is ", FLAGS_factors, ", expected at least 1");
    const TableSpec linear{.name = "linear", .width = 1};
    const TableSpec vectors{.name = "vectors",
                            .width = FLAGS_factors,
                            .initializer = Spec::parse("normal:sigma=0.01,seed=" + std::to_string(FLAGS_seed))};
    examples::train_or_evaluate("factorization_machine",
                                {{linear, vectors}, [](const Csr& examples, const std::vector<NDArray>& rows) {
                                   return csr_matmul(examples, rows[0]) + pairs(examples, rows[1]);
                                 }});
  });
}
