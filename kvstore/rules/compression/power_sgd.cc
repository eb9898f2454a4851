// PowerSGD (Vogels et al. 2019). A slice is a matrix M of rows of the key. M travels as a product P Q' of low `rank`,
// where ' means transposed. P is M Q with orthonormalised columns, where Q is that of the last push. The new Q is M' P.
// Each push is one step of a power iteration, so the product follows a slowly changing gradient closely. Vectors, and
// the elements after the last whole row, travel raw.
//
// rounds=2 is the method of the paper, for modes whose rounds wait for every worker. The workers propose M Q. The
// server computes P from the mean of the proposals, and all workers use this P. The next Q is the mean of the workers'
// M' P. So the job computes what one worker would compute from the mean of the gradients. With rounds=1, every worker
// has its own P and Q, and the servers combine the products.
#include <paceline/random.h>

#include <vector>

#include "compression/encoded.h"
#include "two_rounds.h"

namespace paceline {
namespace {

constexpr std::size_t kHeader = 16;                   // rows, columns and rank as u32, then 4 unused bytes
constexpr std::size_t kProposalHeader = kHeader + 8;  // then a hash of Q as u64
constexpr std::int64_t kMostRank = 64;

struct Form {
  std::int64_t rows = 0, columns = 0, rank = 0;

  std::int64_t elements() const { return rows * columns; }
  std::int64_t factors() const { return rank * (rows + columns); }
  std::size_t bytes(std::int64_t count) const {
    return kHeader + sizeof(float) * static_cast<std::size_t>(factors() + count - elements());
  }
  std::size_t p() const { return static_cast<std::size_t>(rank * rows); }
  std::size_t q() const { return static_cast<std::size_t>(rank * columns); }

  // The slice travels raw unless the factors P and Q have at most half as many elements as the matrix.
  static Form of(std::int64_t count, std::int64_t columns, std::int64_t rank) {
    if (columns <= 1) return {};
    const Form form{count / columns, columns, std::min({rank, columns, count / columns})};
    return form.rank > 0 && 2 * form.factors() <= form.elements() ? form : Form{};
  }
  static Form read(const std::byte* bytes) {
    return {encoded::load<std::uint32_t>(bytes), encoded::load<std::uint32_t>(bytes + 4),
            encoded::load<std::uint32_t>(bytes + 8)};
  }
  void write(std::byte* to) const {
    encoded::store(to, static_cast<std::uint32_t>(rows));
    encoded::store(to + 4, static_cast<std::uint32_t>(columns));
    encoded::store(to + 8, static_cast<std::uint32_t>(rank));
    encoded::store(to + 12, std::uint32_t{0});
  }
  // Throws Corrupt unless a gradient of `count` elements can have this form.
  void check(std::int64_t count) const {
    const bool none = rows == 0 && columns == 0 && rank == 0;
    const bool some = rows > 0 && columns > 0 && rank > 0 && rank <= std::min({kMostRank, rows, columns}) &&
                      columns <= count && rows <= count / columns;
    if (!none && !some)
      throw Corrupt(
          str("a gradient of ", count, " elements encoded as power_sgd is ", rows, " x ", columns, " of rank ", rank));
  }
};

// Adds up independent partial sums, so that the compiler can vectorise the loop. The order of the additions is always
// the same.
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

// The Gram-Schmidt process with two passes for each row of `p`. If a row depends on the rows before, the first pass
// leaves rounding errors, which are not yet orthogonal to those rows. If the second pass more than halves the length of
// the row, a random row drawn from `seed` takes its place, and both passes run again.
void orthonormalise(std::vector<float>* p, std::size_t rank, std::size_t length, std::uint64_t seed = 0) {
  for (std::size_t k = 0; k < rank; ++k) {
    float* const row = p->data() + k * length;
    for (int pass = 0, draws = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other < k; ++other) {
        const float* const before = p->data() + other * length;
        add(-dot(before, row, length), before, row, length);
      }
      const float norm = std::sqrt(dot(row, row, length));
      if (pass == 1 && norm < 0.5f && draws < 4) {
        for (std::size_t i = 0; i < length; ++i)
          row[i] = random_uniform(seed + k, static_cast<std::uint64_t>(draws) * length + i) - 0.5f;
        ++draws;
        pass = -1;
        continue;
      }
      for (std::size_t i = 0; i < length; ++i) row[i] = norm > 0 ? row[i] / norm : 0;
    }
  }
}

// If Q is 0, fills it with random numbers, which are the same at every worker for the same `slice`.
void start(float* q, std::size_t count, std::uint64_t slice) {
  if (std::any_of(q, q + count, [](float value) { return value != 0; })) return;
  for (std::size_t i = 0; i < count; ++i) q[i] = random_uniform(slice, i) - 0.5f;
}

std::uint64_t hash_of(const float* q, std::size_t count) {
  std::uint64_t hash = count;
  for (std::size_t i = 0; i < count; ++i) hash = encoded::mix(hash, std::bit_cast<std::uint32_t>(q[i]));
  return hash;
}

// NaN and infinity would stay in Q for ever.
void drop_if_no_number(float* q, std::size_t count) {
  if (!std::all_of(q, q + count, [](float value) { return std::isfinite(value); })) std::fill_n(q, count, 0.0f);
}

// p = M q, where p and q are stored column by column.
void multiply(const float* matrix, const Form& form, const float* q, float* p) {
  const auto rows = static_cast<std::size_t>(form.rows), columns = static_cast<std::size_t>(form.columns);
  for (std::size_t k = 0; k < static_cast<std::size_t>(form.rank); ++k)
    for (std::size_t i = 0; i < rows; ++i) p[k * rows + i] = dot(matrix + i * columns, q + k * columns, columns);
}

// q = M' p, stored likewise.
void multiply_transposed(const float* matrix, const Form& form, const float* p, float* q) {
  const auto rows = static_cast<std::size_t>(form.rows), columns = static_cast<std::size_t>(form.columns);
  std::fill_n(q, form.q(), 0.0f);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < static_cast<std::size_t>(form.rank); ++k)
      add(p[k * rows + i], matrix + i * columns, q + k * columns, columns);
}

