#include <boost/test/unit_test.hpp>
#include <map>
#include <random>

#include "dcp/tiling.h"

using namespace meshard;

namespace {

using Boxes = std::vector<Box>;
using Random = std::mt19937;

std::int64_t number(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution(low, high)(random);
}

/// Calls visit(place) for every element of a box.
template <typename Visit>
void for_each_element(const Box& box, Visit visit) {
  for (std::int64_t i = 0; i < box.numel(); ++i) {
    Shape at(box.sizes.size());
    auto rest = i;
    for (auto dim = at.size(); dim-- > 0; rest /= box.sizes[dim]) at[dim] = box.offsets[dim] + rest % box.sizes[dim];
    visit(at);
  }
}

/// How often the boxes cover each element of the tensor: by marking.
std::map<Shape, int> counts_by_marking(const Shape& shape, const Boxes& boxes) {
  std::map<Shape, int> counts;
  for_each_element(whole(shape), [&](auto& at) { counts[at] = 0; });
  for (auto& box : boxes) for_each_element(box, [&](auto& at) { ++counts.at(at); });
  return counts;
}

/// Cuts the box in two again and again, at random.
Boxes random_tiling(Random& random, const Box& box) {
  auto dim = static_cast<std::size_t>(number(random, 0, static_cast<std::int64_t>(box.sizes.size()) - 1));
  if (box.sizes[dim] < 2 || number(random, 0, 3) == 0) return {box};
  auto low = box, high = box;
  low.sizes[dim] = number(random, 0, box.sizes[dim]);  // 0: a box without elements
  high.offsets[dim] += low.sizes[dim];
  high.sizes[dim] -= low.sizes[dim];
  auto boxes = random_tiling(random, low);
  for (auto& more : random_tiling(random, high)) boxes.push_back(more);
  return boxes;
}

Box random_box(Random& random, const Shape& shape) {
  Box box = whole(shape);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    box.offsets[dim] = number(random, 0, shape[dim]);
    box.sizes[dim] = number(random, 0, shape[dim] - box.offsets[dim]);
  }
  return box;
}

/// One change that may or may not spoil the tiling.
void change_one(Random& random, const Shape& shape, Boxes& boxes) {
  auto which = static_cast<std::size_t>(number(random, 0, static_cast<std::int64_t>(boxes.size()) - 1));
  switch (number(random, 0, 3)) {
    case 0:
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(which));
      break;
    case 1:
      boxes.push_back(boxes[which]);
      break;
    case 2:
      boxes[which] = random_box(random, shape);
      break;
    default:
      boxes.push_back(random_box(random, shape));
  }
}

}  // namespace

// Catches: a message without the boxes or the place that it is about; 0-d and empty tensors.
BOOST_AUTO_TEST_CASE(what_is_wrong_is_said) {
  BOOST_TEST(tiling_problem({4, 2}, Boxes{{{2, 0}, {2, 2}}, {{0, 0}, {2, 2}}}) == "");
  BOOST_TEST(tiling_problem({4, 2}, Boxes{{{0, 0}, {2, 2}}, {{3, 0}, {1, 2}}}) == "no box covers element [2, 0]");
  BOOST_TEST(tiling_problem({4, 2}, Boxes{{{0, 0}, {3, 2}}, {{2, 1}, {2, 1}}}) ==
             "boxes [0:3, 0:2] and [2:4, 1:2] overlap at element [2, 1]");
  BOOST_TEST(tiling_problem({4, 2}, Boxes{{{0, 0}, {5, 2}}}) ==
             "box [0:5, 0:2] is not inside the tensor's shape [4, 2]");
  BOOST_TEST(tiling_problem({4, 2}, Boxes{{{0}, {4}}}) == "box [0:4] is not inside the tensor's shape [4, 2]");
  BOOST_TEST(tiling_problem({4, 2}, Boxes{{{-1, 0}, {4, 2}}}).starts_with("box [-1:3, 0:2] is not inside"));
  BOOST_TEST(tiling_problem({4, 2}, Boxes{{{INT64_MAX, 0}, {INT64_MAX, 2}}})
                 .ends_with("is not inside the tensor's shape [4, 2]"));
  BOOST_TEST(tiling_problem({}, Boxes{{}}) == "");
  BOOST_TEST(tiling_problem({}, Boxes{}) == "no box covers element []");
  BOOST_TEST(tiling_problem({}, Boxes{{}, {}}) == "boxes [] and [] overlap at element []");
  BOOST_TEST(tiling_problem({0, 4}, Boxes{}) == "");
  BOOST_TEST(tiling_problem({0, 4}, Boxes{{{0, 0}, {0, 4}}, {{0, 0}, {0, 4}}}) == "");
  BOOST_TEST(tiling_problem({1, 3}, Boxes{{{0, 0}, {1, 3}}, {{1, 0}, {0, 3}}}) == "");
}

