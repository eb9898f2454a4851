// Trains a language model of characters, a causal transformer or an LSTM. It predicts the next character of a text. The
// program runs alone or as a worker of a distributed job. The training loop is in common/training.cc.
#include <paceline/crc32c.h>
#include <paceline/memory_iterator.h>

#include <array>
#include <fstream>
#include <sstream>

#include "common/program.h"
#include "common/records.h"

DECLARE_string(train);
DECLARE_string(test);

DEFINE_string(text, "", "file with the text; its end is held out. In its place --train and --test may name records");
DEFINE_int32(vocabulary, 256, "how many tokens there are in records; 256: bytes");
DEFINE_double(held_out, 0.1, "share of the text that is not trained on; its loss is the validation loss, in nats");
DEFINE_string(network, "transformer", "transformer or lstm");
DEFINE_int32(width, 128, "numbers that stand for a character; the LSTM's states have as many");
DEFINE_int32(layers, 4, "layers of the network");
DEFINE_int32(heads, 4, "heads of each attention layer");
DEFINE_int32(context, 64, "characters that the network sees at once");
DEFINE_int32(stride, 0, "characters between the beginnings of two examples of an epoch; 0: as many as the context has");
DEFINE_bool(sparse_grad, false, "train the characters' vectors as a row-sparse table, of which a step moves its rows");
DEFINE_double(dropout, 0, "rate of dropout behind each layer");

namespace {

using namespace paceline;

// The text, with each character as a number. The characters that occur are numbered in the order of their codes.
struct Text {
  std::vector<std::int32_t> train, held_out;
  std::int64_t characters = 0;  // how many different ones occur
  std::uint32_t checksum = 0;   // of these characters, in order
};

Text read_text() {
  require(!FLAGS_text.empty(), "--text is missing: a file with the text to learn");
  require(FLAGS_held_out > 0 && FLAGS_held_out < 1, "--held_out is ", FLAGS_held_out,
          ", expected a share between 0 and 1");
  examples::require_readable("text", FLAGS_text);
  std::ifstream file(FLAGS_text, std::ios::binary);
  std::stringstream content;
  if (file.peek() != std::ifstream::traits_type::eof()) content << file.rdbuf();
  if (file.bad() || content.fail()) throw IoError("the text '" + FLAGS_text + "' cannot be read");
  const std::string text = content.str();
  if (text.starts_with("\x1f\x8b"))
    throw Corrupt("the text '" + FLAGS_text + "' is compressed by gzip; unpack it with gunzip first");
  std::array<std::int32_t, 256> numbers{};
  for (const char c : text) numbers[static_cast<unsigned char>(c)] = 1;
  Text result;
  std::string characters;
  for (std::size_t code = 0; code < numbers.size(); ++code) {
    if (numbers[code] == 0) continue;
    numbers[code] = static_cast<std::int32_t>(result.characters++);
    characters += static_cast<char>(code);
  }
  result.checksum = crc32c(characters);
  const auto begin = static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - FLAGS_held_out));
  for (std::size_t i = 0; i < text.size(); ++i)
    (i < begin ? result.train : result.held_out).push_back(numbers[static_cast<unsigned char>(text[i])]);
  for (const auto* part : {&result.train, &result.held_out})
    require(part->size() > static_cast<std::size_t>(FLAGS_context), "'", FLAGS_text, "' has ", text.size(),
            " characters, too few to train on and hold out more than a context of ", FLAGS_context, " each");
  return result;
}

// Examples of --context characters. The label of each character is the character that follows it.
std::unique_ptr<DataIterator> windows(const std::vector<std::int32_t>& text, std::int64_t stride,
                                      const MemoryIteratorOptions& options) {
  std::vector<std::int32_t> data, label;
  const auto size = static_cast<std::int64_t>(text.size()), context = static_cast<std::int64_t>(FLAGS_context);
  std::int64_t count = 0;
  for (std::int64_t begin = 0; begin + context < size; begin += stride, ++count) {
    data.insert(data.end(), text.begin() + begin, text.begin() + begin + context);
    label.insert(label.end(), text.begin() + begin + 1, text.begin() + begin + 1 + context);
  }
  return std::make_unique<MemoryIterator>(NDArray::from(data, {count, context}), NDArray::from(label, {count, context}),
                                          options);
}

