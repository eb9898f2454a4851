// einsum: each pair of operands becomes one batched matrix product of permuted views.
#include "binary/binary.h"
#include "copy/copy.h"
#include "matmul/matmul.h"
#include "reduce/reduce.h"
#include "reshape/reshape.h"
#include "transpose/transpose.h"

#include <algorithm>

namespace paceline {

const OpDef& reshape_operator();

namespace {

// An array whose axes have names.
struct Term {
  std::string letters;
  NDArray array;
  std::int64_t size(char letter) const { return array.size(static_cast<int>(letters.find(letter))); }
};

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

NDArray reshaped(const NDArray& x, const Shape& shape) {
  return invoke(reshape_operator(), {x}, ReshapeAttributes{shape, true});
}

NDArray in_order(const Term& term, const std::string& letters) {
  if (term.letters == letters) return term.array;
  std::vector<int> axes;
  for (const char letter : letters) axes.push_back(static_cast<int>(term.letters.find(letter)));
  return transpose(term.array, axes);
}

// `term` summed over the letters that nobody needs.
Term without_unused(const Term& term, const std::string& needed) {
  Term result{"", term.array};
  std::vector<int> axes;
  for (std::size_t i = 0; i < term.letters.size(); ++i) {
    if (has(needed, term.letters[i]))
      result.letters += term.letters[i];
    else
      axes.push_back(static_cast<int>(i));
  }
  if (!axes.empty()) result.array = sum(term.array, axes);
  return result;
}

std::int64_t count(const Term& term, const std::string& letters) {
  std::int64_t result = 1;
  for (const char letter : letters) result *= term.size(letter);
  return result;
}

// The product of two terms, summed over the letters of both that are not `needed`.
Term contract(Term a, Term b, const std::string& needed) {
  a = without_unused(a, needed + b.letters);
  b = without_unused(b, needed + a.letters);
  std::string batch, inner, left, right;
  for (const char letter : a.letters) (!has(b.letters, letter) ? left : has(needed, letter) ? batch : inner) += letter;
  for (const char letter : b.letters)
    if (!has(a.letters, letter)) right += letter;
  const std::int64_t batches = count(a, batch), depth = count(a, inner);
  const NDArray first = reshaped(in_order(a, batch + left + inner), {batches, count(a, left), depth});
  const NDArray second = reshaped(in_order(b, batch + inner + right), {batches, depth, count(b, right)});
  Shape shape;
  for (const char letter : batch + left) shape.push_back(a.size(letter));
  for (const char letter : right) shape.push_back(b.size(letter));
  return {batch + left + right, reshaped(matmul(first, second), shape)};
}

// The letters of the operands, then those of the result; kEllipsis where one has an ellipsis.
constexpr char kEllipsis = '.';
std::vector<std::string> parse(const std::string& equation) {
  std::vector<std::string> terms(1);
  std::size_t arrow = std::string::npos;
  for (std::size_t i = 0; i < equation.size(); ++i) {
    const char c = equation[i];
    if (c == ' ') continue;
    const bool to = c == '-' && i + 1 < equation.size() && equation[i + 1] == '>' && arrow == std::string::npos;
    if (to) arrow = i++;
    if (to || (c == ',' && arrow == std::string::npos)) {
      terms.emplace_back();
      continue;
    }
    const bool ellipsis = equation.compare(i, 3, "...") == 0;
    require((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || ellipsis, "[einsum] '", c, "' in '", equation,
            "', expected letters, ellipses, commas and one ->");
    require(!has(terms.back(), c), "[einsum] ", ellipsis ? "an ellipsis" : str("letter '", c, "'"),
            " occurs twice in one term of '", equation, "'");
    terms.back() += c;
    if (ellipsis) i += 2;
  }
  require(arrow != std::string::npos, "[einsum] '", equation, "' has no ->");
  return terms;
}

// Puts names in the place of ellipses: numbers, the last axis having the highest in all terms.
void name_ellipses(std::vector<std::string>& letters, const std::vector<NDArray>& operands) {
  const auto hidden = [&](std::size_t i) {
    return has(letters[i], kEllipsis) ? operands[i].ndim() - static_cast<int>(letters[i].size()) + 1 : 0;
  };
  std::string names;
  for (std::size_t i = 0; i < operands.size(); ++i)
    while (static_cast<int>(names.size()) < hidden(i)) names += static_cast<char>('0' + names.size());
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const std::size_t place = letters[i].find(kEllipsis);
    if (place == std::string::npos) continue;
    const auto count = i < operands.size() ? static_cast<std::size_t>(std::max(hidden(i), 0)) : names.size();
    letters[i].replace(place, 1, names.substr(names.size() - count));
  }
}

// `term` without the axes of an ellipsis that are of one element here and of more in another of the terms.
Term without_broadcast(const Term& term, const std::vector<Term>& terms) {
  std::string kept;
  for (const char name : term.letters) {
    const bool repeated = name <= '9' && term.size(name) == 1 && std::ranges::any_of(terms, [&](const Term& other) {
                            return has(other.letters, name) && other.size(name) != 1;
                          });
    if (!repeated) kept += name;
  }
  return without_unused(term, kept);
}

}  // namespace

NDArray einsum(const std::string& equation, const std::vector<NDArray>& operands) try {
  std::vector<std::string> letters = parse(equation);
  require(letters.size() == operands.size() + 1, "[einsum] '", equation, "' names ", letters.size() - 1,
          " operands, got ", operands.size());
  name_ellipses(letters, operands);
  const std::string result = letters.back();
  letters.pop_back();
  std::vector<Term> terms;
  std::string known;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Term term{letters[i], operands[i]};
    require(operands[i].ndim() == static_cast<int>(letters[i].size()), "[einsum] operand ", i, " is ",
            operands[i].describe(), ", expected an axis for each letter of its term in '", equation, "'");
    for (const Term& other : terms) {
      require(other.array.dtype() == term.array.dtype(), "[einsum] operands are ", other.array.describe(), " and ",
              term.array.describe(), ", cast one of them");
      for (const char letter : term.letters)
        require(!has(other.letters, letter) || other.size(letter) == term.size(letter) ||
                    (letter <= '9' && (other.size(letter) == 1 || term.size(letter) == 1)),
                "[einsum] ", letter <= '9' ? "an axis of the ellipses" : str("'", letter, "'"), " has size ",
                has(other.letters, letter) ? other.size(letter) : 0, " and ", term.size(letter), " in operands ",
                other.array.describe(), " and ", term.array.describe());
    }
    known += letters[i];
    terms.push_back(term);
  }
  for (const char letter : result)
    require(has(known, letter), "[einsum] '", letter, "' of the result of '", equation, "' is in no operand");

