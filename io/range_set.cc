#include <paceline/data_iterator.h>
#include <paceline/error.h>

#include <algorithm>
#include <charconv>

namespace paceline {

void RangeSet::add(Range range) {
  if (range.begin >= range.end) return;
  // The first range that touches or follows the new one.
  auto first = std::lower_bound(ranges_.begin(), ranges_.end(), range.begin,
                                [](const Range& r, std::int64_t begin) { return r.end < begin; });
  auto last = first;
  for (; last != ranges_.end() && last->begin <= range.end; ++last) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
  }
  if (first == last) {
    ranges_.insert(first, range);
  } else {
    *first = range;
    ranges_.erase(first + 1, last);
  }
}

void RangeSet::subtract(Range range) {
  if (range.begin >= range.end) return;
  auto first = std::upper_bound(ranges_.begin(), ranges_.end(), range.begin,
                                [](std::int64_t begin, const Range& r) { return begin < r.end; });
  auto last = first;
  while (last != ranges_.end() && last->begin < range.end) ++last;
  if (first == last) return;
  const Range left{first->begin, range.begin};
  const Range right{range.end, (last - 1)->end};
  auto at = ranges_.erase(first, last);
  if (right.begin < right.end) at = ranges_.insert(at, right);
  if (left.begin < left.end) ranges_.insert(at, left);
}

bool RangeSet::contains(std::int64_t position) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), position,
                                      [](std::int64_t p, const Range& r) { return p < r.end; });
  return after != ranges_.end() && after->begin <= position;
}

std::int64_t RangeSet::count() const {
  std::int64_t total = 0;
  for (const Range& range : ranges_) total += range.end - range.begin;
  return total;
}

std::string RangeSet::text() const {
  std::string text;
  for (const Range& range : ranges_) {
    if (!text.empty()) text += ',';
    text += std::to_string(range.begin) + '-' + std::to_string(range.end);
  }
  return text;
}

RangeSet RangeSet::parse(const std::string& text) {
  RangeSet set;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&] {
    std::int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 0) throw Corrupt(str("'", text, "' is no list of ranges such as 0-64,128-192"));
    at = next;
    return value;
  };
  const auto skip = [&](char character) {
    const bool found = at != end && *at == character;
    if (found) ++at;
    return found;
  };
  while (at != end) {
    Range range;
    range.begin = number();
    const bool dash = skip('-');
    if (dash) range.end = number();
    const bool sorted = set.ranges_.empty() || set.ranges_.back().end < range.begin;
    const bool well_ended = at == end || (skip(',') && at != end);
    if (!dash || range.begin >= range.end || !sorted || !well_ended) {
      throw Corrupt(str("'", text, "' is no list of ranges such as 0-64,128-192"));
    }
    set.ranges_.push_back(range);
  }
  return set;
}

namespace {

class FixedSource final : public Source {
 public:
  explicit FixedSource(Part part) : part_(part) {}
  Part part(std::int64_t) override { return part_; }
  void begin(std::int64_t, const EpochPlan&) override {}
  void commit(std::int64_t, const std::vector<Range>&, const std::string&) override {}
  RangeSet take_over(std::int64_t, std::int64_t, bool) override { return {}; }

 private:
  Part part_;
};

}  // namespace

std::shared_ptr<Source> fixed_source(Part part) {
  require(part.count >= 1 && part.index >= 0 && part.index < part.count, "there is no part ", part.index, " of ",
          part.count);
  return std::make_shared<FixedSource>(part);
}

}  // namespace paceline
