#pragma once
// Trains a model of sparse examples. Its weights are rows of tables in the store. Where the mode holds tables, only the
// rows of a batch's features are transferred. The model is evaluated by the area under the ROC curve.

#include <paceline/kvstore.h>
#include <paceline/ops.h>

#include <functional>
#include <string>
#include <vector>

namespace paceline::examples {

// `score` gives the log-odds (examples, 1) of a batch. `examples` is a matrix with a column for each feature that
// occurs in the batch. `rows` has one array for each of `tables`, in their order. Row i of each array belongs to column
// i. The last feature is 1 in every example. A table has one row for each feature; the number of rows in `tables` is
// not used.
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