  const std::vector<Term> whole = terms;
  for (Term& term : terms) term = without_broadcast(term, whole);
  Term total = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    std::string needed = result;
    for (std::size_t k = i + 1; k < terms.size(); ++k) needed += terms[k].letters;
    total = contract(total, terms[i], needed);
  }
  return in_order(without_unused(total, result), result);
} catch (const InvalidArgument& error) {
  std::string text = error.what();
  for (std::size_t i = 0; i < operands.size(); ++i) text += (i ? ", " : "; operands: ") + operands[i].describe();
  throw InvalidArgument(text);
}

NDArray outer(const NDArray& a, const NDArray& b) {
  require(a.ndim() == 1 && b.ndim() == 1, "[outer] got ", a.describe(), " and ", b.describe(), ", expected vectors");
  return reshaped(a, {a.size(), 1}) * reshaped(b, {1, b.size()});
}

NDArray batch_matmul(const NDArray& a, const NDArray& b, bool transpose_a, bool transpose_b) {
  require(a.ndim() >= 2 && b.ndim() >= 2, "[batch_matmul] got ", a.describe(), " and ", b.describe(),
          ", expected at least 2 dimensions");
  const auto batch_of = [](const NDArray& x) {
    return Shape(std::span<const std::int64_t>(x.shape().begin(), static_cast<std::size_t>(x.ndim() - 2)));
  };
  const Shape batch = broadcast(batch_of(a), batch_of(b));
  const auto flat = [&](const NDArray& x) {
    Shape whole = batch;
    whole.push_back(x.size(-2));
    whole.push_back(x.size(-1));
    const NDArray repeated = x.shape() == whole ? x : broadcast_to(x, whole);
    return reshaped(repeated, {batch.size(), x.size(-2), x.size(-1)});
  };
  const NDArray product = matmul(flat(a), flat(b), transpose_a, transpose_b);
  Shape shape = batch;
  shape.push_back(product.size(1));
  shape.push_back(product.size(2));
  return reshaped(product, shape);
}

}  // namespace paceline
