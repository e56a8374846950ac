#include "base/box.h"

#include <boost/test/unit_test.hpp>

using namespace meshard;

// Catches: a product or an intersection that is wrong for 0-d tensors, empty boxes, or boxes that only touch.
BOOST_AUTO_TEST_CASE(arithmetic_of_boxes) {
  Box box{{0, 8}, {4, 8}};
  BOOST_TEST(to_string(box) == "[0:4, 8:16]");
  BOOST_TEST(to_string(Box{}) == "[]");
  BOOST_TEST(box.numel() == 32);
  BOOST_TEST(Box{}.numel() == 1);
  BOOST_TEST((whole({3, 5}) == Box{{0, 0}, {3, 5}}));
  BOOST_TEST((overlap(box, {{2, 0}, {8, 10}}) == Box{{2, 8}, {2, 2}}));
  BOOST_TEST(overlap(box, {{4, 8}, {2, 8}}).numel() == 0);
  BOOST_TEST(overlap(box, {{9, 30}, {2, 8}}).numel() == 0);
}

// Catches: boxes that lie outside taken for boxes inside, or beyond 64 bits.
BOOST_AUTO_TEST_CASE(what_is_inside) {
  BOOST_TEST(is_inside({{2, 0}, {2, 3}}, {4, 3}));
  BOOST_TEST(is_inside({{4, 0}, {0, 3}}, {4, 3}));
  BOOST_TEST(!is_inside({{3, 0}, {2, 3}}, {4, 3}));
  BOOST_TEST(!is_inside({{-1, 0}, {2, 3}}, {4, 3}));
  BOOST_TEST(!is_inside({{INT64_MAX, 0}, {2, 3}}, {4, 3}));
  BOOST_TEST(!is_inside({{0}, {4}}, {4, 3}));
}