std::vector<float> floats_at(const std::byte* from, std::size_t count) {
  std::vector<float> values(count);
  if (count > 0) std::memcpy(values.data(), from, count * sizeof(float));
  return values;
}

std::byte* append(std::byte* to, const float* values, std::size_t count) {
  if (count > 0) std::memcpy(to, values, count * sizeof(float));
  return to + count * sizeof(float);
}

// The sum over the parts of `count` floats from byte `offset` on, weighted by the shares of the parts.
std::vector<float> sum_of_parts(std::span<const TwoRounds::Part> parts, std::size_t offset, std::size_t count) {
  std::vector<float> sum(count);
  for (const TwoRounds::Part& part : parts) {
    const std::vector<float> values = floats_at(part.bytes.data() + offset, count);
    add(part.share, values.data(), sum.data(), count);
  }
  return sum;
}

class PowerSgd final : public Codec {
 public:
  PowerSgd(std::int64_t rank, bool named) : rank_(rank), named_(named) {}

  std::size_t max_bytes(std::int64_t count) const override { return Form{}.bytes(count); }

  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                     std::byte* out) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    const Form form = Form::of(count, context.columns, rank_);
    form.write(out);
    std::byte* to = out + kHeader;
    if (form.rank > 0) {
      float* const q = state.front();
      start(q, form.q(), context.slice);
      std::vector<float> p(form.p());
      multiply(values.data(), form, q, p.data());
      orthonormalise(&p, static_cast<std::size_t>(form.rank), static_cast<std::size_t>(form.rows));
      multiply_transposed(values.data(), form, p.data(), q);
      to = append(append(to, p.data(), form.p()), q, form.q());
      drop_if_no_number(q, form.q());
    }
    append(to, values.data() + form.elements(), static_cast<std::size_t>(count - form.elements()));
    return form.bytes(count);
  }

  void check(EncodedBytes bytes, std::int64_t count) const override {
    if (bytes.size() < kHeader) throw Corrupt(str("a gradient encoded as power_sgd has ", bytes.size(), " bytes"));
    const Form form = Form::read(bytes.data());
    form.check(count);
    encoded::expect_bytes("power_sgd", bytes, form.bytes(count), count);
  }

  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    decode_factors(bytes, begin, out);
  }

  static void decode_factors(EncodedBytes bytes, std::int64_t begin, std::span<float> out) {
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
  Options in_lockstep() const override { return named_ ? Options() : Options{{"rounds", "2"}}; }
  bool by_rows() const override { return true; }

 private:
  const std::int64_t rank_;
  const bool named_;  // the user named the option `rounds`
};

