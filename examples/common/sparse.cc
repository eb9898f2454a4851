#include "sparse.h"

#include <paceline/libsvm.h>
#include <paceline/nn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

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

// Labels as the loss wants them: -1 is 0.
SparseExamples load(const std::string& path, std::int64_t features) {
  SparseExamples examples = load_libsvm(path, {.features = features});
  std::vector<float> labels = examples.label.to_vector<float>();
  require(!labels.empty(), "'", path, "' holds no examples");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    require(labels[i] == 0 || labels[i] == 1 || labels[i] == -1, "'", path, "': the label of example ", i + 1, " is ",
            labels[i], "; a set of two classes has labels 0 and 1, or -1 and +1");
    labels[i] = std::max(labels[i], 0.0F);
  }
  examples.label = NDArray::from(labels, examples.label.shape());
  return examples;
}

SparseExamples load_test_set(std::int64_t features) {
  SparseExamples test = load(FLAGS_test, features);
  const auto [least, largest] = std::ranges::minmax(test.label.to_vector<float>());
  require(least < largest, "'", FLAGS_test, "' holds examples of one class only, expected some of both");
  return test;
}

// A model's rows in a store: in its tables or, in modes without, in keys that every worker has whole.
class Weights {
 public:
  Weights(std::shared_ptr<KVStore> store, std::vector<TableSpec> tables, std::int64_t features)
      : store_(std::move(store)), tables_(std::move(tables)) {
    for (TableSpec& table : tables_) table.rows = features + 1;
    if (store_->holds_tables()) {
      for (const TableSpec& table : tables_) store_->init_table(table);
      return;
    }
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(features) + 1);
    std::iota(numbers.begin(), numbers.end(), 0);
    const std::vector<NDArray> first =
        Weights(KVStore::create("local"), tables_, features).rows(NDArray::from(numbers, {features + 1}));
    std::vector<InitValue> values;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      values.push_back({tables_[i].name, first[i]});
      whole_.push_back({tables_[i].name, first[i]});
    }
    store_->init(values);
  }

  // As they are: whole[i] are the rows of tables[i].
  Weights(std::vector<TableSpec> tables, std::vector<PullItem> whole)
      : tables_(std::move(tables)), whole_(std::move(whole)) {}

  // Of each table, those of `ids`.
  std::vector<NDArray> rows(const NDArray& ids) const {
    std::vector<NDArray> rows;
    std::vector<RowPull> pulls;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      if (!whole_.empty()) {
        rows.push_back(take(whole_[i].out, ids));
        continue;
      }
      rows.emplace_back(Shape{ids.size(), tables_[i].width});
      pulls.push_back({tables_[i].name, ids, rows.back()});
    }
    if (!pulls.empty()) store_->pull_rows(pulls);
    return rows;
  }

  void push(const NDArray& ids, const std::vector<NDArray>& gradients, std::int64_t examples) {
    std::vector<RowPush> rows;
    std::vector<PushItem> keys;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      if (whole_.empty()) {
        rows.push_back({tables_[i].name, ids, gradients[i]});
        continue;
      }
      const Shape shape{tables_[i].rows, tables_[i].width};
      keys.push_back({tables_[i].name, NDArray::zeros(shape)});
      scatter_add(keys.back().gradient, RowSparse{ids, gradients[i], shape});
    }
    if (whole_.empty())
      store_->push_rows(rows, examples);
    else
      store_->push_pull(keys, whole_, examples);
  }

  // What the store has become otherwise: loaded, or moved by others.
  void refresh() {
    for (const PullItem& key : whole_) store_->pull(key.key, key.out);
  }

 private:
  std::shared_ptr<KVStore> store_;
  std::vector<TableSpec> tables_;
  std::vector<PullItem> whole_;
};

double evaluate(const Weights& weights, const SparseModel& model, const SparseExamples& test) {
  const RecordingScope no_recording(nullptr);
  SparseIterator data(test, {.batch = 2000});
  std::vector<NDArray> scores, labels;
  data.start(0);
  for (SparseBatch batch; data.next(batch);) {
    const LocalBatch local = localise(batch.data);
    scores.push_back(model.score(local.examples, weights.rows(local.ids)));
    labels.push_back(batch.label);
  }
  return nn::roc_auc(concat(scores, 0), concat(labels, 0));
}

