// Operators, the optimizer and files over arrays of more than 2^31 elements, whose places no 32-bit number names. Each
// check looks at places on both sides of 2^31; one that needs more memory than there is is left out with a message.

#include <gflags/gflags.h>
#include <paceline/ndarray.h>
#include <paceline/ops.h>
#include <paceline/updater.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../tools/flags.h"

DEFINE_string(only, "", "run the checks whose name holds this; empty: all");
DEFINE_double(most_gigabytes, 10, "leave out checks that need more");
DEFINE_int64(rows, 32769, "rows of 65536 elements that an array has; the default makes 2^31 + 65536");
DEFINE_string(folder, "", "where files are written, 2.2 GB; empty: the folder of temporary files");

namespace {

using namespace paceline;

constexpr char kUsage[] =
    "huge_arrays [--only TEXT] [flags]\n\n"
    "Runs operators, an optimizer and files over arrays of 2^31 + 65536 elements, and looks at places beyond 2^31.\n"
    "The last line is a JSON object. Ends with code 1 where a check fails.";

constexpr std::int64_t kColumns = 65536;
std::int64_t elements() { return FLAGS_rows * kColumns; }
Shape table() { return {FLAGS_rows, kColumns}; }
// Of the flat array: the first, two around 2^31 (or the middle of a smaller one), the last.
std::vector<std::int64_t> places() {
  const std::int64_t border = std::min(std::int64_t{1} << 31, elements() / 2);
  return {0, border - 1, border + 5, elements() - 1};
}

NDArray flat(const NDArray& x) { return x.view({x.size()}); }
double element(const NDArray& x, std::int64_t place) {
  return flat(x).narrow(0, place, place + 1).cast(DType::kFloat64).item<double>();
}
void set(const NDArray& x, std::int64_t place, double value) { flat(x).narrow(0, place, place + 1).fill(value); }

void expect(double found, double wanted, const std::string& what, double tolerance = 1e-5) {
  if (!(std::abs(found - wanted) <= tolerance * std::abs(wanted)))
    throw Error(str(what, " is ", found, ", expected ", wanted));
}
void expect_at(const NDArray& x, std::int64_t place, double wanted) {
  expect(element(x, place), wanted, str("element ", place), 1e-2);
}

// Ones, and 2, 3, 4 and 5 at the places above.
NDArray marked(DType dtype, const Shape& shape = table()) {
  const NDArray x = NDArray::full(shape, 1, dtype);
  double mark = 2;
  for (const std::int64_t place : places()) set(x, place, mark++);
  return x;
}
void expect_marks(const NDArray& x, const std::function<double(double)>& of) {
  double mark = 2;
  for (const std::int64_t place : places()) {
    expect_at(x, place, of(mark++));
    if (place > 0) expect_at(x, place - 1, of(1));
  }
}

template <class Action>
void expect_refused(const Action& action, const std::string& wanted) {
  try {
    action().wait();
  } catch (const InvalidArgument& error) {
    if (std::string(error.what()).find(wanted) != std::string::npos) return;
    throw;
  }
  throw Error("was not refused");
}

NDArray positions_of(const std::vector<std::int64_t>& numbers) {
  return NDArray::from(numbers, {static_cast<std::int64_t>(numbers.size())});
}

void elementwise_in_place() {
  const NDArray x = marked(DType::kBfloat16);
  multiply_(x, 3);
  maximum_(x, 4);
  expect_marks(x, [](double mark) { return std::max(3 * mark, 4.0); });
}

void elementwise_unary() {
  expect_marks(square(marked(DType::kFloat16)), [](double mark) { return mark * mark; });
}

void elementwise_of_a_view() {
  const NDArray y = add(marked(DType::kUint8).narrow(1, 1, kColumns), 7);
  double mark = 3;
  for (const std::int64_t place : {places()[1], places()[2], places()[3]})
    expect_at(y, place - place / kColumns - 1, 7 + mark++);
}

void broadcast() {
  const NDArray x = marked(DType::kUint8), row = NDArray::full({kColumns}, 10, DType::kUint8),
                column = NDArray::full({FLAGS_rows, 1}, 20, DType::kUint8);
  expect_marks(add(x, row), [](double mark) { return mark + 10; });
  expect_marks(add(x, column), [](double mark) { return mark + 20; });
  expect_marks(broadcast_to(column, table()), [](double) { return 20; });
}

void comparison_and_where() {
  const NDArray x = marked(DType::kUint8), above = greater(x, 1);
  expect_marks(above, [](double mark) { return mark > 1; });
  expect_marks(where(above, 9, x), [](double mark) { return mark > 1 ? 9 : 1; });
}

void reductions() {
  const NDArray x = marked(DType::kBfloat16);
  constexpr double kOfBfloat16 = 1.0 / 256;  // results are bfloat16, too
  expect(sum(x).item<float>(), static_cast<double>(elements() + 10), "sum", kOfBfloat16);
  expect(sum(sum(x, {1}).cast(DType::kFloat32)).item<float>(), static_cast<double>(elements()), "sum of row sums");
  expect(norm(x).item<float>(), std::sqrt(static_cast<double>(elements())), "norm", kOfBfloat16);
  expect(max(x).item<float>(), 5, "max");
  expect_at(sum(x, {1}), FLAGS_rows - 1, kColumns + 4);
  expect_at(max(x, {0}), kColumns - 1, 5);
  expect(argmax(flat(x)).item<std::int64_t>() - static_cast<double>(elements()), -1, "argmax - elements");
  set(x, places()[2], -1);
  if (const auto place = argmin(flat(x)).item<std::int64_t>(); place != places()[2])
    throw Error(str("argmin is ", place, ", expected ", places()[2]));
  expect_at(argmin(x, 0), places()[2] % kColumns, static_cast<double>(places()[2] / kColumns));
}

void casts() {
  expect_marks(marked(DType::kUint8).cast(DType::kBfloat16), [](double mark) { return mark; });
  expect_marks(marked(DType::kBfloat16).cast(DType::kInt8), [](double mark) { return mark; });
}

void slices_and_indices() {
  const NDArray x = flat(marked(DType::kUint8)), where = positions_of(places());
  const auto expect_picked = [](const NDArray& y) {
    for (int i = 0; i < 4; ++i) expect_at(y, i, 2 + i);
  };
  expect_picked(take(x, where));
  expect_picked(gather(x, where, 0));
  expect_picked(embedding(where, x.view({elements(), 1})));
  expect_at(slice(x, 0, elements() - 3), 2, 5);
  expect_at(scatter_add(x, where, NDArray::full({4}, 100, DType::kUint8), 0), places()[2], 104);
  expect_refused([&] { return take(x, positions_of({elements()})); }, "is outside");
}

void joins() {
  const std::int64_t half = FLAGS_rows / 2;
  const NDArray x = marked(DType::kUint8);
  const NDArray y = concat({x.narrow(0, half, FLAGS_rows), x.narrow(0, 0, half)}, 0);
  expect_at(y, (FLAGS_rows - half) * kColumns - 1, 5);
  expect_at(y, (FLAGS_rows - half) * kColumns, 2);
  expect_at(split(x, {half, FLAGS_rows - half}, 0)[1], (FLAGS_rows - half) * kColumns - 1, 5);
}

void copies() {
  const NDArray x = marked(DType::kUint8);
  expect_marks(x.clone(), [](double mark) { return mark; });
  expect_marks(x.to(Device("cpu:1")), [](double mark) { return mark; });
  expect_marks(flip(flip(x)), [](double mark) { return mark; });
  const NDArray turned = transpose(x).contiguous();
  expect_at(turned, turned.size() - 1, 5);
  expect_marks(transpose(turned).contiguous(), [](double mark) { return mark; });
  expect_at(pad(x, {{0, 1}, {0, 0}}, 8), elements(), 8);
  expect_at(repeat(x.narrow(0, FLAGS_rows - 1, FLAGS_rows), FLAGS_rows, 0), elements() - 1, 5);
}

void many_softmaxes() {
  const NDArray x = marked(DType::kBfloat16, {elements() / 64, 64}), y = softmax(x);
  expect_at(y, elements() - 1, std::exp(4) / (std::exp(4) + 63));
  expect_at(y, places()[2] - 1, 1 / (std::exp(3) + 63));
}

void many_norms() {
  const NDArray x = marked(DType::kBfloat16, {elements() / 64, 64}), ones = NDArray::full({64}, 1, DType::kBfloat16);
  const double mean = 1 + 4 / 64.0, variance = 16 / 64.0 - 16 / 4096.0;
  expect_at(layer_norm(x, ones, NDArray::zeros({64}, DType::kBfloat16)), elements() - 1,
            (5 - mean) / std::sqrt(variance + 1e-5));
}

void cross_entropy() {
  const NDArray x = marked(DType::kBfloat16, {elements() / 64, 64}),
                labels = NDArray::full({elements() / 64}, 63, DType::kInt32);
  const NDArray each = softmax_cross_entropy(x, labels, Reduction::kNone);
  expect_at(each, elements() / 64 - 1, -std::log(std::exp(4) / (std::exp(4) + 63)));
}

void random_numbers() {
  const NDArray x(table(), DType::kBfloat16);
  kernels::fill_uniform(x, 0, 1, 3);
  expect(mean(x.narrow(0, FLAGS_rows - 1, FLAGS_rows).cast(DType::kFloat32)).item<float>(), 0.5, "mean of uniform",
         1e-2);
  const double first = element(x, 0), behind = element(x, places()[2] - 5);
  if (first == behind) throw Error(str("element ", places()[2] - 5, " repeats the first, ", first));
  kernels::fill_normal(x, 4, 1, 3);
  expect(mean(x.narrow(0, FLAGS_rows - 1, FLAGS_rows).cast(DType::kFloat32)).item<float>(), 4, "mean of normal", 1e-2);
}

void dropouts() {
  const NDArray y = dropout(marked(DType::kBfloat16), 0.5, 7), last = y.narrow(0, FLAGS_rows - 1, FLAGS_rows);
  expect(mean(last.cast(DType::kFloat32)).item<float>(), 1, "mean behind dropout", 1e-2);
}

void cumulative_sum() {
  const NDArray y = cumsum(flat(marked(DType::kUint8)), 0);
  expect_at(y, elements() - 1, static_cast<double>((elements() + 10) % 256));
  expect_at(y, places()[2], static_cast<double>((places()[2] + 1 + 6) % 256));
}

void largest() {
  const Sorted top = top_k(flat(marked(DType::kUint8)), 3);
  for (int i = 0; i < 3; ++i) {
    expect_at(top.values, i, 5 - i);
    if (const auto place = top.positions.at(i).item<std::int64_t>(); place != places()[static_cast<std::size_t>(3 - i)])
      throw Error(str("position ", i, " is ", place));
  }
}

void pools() {
  const NDArray x = marked(DType::kBfloat16, {FLAGS_rows, 16, 64, 64});
  expect_at(average_pool(x, {.kernel = {2, 2}}), elements() / 4 - 1, 2);
  const NDArray y = max_pool(x, {.kernel = {2, 2}});
  expect_at(y, elements() / 4 - 1, 5);
  expect_at(y, elements() / 4 - 2, 1);
  const NDArray plane({1, 1, std::int64_t{1} << 15, std::int64_t{1} << 16}, DType::kBfloat16);  // never touched
  expect_refused([&] { return max_pool(plane, {.kernel = {2, 2}}); }, "planes of 2^31 elements");
}

void one_hots() {
  const NDArray y = one_hot(NDArray::full({FLAGS_rows}, 65535, DType::kInt32), kColumns, DType::kUint8);
  expect_at(y, elements() - 1, 1);
  expect_at(y, elements() - 2, 0);
}

void outer_product() {
  const NDArray a = NDArray::full({FLAGS_rows, 1}, 2), b = NDArray::full({1, kColumns}, 3);
  a.narrow(0, FLAGS_rows - 1, FLAGS_rows).fill(5);
  const NDArray y = matmul(a, b);
  expect_at(y, elements() - 1, 15);
  expect_at(y, elements() - kColumns - 1, 6);
  kernels::scale(2, y);
  expect_at(y, elements() - 1, 30);
}

void refused_products() {
  const NDArray x({1, std::int64_t{1} << 31}, DType::kBfloat16);  // never touched
  expect_refused([&] { return matmul(x, x, false, true); }, "sizes of 2^31");
  expect_refused([&] { return matmul(x, NDArray({1, 1}, DType::kBfloat16), true, false); }, "sizes of 2^31");
}

// One key. Its gradient is the same 64 MB over and over, so that the weights alone take memory.
void optimizer() {
  constexpr std::size_t kPiece = std::size_t{64} << 20;
  const auto bytes = static_cast<std::size_t>(elements()) * sizeof(float);
  const std::size_t mapped = (bytes + kPiece - 1) / kPiece * kPiece;
  const int file = memfd_create("gradient", 0);
  if (file < 0 || ftruncate(file, kPiece) != 0) throw Error("no memory for a gradient");
  auto* const gradient = static_cast<float*>(
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  void* const zeros = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (gradient == MAP_FAILED || zeros == MAP_FAILED) throw Error("no memory for a gradient");
  for (std::size_t begin = 0; begin < mapped; begin += kPiece)
    if (mmap(reinterpret_cast<char*>(gradient) + begin, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
             0) == MAP_FAILED)
      throw Error("no memory for a gradient");
  close(file);
  constexpr std::int64_t kPeriod = kPiece / sizeof(float);
  for (std::int64_t i = 0; i < kPeriod; ++i) gradient[i] = static_cast<float>(i % 1000);
  const auto updater = make_updater();
  updater->set_rules(optim::SGD{.lr = 0.5}, "none", {});
  const int slice = updater->add_slice({"key", 0, elements(), DType::kFloat32, SliceInfo::Kind::kGradient}, zeros);
  updater->apply(slice, {.worker = 0, .version = 0, .examples = 1, .gradient = gradient});
  updater->change(slice, [](void* weight) {
    for (const std::int64_t place : places())
      expect(static_cast<float*>(weight)[place], -0.5 * static_cast<double>(place % kPeriod % 1000),
             str("weight ", place));
  });
  munmap(gradient, mapped);
  munmap(zeros, bytes);
}

void files() {
  const std::filesystem::path folder =
      FLAGS_folder.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(FLAGS_folder);
  const std::string path = folder / ("huge_arrays." + std::to_string(getpid()));
  const std::shared_ptr<void> removed(nullptr, [&](void*) { std::filesystem::remove(path); });
  {
    const NDArray x = marked(DType::kUint8);
    save_params(path, {{"x", x}});
  }
  expect_marks(load_params(path)[0].second, [](double mark) { return mark; });
  {
    const NDArray x = marked(DType::kUint8);
    save_safetensors(path, {{"x", x}});
  }
  expect_marks(load_safetensors(path)[0].second, [](double mark) { return mark; });
}

struct Check {
  const char* name;
  double bytes_each;  // memory, in bytes for each element
  void (*run)();
};
constexpr Check kChecks[] = {
    {"element-wise in place, bfloat16", 2, elementwise_in_place},
    {"element-wise, float16", 4, elementwise_unary},
    {"element-wise of a view, uint8", 2, elementwise_of_a_view},
    {"broadcast sums, uint8", 3, broadcast},
    {"comparison and where, uint8", 3, comparison_and_where},
    {"sum, norm, max, argmax, argmin, bfloat16", 2, reductions},
    {"casts", 3, casts},
    {"take, gather, embedding, slice, scatter_add, uint8", 2, slices_and_indices},
    {"concat and split, uint8", 3, joins},
    {"clone, to, flip, transpose, pad, repeat, uint8", 3, copies},
    {"softmax of 2^25 rows, bfloat16", 4, many_softmaxes},
    {"layer_norm of 2^25 rows, bfloat16", 4.3, many_norms},
    {"softmax_cross_entropy of 2^25 rows, bfloat16", 4.5, cross_entropy},
    {"random numbers, bfloat16", 2, random_numbers},
    {"dropout, bfloat16", 4, dropouts},
    {"cumsum, uint8", 2, cumulative_sum},
    {"top_k of one line, uint8", 1, largest},
    {"average and max pool, bfloat16", 3.6, pools},
    {"one_hot, uint8", 1, one_hots},
    {"outer product and scale, float32", 4, outer_product},
    {"products that BLAS cannot do are refused", 0, refused_products},
    {"sgd of one key, float32", 4.1, optimizer},
    {"params and safetensors, uint8", 2, files},
};

double available_gigabytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    if (name != "MemAvailable:") continue;
    double kilobytes = 0;
    file >> kilobytes;
    return kilobytes * 1024 / 1e9;
  }
  return 0;
}

int run() {
  require(FLAGS_rows >= 64, "--rows is ", FLAGS_rows, ", expected at least 64");
  int passed = 0, failed = 0, left_out = 0;
  for (const Check& check : kChecks) {
    if (std::string(check.name).find(FLAGS_only) == std::string::npos) continue;
    const double needed = check.bytes_each * static_cast<double>(elements()) / 1e9 + 0.3;
    std::cout << check.name << ": " << std::flush;
    if (needed > FLAGS_most_gigabytes || needed + 1 > available_gigabytes()) {
      std::cout << "left out, needs " << needed << " GB" << std::endl;
      ++left_out;
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      check.run();
      ++passed;
      std::cout << "right";
    } catch (const std::exception& error) {
      ++failed;
      std::cout << "WRONG: " << error.what();
    }
    std::printf(", %.1f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::fflush(stdout);
  }
  std::cout << nlohmann::json{{"elements", elements()}, {"right", passed}, {"wrong", failed}, {"left_out", left_out}}
            << std::endl;
  return failed > 0;
}

}  // namespace

int main(int argc, char** argv) {
  paceline::tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  return paceline::tools::run_main("huge_arrays", [] { return run(); });
}
