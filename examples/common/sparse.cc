#include "sparse.h"

#include <paceline/libsvm.h>
#include <paceline/nn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "program.h"

DEFINE_string(train, "", "training set, text in LibSVM's format; labels are 0 and 1, or -1 and +1");
DEFINE_string(test, "", "test set, in that format; without it nothing is evaluated, and test_auc is null");
DEFINE_int64(features, 0, "how many features there are; 0: as the largest number in the training set says");

namespace paceline::examples {

const char* const kSparseFlags = __FILE__;

namespace {

using nlohmann::json;

// A batch whose columns are the features that occur in it, and one that is 1 everywhere.
struct LocalBatch {
  NDArray ids;  // the table's row of each column
  Csr examples;
};

LocalBatch localise(const SparseRows& rows) {
  const auto starts = rows.starts.to_vector<std::int64_t>(), columns = rows.columns.to_vector<std::int64_t>();
  const auto values = rows.values.to_vector<float>();
  std::vector<std::int64_t> ids = columns;
  ids.push_back(rows.shape[1]);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto count = static_cast<std::int64_t>(ids.size());

  std::vector<std::int64_t> local_starts{0}, local_columns;
  std::vector<float> local_values;
  for (std::size_t row = 0; row + 1 < starts.size(); ++row) {
    for (auto i = static_cast<std::size_t>(starts[row]); i < static_cast<std::size_t>(starts[row + 1]); ++i) {
      local_columns.push_back(std::lower_bound(ids.begin(), ids.end(), columns[i]) - ids.begin());
      local_values.push_back(values[i]);
    }
    local_columns.push_back(count - 1);
    local_values.push_back(1);
    local_starts.push_back(static_cast<std::int64_t>(local_columns.size()));
  }
  const auto elements = static_cast<std::int64_t>(local_columns.size());
  const auto examples = static_cast<std::int64_t>(local_starts.size());
  return {NDArray::from(ids, {count}),
          {NDArray::from(local_starts, {examples}), NDArray::from(local_columns, {elements}),
           NDArray::from(local_values, {elements}), Shape{rows.shape[0], count}}};
}

class Run {
 public:
  Run(const std::string& name, SparseModel model)
      : name_(name),
        model_(std::move(model)),
        kv_(store_of_flags(true)),
        training_(load(FLAGS_train, FLAGS_features)),
        features_(training_.data.shape[1]),
        data_(training_, {.batch = FLAGS_batch_size, .shuffle = FLAGS_seed, .source = nn::shared_source(kv_)}) {
    if (!FLAGS_test.empty()) test_ = load(FLAGS_test, features_);
    for (TableSpec& table : model_.tables) {
      table.rows = features_ + 1;
      kv_->init_table(table);
    }
    kv_->set_optimizer(optimizer_of_flags(data_.size()));
  }

  void train() {
    kv_->barrier();
    const auto start = Clock::now();
    double auc = 0, evaluating = 0;
    for (std::int64_t epoch = 0; epoch < FLAGS_epochs; ++epoch) {
      train_epoch(epoch);
      kv_->barrier();
      if (!FLAGS_test.empty() && kv_->exchange().leads()) {
        const auto before = Clock::now();
        auc = evaluate();
        evaluating += seconds_since(before);
        char text[32];
        std::snprintf(text, sizeof text, "%.4f", auc);
        show_result(str("epoch ", epoch + 1, " of ", FLAGS_epochs, ": test auc ", text));
      }
      kv_->barrier();
    }
    const double seconds = seconds_since(start) - evaluating;
    const bool leads = kv_->exchange().leads();
    kv_->barrier();
    const StoreReport report = kv_->report();
    kv_->finish();
    if (!leads) return;
    Histogram delays;
    for (const Histogram& worker : report.row_delays) delays.merge(worker);
    std::cout << json{{"model", name_},
                      {"mode", FLAGS_kvstore},
                      {"workers", kv_->size()},
                      {"servers", kv_->exchange().server_count()},
                      {"epochs", FLAGS_epochs},
                      {"test_auc", FLAGS_test.empty() ? json() : json(auc)},
                      {"train_seconds", seconds},
                      {"examples_per_second", static_cast<double>(data_.size() * FLAGS_epochs) / seconds},
                      {"rows_held", report.rows_held},
                      {"row_delay_mean", delays.mean()}}
              << std::endl;
  }