// Catches: a cut along several dimensions at once that is taken for a hole, or a hole whose area an overlap makes up
// for.
BOOST_AUTO_TEST_CASE(tilings_agree_with_marking) {
  Random random(2);
  int whole_ones = 0, spoiled = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    Shape shape;
    for (auto dims = number(random, 1, 4); dims > 0; --dims) shape.push_back(number(random, 1, 4));
    auto boxes = random_tiling(random, whole(shape));
    std::ranges::shuffle(boxes, random);
    for (auto changes = number(random, 0, 2); changes > 0 && !boxes.empty(); --changes)
      change_one(random, shape, boxes);
    auto counts = counts_by_marking(shape, boxes);
    auto wrong = std::ranges::find_if(counts, [](auto& count) { return count.second != 1; });
    auto problem = tiling_problem(shape, boxes);
    BOOST_TEST_REQUIRE(problem.empty() == (wrong == counts.end()), problem);
    problem.empty() ? ++whole_ones : ++spoiled;
    if (problem.empty()) continue;
    std::string place = "[";  // the first one, in order
    for (auto at : wrong->first) place += (place.size() > 1 ? ", " : "") + std::to_string(at);
    BOOST_TEST_REQUIRE(problem.ends_with("element " + place + "]"), problem);
    BOOST_TEST_REQUIRE(problem.starts_with(wrong->second == 0 ? "no box covers" : "boxes "), problem);
  }
  BOOST_TEST(whole_ones > 500);
  BOOST_TEST(spoiled > 500);
}

// Catches: a check whose time doubles with each dimension (41 of them: an index of 36 KB took for ever), or one that
// recurses into each (40,001 of them ended the process).
BOOST_AUTO_TEST_CASE(many_dimensions_are_checked_fast, *boost::unit_test::timeout(20)) {
  Shape two(62, 2);
  Boxes corners;  // the half with 0 in the first dimension, of the rest the half with 0 in the second, and so on
  auto rest = whole(two);
  for (std::size_t dim = 0; dim < two.size(); ++dim) {
    rest.sizes[dim] = 1;
    corners.push_back(rest);
    rest.offsets[dim] = 1;
  }
  corners.push_back(rest);
  BOOST_TEST(tiling_problem(two, corners) == "");
  std::string ones = "[1", zeros = "[0";
  for (int dim = 1; dim < 62; ++dim) ones += ", 1", zeros += ", 0";
  corners.pop_back();
  BOOST_TEST(tiling_problem(two, corners) == "no box covers element " + ones + "]");
  corners.push_back(whole(two));
  BOOST_TEST(tiling_problem(two, corners).ends_with("overlap at element " + zeros + "]"));

  Boxes grid;  // cut in 2 along 14 dimensions: 16,384 boxes, of which many touch
  Shape shape(40, 2);
  for (std::int64_t i = 0; i < 1 << 14; ++i) {
    grid.push_back(whole(shape));
    for (int dim = 0; dim < 14; ++dim) {
      grid.back().offsets[static_cast<std::size_t>(2 * dim)] = i >> dim & 1;
      grid.back().sizes[static_cast<std::size_t>(2 * dim)] = 1;
    }
  }
  BOOST_TEST(tiling_problem(shape, grid) == "");
  grid.erase(grid.begin() + 77);
  BOOST_TEST(
      tiling_problem(shape, grid).starts_with("no box covers element [1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0"));

  Shape flat(40'001, 1);
  BOOST_TEST(tiling_problem(flat, Boxes{whole(flat)}) == "");
}

// Catches: a check that compares every pair of boxes (100,000 of them would take minutes; the test has a time limit).
BOOST_AUTO_TEST_CASE(many_rows_and_columns_are_checked_fast, *boost::unit_test::timeout(20)) {
  constexpr std::int64_t kRanks = 100'000;
  Boxes rows, columns, grid;
  for (std::int64_t i = 0; i < kRanks; ++i) {
    rows.push_back({{3 * i, 0}, {3, 64}});
    columns.push_back({{0, 3 * i}, {64, 3}});
    grid.push_back({{i / 300 * 2, i % 300 * 2}, {2, 2}});
  }
  grid.resize(90'000);
  BOOST_TEST(tiling_problem({3 * kRanks, 64}, rows) == "");
  BOOST_TEST(tiling_problem({64, 3 * kRanks}, columns) == "");
  BOOST_TEST(tiling_problem({600, 600}, grid) == "");
  rows.back() = rows.front();
  BOOST_TEST(tiling_problem({3 * kRanks, 64}, rows) == "boxes [0:3, 0:64] and [0:3, 0:64] overlap at element [0, 0]");
}
