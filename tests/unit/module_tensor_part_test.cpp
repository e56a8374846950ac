#include <boost/test/unit_test.hpp>
#include <random>

#include "base/error.h"
#include "module/tensor_part.h"

using namespace meshard;

namespace {

using Boxes = std::vector<Box>;
using Random = std::mt19937;

std::int64_t number(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution(low, high)(random);
}

// Indices in the whole tensor, flattened, of the elements of a box of it, in the box's order.
std::vector<std::int64_t> elements_of(const Box& box, const Shape& whole_shape) {
  std::vector<std::int64_t> elements;
  for (std::int64_t i = 0; i < box.numel(); ++i) {
    std::int64_t index = 0, rest = i, stride = 1;
    for (auto dim = whole_shape.size(); dim-- > 0; rest /= box.sizes[dim], stride *= whole_shape[dim]) {
      index += (box.offsets[dim] + rest % box.sizes[dim]) * stride;
    }
    elements.push_back(index);
  }
  return elements;
}

}  // namespace

// Catches: an end of a row, whole rows or a begin of a row at the wrong place; boxes that would do with fewer.
BOOST_AUTO_TEST_CASE(a_range_of_a_part_is_few_boxes) {
  TensorPart matrix({6, 4});
  BOOST_TEST((matrix.boxes({3, 17}) == Boxes{{{0, 3}, {1, 1}}, {{1, 0}, {3, 4}}, {{4, 0}, {1, 1}}}));
  BOOST_TEST((matrix.boxes({4, 12}) == Boxes{{{1, 0}, {2, 4}}}));
  BOOST_TEST((matrix.boxes({5, 7}) == Boxes{{{1, 1}, {1, 2}}}));
  BOOST_TEST(matrix.boxes({5, 5}).empty());
  TensorPart columns({6, 4}, {{0, 2}, {6, 2}});
  BOOST_TEST((columns.boxes({1, 6}) == Boxes{{{0, 3}, {1, 1}}, {{1, 2}, {2, 2}}}));
  BOOST_CHECK_THROW(TensorPart({4, 3}, {{3, 0}, {2, 3}}), ShapeError);
  TensorPart experts({8, 4, 2}, {{6, 0, 0}, {2, 4, 2}});
  BOOST_TEST((experts.boxes({2, 16}) == Boxes{{{6, 1, 0}, {1, 3, 2}}, {{7, 0, 0}, {1, 4, 2}}}));
}

// Catches: elements lost, doubled or out of order between the ranges of neighbouring ranks, in the boxes (files) or in
// the runs (first values, hashes), for any part: of experts, rows, columns or both.
BOOST_AUTO_TEST_CASE(boxes_and_runs_are_the_elements_in_their_order) {
  Random random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    Shape shape(number(random, 1, 4));
    for (auto& extent : shape) extent = number(random, 1, 5);
    Box box = whole(shape);
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (number(random, 0, 1) == 0) continue;
      box.offsets[dim] = number(random, 0, shape[dim] - 1);
      box.sizes[dim] = number(random, 1, shape[dim] - box.offsets[dim]);
    }
    TensorPart part(shape, box);
    auto expected = elements_of(box, shape);
    auto cut = number(random, 0, part.numel());
    std::vector<std::int64_t> from_boxes, from_runs;
    for (auto& range : {IndexRange{0, cut}, IndexRange{cut, part.numel()}}) {
      auto boxes = part.boxes(range);
      BOOST_TEST_REQUIRE(boxes.size() <= 2 * (shape.size() - 1) + 1);
      for (auto& piece : boxes) {
        BOOST_TEST_REQUIRE(is_inside(piece, shape));
        for (auto element : elements_of(piece, shape)) from_boxes.push_back(element);
      }
      part.for_each_run(range, [&](const TensorPart::Run& run) {
        BOOST_TEST_REQUIRE(run.local == static_cast<std::int64_t>(from_runs.size()));
        for (std::int64_t i = 0; i < run.count; ++i) from_runs.push_back(run.whole + i);
      });
    }
    BOOST_TEST_REQUIRE((from_boxes == expected && from_runs == expected));
  }
}

// Catches: a run for every row where one would do: hashing and filling a large model would crawl.
BOOST_AUTO_TEST_CASE(what_is_whole_rows_is_one_run) {
  auto runs = [](const TensorPart& part) {
    int count = 0;
    part.for_each_run({0, part.numel()}, [&](const TensorPart::Run&) { ++count; });
    return count;
  };
  BOOST_TEST(runs(TensorPart({6, 4})) == 1);
  BOOST_TEST(runs(TensorPart({8, 4, 2}, {{2, 0, 0}, {3, 4, 2}})) == 1);
  BOOST_TEST(runs(TensorPart({8, 4, 2}, {{2, 1, 0}, {3, 2, 2}})) == 3);
  BOOST_TEST(runs(TensorPart({6, 4}, {{0, 1}, {6, 2}})) == 6);
}
