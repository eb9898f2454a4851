// PowerSGD (Vogels et al. 2019): a slice, seen as a matrix M of the key's rows, travels as P Q' of low `rank`:
// P = orth(M Q), Q = M' P, where Q is that of the last push. One half of a power iteration each push, so that a slowly
// changing gradient is followed closely. All-reduce needs a second round, in which the workers agree on P; servers add
// up what each worker sends, so it takes none here, and works in every mode. Vectors, and the elements behind the last
// whole row, travel raw.
#include <paceline/random.h>

#include <vector>

#include "compression/encoded.h"

namespace paceline {
namespace {

constexpr std::size_t kHeader = 16;  // rows, columns, rank: u32; 4 bytes unused
constexpr std::int64_t kMostRank = 64;

struct Form {
  std::int64_t rows = 0, columns = 0, rank = 0;

  std::int64_t elements() const { return rows * columns; }
  std::int64_t factors() const { return rank * (rows + columns); }
  std::size_t bytes(std::int64_t count) const {
    return kHeader + sizeof(float) * static_cast<std::size_t>(factors() + count - elements());
  }
  static Form read(const std::byte* bytes) {
    return {encoded::load<std::uint32_t>(bytes), encoded::load<std::uint32_t>(bytes + 4),
            encoded::load<std::uint32_t>(bytes + 8)};
  }
};

// Independent partial sums, in an order that is always the same.
float dot(const float* a, const float* b, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

void add(float scale, const float* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += scale * from[i];
}

// Gram and Schmidt, twice: what the first pass leaves of dependent rows is rounding errors, not yet orthogonal.
void orthonormalise(std::vector<float>* p, std::size_t rank, std::size_t length) {
  for (std::size_t k = 0; k < rank; ++k) {
    float* const row = p->data() + k * length;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other < k; ++other) {
        const float* const before = p->data() + other * length;
        add(-dot(before, row, length), before, row, length);
      }
      const float norm = std::sqrt(dot(row, row, length));
      for (std::size_t i = 0; i < length; ++i) row[i] = norm > 0 ? row[i] / norm : 0;
    }
  }
}

class PowerSgd final : public Codec {
 public:
  explicit PowerSgd(std::int64_t rank) : rank_(rank) {}

  std::size_t max_bytes(std::int64_t count) const override { return Form{}.bytes(count); }

  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                     std::byte* out) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    const Form form = form_of(count, context.columns);
    encoded::store(out, static_cast<std::uint32_t>(form.rows));
    encoded::store(out + 4, static_cast<std::uint32_t>(form.columns));
    encoded::store(out + 8, static_cast<std::uint32_t>(form.rank));
    encoded::store(out + 12, std::uint32_t{0});
    std::byte* to = out + kHeader;
    if (form.rank > 0) {
      const auto rows = static_cast<std::size_t>(form.rows), columns = static_cast<std::size_t>(form.columns),
                 rank = static_cast<std::size_t>(form.rank);
      float* const q = state.front();  // rank x columns
      if (std::all_of(q, q + rank * columns, [](float value) { return value == 0; }))
        for (std::size_t i = 0; i < rank * columns; ++i) q[i] = random_uniform(context.slice, i) - 0.5f;
      std::vector<float> p(rank * rows);  // rank x rows
      for (std::size_t k = 0; k < rank; ++k)
        for (std::size_t i = 0; i < rows; ++i)
          p[k * rows + i] = dot(values.data() + i * columns, q + k * columns, columns);
      orthonormalise(&p, rank, rows);
      std::fill_n(q, rank * columns, 0.0f);
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t k = 0; k < rank; ++k)
          add(p[k * rows + i], values.data() + i * columns, q + k * columns, columns);
      std::memcpy(to, p.data(), p.size() * sizeof(float));
      to += p.size() * sizeof(float);
      std::memcpy(to, q, rank * columns * sizeof(float));
      to += rank * columns * sizeof(float);
      // What is no number would stay for ever.
      if (!std::all_of(q, q + rank * columns, [](float value) { return std::isfinite(value); }))
        std::fill_n(q, rank * columns, 0.0f);
    }
    const auto tail = values.subspan(static_cast<std::size_t>(form.elements()));
    if (!tail.empty()) std::memcpy(to, tail.data(), tail.size_bytes());
    return form.bytes(count);
  }

  void check(EncodedBytes bytes, std::int64_t count) const override {
    if (bytes.size() < kHeader) throw Corrupt(str("a gradient encoded as power_sgd has ", bytes.size(), " bytes"));
    const Form form = Form::read(bytes.data());
    const bool none = form.rows == 0 && form.columns == 0 && form.rank == 0;
    const bool some = form.rows > 0 && form.columns > 0 && form.rank > 0 && form.rank <= kMostRank &&
                      form.columns <= count && form.rows <= count / form.columns;
    if (!none && !some)
      throw Corrupt(str("a gradient of ", count, " elements encoded as power_sgd is ", form.rows, " x ", form.columns,
                        " of rank ", form.rank));
    encoded::expect_bytes("power_sgd", bytes, form.bytes(count), count);
  }

  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    const Form form = Form::read(bytes.data());
    const auto factor = [from = bytes.data() + kHeader](std::int64_t i) {
      return encoded::load<float>(from + sizeof(float) * static_cast<std::size_t>(i));
    };
    const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
    const std::int64_t matrix_end = std::min(end, form.elements());
    float* to = out.data();
    while (begin < matrix_end) {
      const std::int64_t row = begin / form.columns, column = begin % form.columns;
      const std::int64_t length = std::min(form.columns - column, matrix_end - begin);
      std::fill_n(to, length, 0.0f);
      for (std::int64_t k = 0; k < form.rank; ++k) {
        const float p = factor(k * form.rows + row);
        const std::int64_t q = form.rank * form.rows + k * form.columns + column;
        for (std::int64_t i = 0; i < length; ++i) to[i] += p * factor(q + i);
      }
      begin += length;
      to += length;
    }
    for (; begin < end; ++begin) *to++ = factor(form.factors() + begin - form.elements());
  }

  std::vector<std::string> state_names() const override { return {"query"}; }

 private:
  // Raw where the factors would not be half the size.
  Form form_of(std::int64_t count, std::int64_t columns) const {
    if (columns <= 1) return {};
    const Form form{count / columns, columns, std::min({rank_, columns, count / columns})};
    return form.rank > 0 && 2 * form.factors() <= form.elements() ? form : Form{};
  }

  const std::int64_t rank_;
};

}  // namespace

std::unique_ptr<Codec> make_power_sgd_compression(const Options& options) {
  const auto rank = options.get("rank", std::int64_t{2});
  require(rank >= 1 && rank <= kMostRank, "rank is ", rank, ", expected 1 to ", kMostRank);
  return std::make_unique<PowerSgd>(rank);
}

}  // namespace paceline