// PowerSGD with rounds=2. A proposal is a header, a hash of Q, and M Q. The agreed bytes are a header and P. An answer
// is the worker's M' P and the elements after the last whole row.
class PowerSgdTogether final : public Codec, public TwoRounds {
 public:
  PowerSgdTogether(std::int64_t rank, bool feedback) : rank_(rank), feedback_(feedback) {}

  std::size_t max_bytes(std::int64_t count) const override {
    return kProposalHeader + sizeof(float) * static_cast<std::size_t>(count) / 2;
  }

  std::size_t encode(std::span<const float> values, const EncodeContext& context, State state,
                     std::byte* out) const override {
    float* const matrix = state[0];
    float* const q = state[1];
    for (std::size_t i = 0; i < values.size(); ++i) matrix[i] = feedback_ ? matrix[i] + values[i] : values[i];
    const Form form = Form::of(static_cast<std::int64_t>(values.size()), context.columns, rank_);
    form.write(out);
    start(q, form.q(), context.slice);
    encoded::store(out + kHeader, hash_of(q, form.q()));
    std::vector<float> p(form.p());
    multiply(matrix, form, q, p.data());
    append(out + kProposalHeader, p.data(), form.p());
    return proposal_bytes(form);
  }

  void check(EncodedBytes bytes, std::int64_t count) const override {
    if (bytes.size() < kProposalHeader)
      throw Corrupt(str("a gradient proposed as power_sgd has ", bytes.size(), " bytes"));
    const Form form = Form::read(bytes.data());
    form.check(count);
    encoded::expect_bytes("power_sgd, rounds=2,", bytes, proposal_bytes(form), count);
  }

  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    PowerSgd::decode_factors(bytes, begin, out);
  }

  std::vector<std::string> state_names() const override { return {"residual", "query"}; }
  bool biased() const override { return false; }
  const TwoRounds* two_rounds() const override { return this; }
  bool by_rows() const override { return true; }

  std::vector<std::byte> agree(std::span<const Part> proposals) const override {
    const EncodedBytes first = proposals.front().bytes;
    // The proposals have a mean only if all workers used the same Q. A worker that has just joined has another Q.
    if (!std::all_of(proposals.begin(), proposals.end(), [&](const Part& part) {
          return std::equal(first.begin(), first.begin() + kProposalHeader, part.bytes.begin());
        }))
      return {};
    const Form form = Form::read(first.data());
    std::vector<float> p = sum_of_parts(proposals, kProposalHeader, form.p());
    orthonormalise(&p, static_cast<std::size_t>(form.rank), static_cast<std::size_t>(form.rows),
                   encoded::load<std::uint64_t>(first.data() + kHeader));
    std::vector<std::byte> agreed(kHeader + sizeof(float) * form.p());
    form.write(agreed.data());
    append(agreed.data() + kHeader, p.data(), form.p());
    return agreed;
  }

  std::size_t answer_bytes(EncodedBytes agreed, std::int64_t count) const override {
    const Form form = agreed.empty() ? Form{} : Form::read(agreed.data());
    return sizeof(float) * (form.q() + static_cast<std::size_t>(count - form.elements()));
  }

  std::vector<std::byte> mean(EncodedBytes agreed, std::span<const Part> answers) const override {
    if (agreed.empty()) return {};
    const Form form = Form::read(agreed.data());
    const std::vector<float> q = sum_of_parts(answers, 0, form.q());
    std::vector<std::byte> bytes(sizeof(float) * form.q());
    append(bytes.data(), q.data(), form.q());
    return bytes;
  }

  std::vector<std::byte> answer(EncodedBytes agreed, std::int64_t count, State state) const override {
    const float* const matrix = state[0];
    const Form form = agreed_form(agreed, count);
    std::vector<std::byte> bytes(answer_bytes(agreed, count));
    const std::vector<float> p = floats_at(agreed.data() + (form.rank > 0 ? kHeader : 0), form.p());
    std::vector<float> q(form.q());
    multiply_transposed(matrix, form, p.data(), q.data());
    append(append(bytes.data(), q.data(), form.q()), matrix + form.elements(),
           static_cast<std::size_t>(count - form.elements()));
    return bytes;
  }

  void finish(EncodedBytes agreed, EncodedBytes answer, const EncodedBytes* mean, std::int64_t count,
              State state) const override {
    float* const matrix = state[0];
    float* const q = state[1];
    const Form form = agreed_form(agreed, count);
    if (answer.size() != answer_bytes(agreed, count))
      throw Corrupt("an answer of power_sgd has another size than asked");
    if (mean && mean->size() != sizeof(float) * form.q())
      throw Corrupt("a mean of power_sgd has another size than its parts");
    std::fill(matrix + form.elements(), matrix + count, 0.0f);
    // The round was raw, or the mean is unknown. In both cases Q starts again from random numbers. If only some workers
    // miss the mean, their Q differs from the others' in the next round. That round is raw, so all workers start again.
    if (agreed.empty() || !mean) std::fill_n(q, count, 0.0f);
    if (form.rank == 0) return;
    // Subtract the product of P and this worker's own answer, not of P and the mean answer. The residual then stays as
    // small as the worker's own gradients.
    const std::vector<float> p = floats_at(agreed.data() + kHeader, form.p());
    const std::vector<float> own = floats_at(answer.data(), form.q());
    const auto rows = static_cast<std::size_t>(form.rows), columns = static_cast<std::size_t>(form.columns);
    for (std::size_t i = 0; i < rows; ++i) {
      float* const row = matrix + i * columns;
      for (std::size_t k = 0; k < static_cast<std::size_t>(form.rank); ++k)
        add(-p[k * rows + i], own.data() + k * columns, row, columns);
      for (std::size_t j = 0; j < columns; ++j) row[j] = row[j] - row[j] == 0 ? row[j] : 0;
    }
    if (!mean) return;
    const std::uint64_t used = hash_of(q, form.q());
    append(reinterpret_cast<std::byte*>(q), floats_at(mean->data(), form.q()).data(), form.q());
    drop_if_no_number(q, form.q());
    // If the workers' gradients cancel, the mean is 0, and the next round uses new random directions. With the same
    // directions in every round, the residuals of the workers would grow in all other directions.
    start(q, form.q(), used);
  }

 private:
  static std::size_t proposal_bytes(const Form& form) { return kProposalHeader + sizeof(float) * form.p(); }

  static Form agreed_form(EncodedBytes agreed, std::int64_t count) {
    if (agreed.empty()) return {};
    if (agreed.size() < kHeader) throw Corrupt("what power_sgd agreed on has no header");
    const Form form = Form::read(agreed.data());
    form.check(count);
    encoded::expect_bytes("power_sgd, agreed on,", agreed, kHeader + sizeof(float) * form.p(), count);
    return form;
  }

  const std::int64_t rank_;
  const bool feedback_;
};

}  // namespace

std::unique_ptr<Codec> make_power_sgd_compression(const Options& options) {
  const auto rank = options.get("rank", std::int64_t{2});
  require(rank >= 1 && rank <= kMostRank, "rank is ", rank, ", expected 1 to ", kMostRank);
  const auto rounds = options.get("rounds", 1);
  require(rounds == 1 || rounds == 2, "rounds is ", rounds, ", expected 1 or 2");
  if (rounds == 2) return std::make_unique<PowerSgdTogether>(rank, options.get("error_feedback", true));
  return std::make_unique<PowerSgd>(rank, options.has("rounds"));
}

}  // namespace paceline
