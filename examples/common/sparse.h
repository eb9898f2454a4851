#pragma once
// Trains a model of sparse examples whose weights are rows of tables in the store: only the rows of a batch's features
// travel, where the mode holds tables. Evaluated by the area under the ROC curve.

#include <paceline/kvstore.h>
#include <paceline/ops.h>

#include <functional>
#include <string>
#include <vector>

namespace paceline::examples {

// `score` gives the log-odds (examples, 1) of a batch: `examples` is a matrix (examples, rows), whose column i belongs
// to row i of each table, in the order of `tables`. The last feature is 1 in every example. A table's rows are as many
// as there are features; what its specification says instead is not used.
struct SparseModel {
  std::vector<TableSpec> tables;
  std::function<NDArray(const Csr& examples, const std::vector<NDArray>& rows)> score;
};

// The source file that defines this part's flags.
extern const char* const kSparseFlags;

// Trains as the flags say and prints the result, a JSON object, on standard output; with --evaluate prints the test_auc
// of that checkpoint instead.
void train_or_evaluate(const std::string& name, SparseModel model);

}  // namespace paceline::examples