// Of a checkpoint, whatever mode and optimizer wrote it.
double evaluate(SparseModel& model, const std::string& checkpoint) {
  StoreState state = nn::load_store_state(checkpoint);
  std::vector<PullItem> whole;
  for (const TableSpec& table : model.tables)
    for (const auto& [name, array] : state.arrays)
      if (name == table.name) whole.push_back({name, array});
  if (whole.size() == model.tables.size())
    return evaluate(Weights(model.tables, whole), model, load_test_set(whole[0].out.size(0) - 1));
  std::erase_if(state.arrays, [](const auto& array) {
    const std::string& name = array.first;
    return !name.ends_with(":ids") && !name.ends_with(":versions") && !name.ends_with(":weight");
  });
  // The row of the feature that every example has is the last one.
  std::int64_t features = 0;
  for (const auto& [name, array] : state.arrays)
    if (name == "table:" + model.tables[0].name + ":ids" && array.size() > 0)
      features = max(array).item<std::int64_t>();
  require(features > 0, "checkpoint '", checkpoint, "' holds no '", model.tables[0].name,
          "'; was it written by another program?");
  const std::shared_ptr<KVStore> store = KVStore::create("local");
  const Weights weights(store, model.tables, features);
  store->load(state);
  return evaluate(weights, model, load_test_set(features));
}

class Run {
 public:
  Run(const std::string& name, SparseModel model)
      : name_(name),
        model_(std::move(model)),
        kv_(store_of_flags()),
        training_(load(FLAGS_train, FLAGS_features)),
        features_(training_.data.shape[1]),
        data_(training_, {.batch = FLAGS_batch_size, .shuffle = FLAGS_seed, .source = source_of_flags(kv_)}) {
    if (!FLAGS_test.empty()) test_ = load_test_set(features_);
    weights_.emplace(kv_, model_.tables, features_);
    progress_.emplace(kv_, optimizer_of_flags(data_.size()), notes_);
  }

  void train() {
    std::string checkpoint;
    // With other features, the last row would be another one's.
    const std::string path = nn::checkpoint_path(FLAGS_checkpoint);
    const auto check = [&](const nn::Notes& trained) { require_as_trained(path, trained, notes_); };
    if (!FLAGS_checkpoint.empty() && progress_->resume_if_present(FLAGS_checkpoint, check)) checkpoint = path;
    progress_->load();
    weights_->refresh();
    const std::int64_t first_epoch = progress_->epoch(), before = examples_done(*kv_, first_epoch);
    kv_->barrier();
    const auto start = Clock::now();
    if (first_epoch >= FLAGS_epochs && kv_->backend().leads()) show_nothing_left(checkpoint, first_epoch);
    while (progress_->epoch() < FLAGS_epochs && !enough_steps(steps_)) {
      train_epoch();
      if (!enough_steps(steps_)) progress_->finish_epoch();
      if (!FLAGS_checkpoint.empty()) checkpoint = progress_->checkpoint(FLAGS_checkpoint);
      if (!FLAGS_test.empty() && kv_->backend().leads()) evaluate();
      kv_->barrier();
      weights_->refresh();  // rounds may have closed without this worker
    }
    const double seconds = seconds_since(start) - evaluating_;
    const bool leads = kv_->backend().leads();
    kv_->barrier();
    if (leads && !FLAGS_test.empty() && evaluated_ != progress_->epoch()) evaluate();
    const StoreReport report = kv_->report();
    kv_->finish();
    if (!leads) return;
    Histogram delays;
    for (const Histogram& worker : report.row_delays) delays.merge(worker);
    const std::int64_t trained = data_.size() * (progress_->epoch() - first_epoch) - before;
    const auto examples = static_cast<double>(FLAGS_max_steps > 0 ? examples_ : std::max(trained, std::int64_t{0}));
    std::cout << json{{"model", name_},
                      {"mode", FLAGS_kvstore},
                      {"workers", kv_->size()},
                      {"servers", kv_->backend().server_count()},
                      {"epochs", progress_->epoch()},
                      {"test_auc", FLAGS_test.empty() ? json() : json(auc_)},
                      {"train_seconds", seconds},
                      {"examples_per_second", examples / seconds},
                      {"rows_held", report.rows_held},
                      {"row_delay_mean", delays.mean()},
                      {"checkpoint", checkpoint}}
              << '\n'
              << std::flush;
  }

