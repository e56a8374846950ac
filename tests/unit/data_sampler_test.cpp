#include "data/sampler.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <numeric>

#include "base/error.h"

using namespace meshard;
using Order = std::vector<std::int64_t>;

namespace {
Order positions(const Sampler& sampler, std::int64_t begin, std::int64_t end) {
  Order order;
  for (auto position = begin; position < end; ++position) order.push_back(sampler.sample(position));
  return order;
}
Order sorted(Order order) {
  std::ranges::sort(order);
  return order;
}
Order iota(std::int64_t size) {
  Order order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}
}  // namespace

// Catches: samples left out or seen twice in an epoch, at sizes around every power of two.
BOOST_AUTO_TEST_CASE(every_epoch_is_a_permutation) {
  Order sizes = iota(70);
  sizes.erase(sizes.begin());
  for (auto size : {97, 127, 128, 129, 1000, 4093, 4096, 4097, 65537}) sizes.push_back(size);
  for (auto size : sizes) {
    Sampler sampler(42, size);
    for (std::int64_t epoch : {0, 1, 5}) {
      BOOST_REQUIRE(sorted(positions(sampler, epoch * size, (epoch + 1) * size)) == iota(size));
    }
  }
}

// Catches: epochs or seeds that repeat the same order, or leave it sorted.
BOOST_AUTO_TEST_CASE(epochs_and_seeds_have_their_own_order) {
  auto first = positions(Sampler(1, 1000), 0, 1000);
  BOOST_TEST(first != iota(1000));
  BOOST_TEST(positions(Sampler(1, 1000), 1000, 2000) != first);
  BOOST_TEST(positions(Sampler(2, 1000), 0, 1000) != first);
  BOOST_TEST(positions(Sampler(1, 1000), 0, 1000) == first);
}

// Catches: any change of the order. A run resumed by another version would see samples twice; these never change.
// The numbers come from an independent implementation.
BOOST_AUTO_TEST_CASE(golden_orders) {
  BOOST_TEST(positions(Sampler(1234, 1), 0, 2) == (Order{0, 0}));
  BOOST_TEST(positions(Sampler(1234, 2), 0, 4) == (Order{0, 1, 0, 1}));
  BOOST_TEST(positions(Sampler(1234, 3), 0, 6) == (Order{2, 1, 0, 2, 1, 0}));
  BOOST_TEST(positions(Sampler(1234, 10), 0, 20) ==
             (Order{8, 1, 9, 0, 4, 5, 2, 7, 6, 3, 8, 5, 4, 1, 3, 6, 0, 2, 7, 9}));
  BOOST_TEST(positions(Sampler(1234, 1000003), 0, 4) == (Order{253950, 810504, 801265, 658694}));
  BOOST_TEST(positions(Sampler(1234, 1000003), 1000002, 1000005) == (Order{12129, 968417, 740368}));
  BOOST_TEST(positions(Sampler(0, std::int64_t{1} << 40), 0, 3) == (Order{356195740411, 973301482872, 278769254533}));
}

// Catches: an order with structure in it: the mean distance of neighbours in a random one is a third of the size.
BOOST_AUTO_TEST_CASE(neighbours_are_far_apart) {
  for (std::int64_t size : {1000, 1024, 1500, 100000}) {
    auto order = positions(Sampler(5, size), 0, size);
    double distance = 0;
    for (std::size_t i = 1; i < order.size(); ++i) distance += std::abs(static_cast<double>(order[i] - order[i - 1]));
    BOOST_TEST(distance / static_cast<double>(size * size) == 1.0 / 3, boost::test_tools::tolerance(0.1));
  }
}

// Catches: a first position that hardly depends on the seed.
BOOST_AUTO_TEST_CASE(all_samples_can_come_first) {
  std::vector<int> counts(10);
  for (std::uint64_t seed = 0; seed < 5000; ++seed) ++counts[Sampler(seed, 10).sample(0)];
  for (int count : counts) BOOST_TEST((count > 400 && count < 600));
}

// Catches: a batch that depends on the mesh: a step's positions must be the same set for any ranks and microbatches,
// and rank by rank within a microbatch.
BOOST_AUTO_TEST_CASE(the_global_batch_is_the_same_on_any_mesh) {
  constexpr std::int64_t kFirst = 96, kBatch = 48;
  for (std::int64_t ranks : {1, 2, 3, 4, 6}) {
    for (std::int64_t micro : {1, 2, 4}) {
      Order batch;
      for (std::int64_t a = 0; a < kBatch / (micro * ranks); ++a) {
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          for (std::int64_t j = 0; j < micro; ++j) batch.push_back(sample_position(kFirst, a, rank, ranks, micro, j));
        }
      }
      Order expected = iota(kBatch);
      for (auto& position : expected) position += kFirst;
      BOOST_TEST(batch == expected);
    }
  }
}

// Catches: silent nonsense for arguments out of range.
BOOST_AUTO_TEST_CASE(arguments_are_checked) {
  BOOST_CHECK_THROW(Sampler(0, 0), ArgumentError);
  BOOST_CHECK_THROW(Sampler(0, -1), ArgumentError);
  BOOST_CHECK_THROW(Sampler(0, 5).sample(-1), ArgumentError);
}
