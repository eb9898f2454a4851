#pragma once
// Other ways to make an epoch: records drawn by weights, data sets mixed by weights, batches of one key.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// How an epoch is made of records. Without weights, groups and a mixture, each record comes once, in the order of the
// seed. The iterator needs a seed (`shuffle`) for weights. Which record stands at a position depends on seed and epoch,
// and not on the number of workers. With groups it also depends on the size of a batch.
struct Sampling {
  // One for each record, 0 or more: each position draws a record in proportion to its weight, with replacement. So some
  // records come several times in an epoch, and others not at all. Takes 12 bytes a record, and 36 while it is made.
  std::vector<double> weights = {};
  // The key of each record, for instance a length or a number of a class: a full batch holds records of one key. Each
  // record comes once. What is left of each key, too little for a batch, comes last, in the order of the keys. Batches
  // of these records may hold several keys. Takes 8 bytes a record, and 24 while it is made.
  std::vector<std::int64_t> groups = {};
  // Positions of an epoch that is drawn by weights or mixed; 0: as many as there are records.
  std::int64_t epoch_size = 0;
};

// Weights by which each class is drawn equally often, from the class of each record.
std::vector<double> balanced_weights(const std::vector<std::int64_t>& classes);

// Reads every record of a data set once, to learn weights or groups for instance. `visit` gets the number of a record
// in the data set and its bytes, in up to `threads` threads, each with a shard. Shards of other hosts stay in the cache
// for the loader, as far as it has room for them. Throws what `visit` throws, and as Manifest::load() and RecordFile
// do.
void visit_records(const std::string& manifest,
                   const std::function<void(std::int64_t number, std::string_view record)>& visit, int threads = 1);

// The class of each record of a data set of images with one class number each. Throws InvalidArgument for other sets.
std::vector<std::int64_t> read_classes(const std::string& manifest, int threads = 1);

// A data set of a mixture. Its share of each epoch is its weight over the sum of all weights.
struct MixedDataSet {
  std::string manifest;  // its path
  double weight = 1;     // more than 0
};

}  // namespace paceline