const Catalog<nn::Module (*)(const nn::models::LanguageModel&)> kNetworks(
    "network", {{"transformer", nn::models::causal_transformer}, {"lstm", nn::models::lstm_language_model}});

// The number of tokens in a window of the records, as the manifest's decoder says.
std::int64_t window_of_records() {
  const std::string path = examples::records_manifest();
  std::int64_t window = 0;
  for (const ExampleArray& array : examples::arrays_of_records()) {
    const bool tokens = array.dtype == DType::kInt32 && array.shape.ndim() == 1;
    if (array.name == "label") window = tokens ? array.shape[0] : 0;
  }
  require(window > 0, "the records of '", path, "' are no windows of tokens; convert a text with to_rec --window");
  return window;
}

void train() {
  require(FLAGS_width >= 1 && FLAGS_layers >= 1 && FLAGS_heads >= 1 && FLAGS_context >= 1 && FLAGS_vocabulary >= 1,
          "--width, --layers, --heads, --context and --vocabulary are at least 1");
  require(FLAGS_stride >= 0, "--stride is ", FLAGS_stride, ", expected at least 1, or 0 for the context's length");
  const auto network = kNetworks.at(FLAGS_network);
  const bool records = !FLAGS_train.empty() || !FLAGS_test.empty();
  require(!records || FLAGS_text.empty(), "--text is a text, and --train and --test are records; leave one out");
  if (records)
    examples::refuse_without_effect({"context", "stride", "held_out"}, "on records");
  else if (!FLAGS_text.empty())
    examples::refuse_without_effect({"vocabulary", "window", "virtual_nodes", "global_batch", "skip_bad"},
                                    "with --text");
  const Text text = records ? Text{{}, {}, FLAGS_vocabulary} : read_text();
  examples::Task task;
  task.network = [&] {
    return network({text.characters, FLAGS_width, FLAGS_layers, FLAGS_heads, FLAGS_dropout, FLAGS_sparse_grad});
  };
  task.captured = !FLAGS_sparse_grad;
  task.tables = FLAGS_sparse_grad;
  task.tested = "validation";
  task.unit = "characters";
  task.units = records ? window_of_records() : FLAGS_context;
  task.description = {{"network", FLAGS_network}};
  task.notes = {{"network", FLAGS_network}, {records ? "tokens" : "context", std::to_string(task.units)}};
  if (FLAGS_network == "transformer") task.notes["heads"] = std::to_string(FLAGS_heads);
  if (records) {
    task.loss = nn::cross_entropy({.ignored_label = -1});  // fills up the labels of a short record
    examples::read_records(task);
  } else {
    task.notes["held_out"] = str(FLAGS_held_out);
    task.notes["characters"] = str(text.characters, " with the checksum ", text.checksum);
    task.data = [&](std::shared_ptr<Source> source) {
      return windows(text.train, FLAGS_stride > 0 ? FLAGS_stride : FLAGS_context,
                     {.batch = FLAGS_batch_size, .shuffle = FLAGS_seed, .source = std::move(source)});
    };
    task.test = [&] { return windows(text.held_out, FLAGS_context, {.batch = 64}); };
  }
  examples::train_or_evaluate(task);
}

}  // namespace

int main(int argc, char** argv) {
  const examples::Program program{
      .name = "char_lm",
      .usage =
          "char_lm --text FILE | --train MANIFEST [--network transformer|lstm] [flags]\n\n"
          "Learns to tell the next character of a text, alone or as a worker of a job:\n"
          "  char_lm --text shakespeare.txt\n"
          "  to_rec --window 65 --split train=0.9,test=0.1 text *.txt && "
          "char_lm --train text-train.manifest --test text-test.manifest\n"
          "  launch.py -n 2 -s 2 char_lm --kvstore dist_async --network lstm --text shakespeare.txt",
      .flags_of = {__FILE__, examples::kRecordFlags, examples::kTrainingFlags},
      .defaults = {{"optimizer", "adam"}, {"lr", "0.002"}, {"schedule", "cosine"}, {"batch_size", "32"}}};
  return examples::run(program, argc, argv, train);
}
