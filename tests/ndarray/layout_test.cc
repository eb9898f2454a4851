// Which elements of a block of memory a view shows.
#include <gtest/gtest.h>
#include <paceline/detail/layout.h>
#include <paceline/ndarray.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <set>

namespace paceline::detail {
namespace {

std::set<std::int64_t> elements(const Layout& layout) {
  std::set<std::int64_t> found;
  if (layout.shape.size() > 0) found.insert(layout.offset);
  for (int axis = 0; axis < layout.shape.ndim(); ++axis) {
    std::set<std::int64_t> moved;
    for (const std::int64_t at : found)
      for (std::int64_t i = 0; i < layout.shape[axis]; ++i) moved.insert(at + i * layout.strides[axis]);
    found = std::move(moved);
  }
  return found;
}

bool disjoint(const Layout& a, const Layout& b) {
  const std::set<std::int64_t> of_b = elements(b);
  for (const std::int64_t at : elements(a))
    if (of_b.contains(at)) return false;
  return true;
}

NDArray drawn_view(const NDArray& block, std::mt19937_64& random) {
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  NDArray view = block;
  const Shape shapes[] = {{48}, {6, 8}, {12, 4}, {16, 3}, {2, 6, 4}, {4, 3, 4}};
  for (std::int64_t step = 0, steps = below(5); step < steps; ++step) {
    if (below(3) == 0 && view.is_contiguous() && view.size() == 48) view = view.view(shapes[below(6)]);
    if (view.ndim() == 0) return view;
    const int axis = static_cast<int>(below(view.ndim()));
    if (below(4) == 0 && view.ndim() > 1) view = view.at(below(view.size(0)));
    if (axis >= view.ndim()) continue;
    const std::int64_t begin = below(view.size(axis)), end = begin + 1 + below(view.size(axis) - begin);
    view = view.narrow(axis, begin, end, 1 + below(4));
  }
  return view;
}

TEST(Layouts, NeverMissACommonElement) {
  const unsigned seed = std::random_device()();
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  const NDArray block = NDArray::zeros({48});
  int apart = 0, known = 0;
  for (int i = 0; i < 20000; ++i) {
    const Layout a = Layout::of(drawn_view(block, random)), b = Layout::of(drawn_view(block, random));
    const bool is_disjoint = disjoint(a, b);
    if (!may_overlap(a, b)) {
      ASSERT_TRUE(is_disjoint) << a.offset << " " << a.shape << " " << a.strides << "; " << b.offset << " " << b.shape
                               << " " << b.strides;
      ++known;
    }
    apart += is_disjoint;
    const std::set<std::int64_t> of_a = elements(a), of_b = elements(b);
    ASSERT_TRUE(!covers(a, b) || std::ranges::includes(of_a, of_b));
    ASSERT_EQ(a.end(), *of_a.rbegin() + 1);
  }
  EXPECT_GT(known, apart / 2) << "of " << apart << " pairs that have no element in common";
}

TEST(Layouts, KnowThatPartsAreApart) {
  const NDArray block = NDArray::zeros({6, 8});
  const auto overlap = [](const NDArray& a, const NDArray& b) { return may_overlap(Layout::of(a), Layout::of(b)); };
  EXPECT_FALSE(overlap(block.narrow(0, 0, 3), block.narrow(0, 3, 6)));
  EXPECT_FALSE(overlap(block.narrow(1, 0, 3), block.narrow(1, 3, 8)));
  EXPECT_FALSE(overlap(block.narrow(1, 0, 8, 2), block.narrow(1, 1, 8, 2)));
  EXPECT_FALSE(overlap(block.at(2), block.at(3)));
  EXPECT_FALSE(overlap(block.permute({1, 0}).at(2), block.permute({1, 0}).at(3)));
  EXPECT_TRUE(overlap(block.at(2), block.permute({1, 0}).at(3)));
  EXPECT_TRUE(overlap(block, block.narrow(0, 5, 6).narrow(1, 7, 8)));
  EXPECT_FALSE(overlap(block, block.narrow(0, 5, 5)));
  EXPECT_TRUE(covers(Layout::of(block), Layout::of(block.permute({1, 0}))));
  EXPECT_TRUE(covers(Layout::of(block.narrow(1, 0, 3)), Layout::of(block.narrow(1, 0, 3))));
  EXPECT_TRUE(covers(Layout::of(block.at(0)), Layout::of(block.narrow(0, 4, 4))));
  EXPECT_FALSE(covers(Layout::of(block.narrow(1, 0, 3)), Layout::of(block.at(0))));
  EXPECT_FALSE(covers(Layout::of(block.at(0)), Layout::of(block.narrow(0, 0, 2))));
}

TEST(Layouts, BlocksNoteWhatWritesTouch) {
  const NDArray block = NDArray::zeros({6, 8});
  const std::uint64_t before = writes_to(block);
  block.at(0).fill(1);
  EXPECT_TRUE(written_since(block.at(5), before)) << "nobody noted";
  const NotesWrites notes;
  const std::uint64_t count = writes_to(block);
  EXPECT_FALSE(written_since(block, count));
  block.at(1).fill(1);
  block.at(2).fill(1);
  block.at(4).narrow(0, 0, 4).fill(1);
  EXPECT_TRUE(written_since(block, count));
  for (const std::int64_t row : {1, 2, 4}) EXPECT_TRUE(written_since(block.at(row), count)) << row;
  for (const std::int64_t row : {0, 3, 5}) EXPECT_FALSE(written_since(block.at(row), count)) << row;
  EXPECT_FALSE(written_since(block.at(4).narrow(0, 4, 8), count));
  EXPECT_FALSE(written_since(block, count, Layout::of(block.at(3))));
  EXPECT_FALSE(written_since(block.at(1), count + 1)) << "the later writes";
  EXPECT_FALSE(written_before_the_latest(block, count, Layout::of(block.at(4))));
  EXPECT_TRUE(written_since(block.at(5), before)) << "the first write was not noted";
  block.fill(1);
  EXPECT_TRUE(written_since(block.at(5), count));
}

}  // namespace
}  // namespace paceline::detail