 private:
  // Labels as the loss wants them: -1 is 0.
  static SparseExamples load(const std::string& path, std::int64_t features) {
    SparseExamples examples = load_libsvm(path, {.features = features});
    std::vector<float> labels = examples.label.to_vector<float>();
    for (std::size_t i = 0; i < labels.size(); ++i) {
      require(labels[i] == 0 || labels[i] == 1 || labels[i] == -1, "'", path, "': the label of example ", i + 1, " is ",
              labels[i], "; a set of two classes has labels 0 and 1, or -1 and +1");
      labels[i] = std::max(labels[i], 0.0F);
    }
    examples.label = NDArray::from(labels, examples.label.shape());
    return examples;
  }

  std::vector<NDArray> pull(const LocalBatch& batch) {
    std::vector<NDArray> rows;
    std::vector<RowPull> pulls;
    for (const TableSpec& table : model_.tables) {
      rows.emplace_back(Shape{batch.ids.size(), table.width});
      pulls.push_back({table.name, batch.ids, rows.back()});
    }
    kv_->pull_rows(pulls);
    return rows;
  }

  void train_epoch(std::int64_t epoch) {
    data_.start(epoch);
    SparseBatch batch;
    do {
      while (data_.next(batch)) {
        const NDArray loss = step(batch);
        if (++steps_ % FLAGS_log_every == 0) {
          char text[96];
          std::snprintf(text, sizeof text, "epoch %lld  step %lld  loss %.4f", static_cast<long long>(epoch + 1),
                        static_cast<long long>(steps_), loss.item<double>());
          show_progress(text);
        }
      }
      confirm();
    } while (data_.take_over());
  }

  NDArray step(const SparseBatch& batch) {
    LocalBatch local = localise(batch.data);
    const std::vector<NDArray> rows = pull(local);
    confirm_when(rows);
    Tape tape;
    std::vector<RowPush> pushes;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      pushes.push_back({model_.tables[i].name, local.ids, NDArray(rows[i].shape())});
      tape.watch(rows[i], pushes.back().gradients);
    }
    const NDArray loss =
        sigmoid_cross_entropy(model_.score(local.examples, rows), batch.label.view({batch.examples, 1}));
    tape.backward(loss);
    kv_->push_rows(pushes, batch.examples);
    kv_->step_end(batch.examples);
    pushed_ = batch;
    last_ = std::move(local);
    return loss;
  }

  // A pull is answered after the pushes before it were applied, so the batch of the last push can be committed.
  void confirm_when(const std::vector<NDArray>& pulled) {
    for (const NDArray& rows : pulled) rows.wait();
    if (pushed_.examples > 0) data_.commit(pushed_);
    pushed_ = {};
  }
  void confirm() {
    if (pushed_.examples > 0) confirm_when(pull(last_));
  }

  double evaluate() {
    const RecordingScope no_recording(nullptr);
    SparseIterator data(test_, {.batch = 2000});
    std::vector<NDArray> scores, labels;
    data.start(0);
    for (SparseBatch batch; data.next(batch);) {
      const LocalBatch local = localise(batch.data);
      scores.push_back(model_.score(local.examples, pull(local)));
      labels.push_back(batch.label);
    }
    return nn::roc_auc(concat(scores, 0), concat(labels, 0));
  }

  std::string name_;
  SparseModel model_;
  std::shared_ptr<KVStore> kv_;
  SparseExamples training_, test_;
  std::int64_t features_, steps_ = 0;
  SparseIterator data_;
  SparseBatch pushed_;  // not yet known to be applied
  LocalBatch last_;
};

}  // namespace

void train(const std::string& name, SparseModel model) {
  require(!FLAGS_train.empty(), "--train is missing: a file in LibSVM's format");
  require(FLAGS_features >= 0, "--features is ", FLAGS_features, ", expected none negative");
  Run(name, std::move(model)).train();
}

}  // namespace paceline::examples