 private:
  void train_epoch() {
    const std::int64_t epoch = progress_->epoch();
    data_.start(epoch, progress_->begin_epoch(data_.order()));
    SparseBatch batch;
    do {
      while (data_.next(batch)) {
        const NDArray loss = step(batch);
        progress_->count_step();
        ++steps_;
        examples_ += batch.examples;
        if (progress_->steps() % FLAGS_log_every == 0) {
          char text[96];
          std::snprintf(text, sizeof text, "epoch %lld  step %lld  loss %.4f", static_cast<long long>(epoch + 1),
                        static_cast<long long>(progress_->steps()), loss.item<double>());
          show_progress(text);
        }
        if (enough_steps(steps_)) {
          confirm();
          return show_result(str("ends after ", steps_, " steps, as --max_steps says"));
        }
      }
      confirm();
    } while (takes_over());
  }

  // Rounds close without a worker that waits here. Its next gradient must be of the weights that they made.
  bool takes_over() {
    if (!data_.take_over()) return false;
    weights_->refresh();
    return true;
  }

  NDArray step(const SparseBatch& batch) {
    LocalBatch local = localise(batch.data);
    const std::vector<NDArray> rows = weights_->rows(local.ids);
    confirm_when(rows);
    Tape tape;
    std::vector<NDArray> gradients;
    for (const NDArray& row : rows) {
      gradients.emplace_back(row.shape());
      tape.watch(row, gradients.back());
    }
    const NDArray loss =
        sigmoid_cross_entropy(model_.score(local.examples, rows), batch.label.view({batch.examples, 1}));
    tape.backward(loss);
    weights_->push(local.ids, gradients, batch.examples);
    kv_->step_end();
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
    if (pushed_.examples > 0) confirm_when(weights_->rows(last_.ids));
  }

  void evaluate() {
    const auto before = Clock::now();
    weights_->refresh();
    auc_ = examples::evaluate(*weights_, model_, test_);
    evaluated_ = progress_->epoch();
    evaluating_ += seconds_since(before);
    char text[32];
    std::snprintf(text, sizeof text, "%.4f", auc_);
    show_result(str("epoch ", evaluated_, " of ", FLAGS_epochs, ": test auc ", text));
  }

  std::string name_;
  SparseModel model_;
  std::shared_ptr<KVStore> kv_;
  SparseExamples training_, test_;
  std::int64_t features_;
  const nn::Notes notes_{{"features", std::to_string(features_)}};
  SparseIterator data_;
  std::optional<Weights> weights_;
  std::optional<nn::Progress> progress_;
  double auc_ = 0, evaluating_ = 0;
  std::int64_t evaluated_ = -1, steps_ = 0, examples_ = 0;  // of this run
  SparseBatch pushed_;                                      // not yet known to be applied
  LocalBatch last_;
};

}  // namespace

void train_or_evaluate(const std::string& name, SparseModel model) {
  require(FLAGS_evaluate.empty() || !FLAGS_test.empty(), "--evaluate needs --test, the file to evaluate on");
  require(!FLAGS_evaluate.empty() || !FLAGS_train.empty(), "--train is missing: a file in LibSVM's format");
  refuse_without_effect({"device"}, "with " + name);
  require(FLAGS_features >= 0, "--features is ", FLAGS_features, ", expected none negative");
  if (FLAGS_evaluate.empty()) require_readable("train", FLAGS_train);
  if (!FLAGS_test.empty()) require_readable("test", FLAGS_test);
  if (FLAGS_evaluate.empty()) {
    require_checkpoint_folder();
    return Run(name, std::move(model)).train();
  }
  require_checkpoint();
  if (FLAGS_features > 0)
    require_as_trained(FLAGS_evaluate, nn::checkpoint_notes(FLAGS_evaluate),
                       {{"features", std::to_string(FLAGS_features)}});
  std::cout << json{{"checkpoint", FLAGS_evaluate}, {"test_auc", evaluate(model, FLAGS_evaluate)}} << '\n'
            << std::flush;
}

}  // namespace paceline::examples
