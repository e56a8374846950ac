#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numbers>

#include "base/hash.h"
#include "nn/init.h"

using namespace meshard;

namespace {

using Block = std::array<std::uint32_t, 4>;

at::Tensor filled(std::int64_t begin, std::int64_t end, at::ScalarType dtype = at::kFloat,
                  const Init& init = Init::normal(0.02)) {
  auto part = at::empty({end - begin}, at::TensorOptions(dtype));
  fill_initial(part, init, 1234, hash_text("model.layers.0.mlp.up_proj.weight"), begin);
  return part;
}

}  // namespace

// Catches: swapped words, a wrong round constant or key schedule.
BOOST_AUTO_TEST_CASE(philox_known_answers) {
  const std::uint32_t ones = 0xffffffffu;
  BOOST_TEST((philox4x32_10({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  BOOST_TEST((philox4x32_10({ones, ones, ones, ones}, {ones, ones}) ==
              Block{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
}

// Catches: another counter layout, lane order or Box-Muller variant than the documented one.
BOOST_AUTO_TEST_CASE(element_is_a_function_of_seed_name_and_index) {
  auto hash = hash_text("model.layers.0.mlp.up_proj.weight");
  auto values = filled(0, 64);
  for (std::uint32_t i = 0; i < 64; ++i) {
    auto x = philox4x32_10({i / 4, 0, std::uint32_t(hash), std::uint32_t(hash >> 32)}, {1234, 0});
    auto pair = i % 4 / 2 * 2;
    const double radius = std::sqrt(-2.0 * std::log((x[pair] + 0.5) * 0x1p-32));
    const double angle = 2.0 * std::numbers::pi * ((x[pair + 1] + 0.5) * 0x1p-32);
    const double expected = 0.02 * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    BOOST_TEST(values.const_data_ptr<float>()[i] == static_cast<float>(expected), boost::test_tools::tolerance(1e-6f));
  }
}

// Catches: values that depend on where a shard begins or ends, or on how threads cut the range.
BOOST_AUTO_TEST_CASE(any_part_equals_the_slice_of_the_whole) {
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    auto whole = filled(0, 70001, dtype);
    for (auto [begin, end] : {std::pair{0, 1}, {1, 70001}, {3, 7}, {4, 8}, {12345, 54321}, {70000, 70001}}) {
      BOOST_TEST(at::equal(filled(begin, end, dtype), whole.slice(0, begin, end)));
    }
  }
}

// Catches: bf16 values drawn on their own instead of rounded from fp32.
BOOST_AUTO_TEST_CASE(bf16_is_the_rounded_fp32_value) {
  BOOST_TEST(at::equal(filled(0, 1001, at::kBFloat16), filled(0, 1001).to(at::kBFloat16)));
}

// Catches: a wrong scale; a constant that is not constant.
BOOST_AUTO_TEST_CASE(distributions) {
  auto values = filled(0, 100000);
  BOOST_TEST(std::abs(values.mean().item<float>()) < 3e-4f);
  BOOST_TEST(values.std().item<float>() == 0.02f, boost::test_tools::tolerance(0.01f));
  BOOST_TEST(filled(5, 20, at::kFloat, Init::constant(1.0)).eq(1.0).all().item<bool>());
}

// Catches: writing through a view that is not one run of memory.
BOOST_AUTO_TEST_CASE(refuses_what_it_cannot_fill) {
  BOOST_CHECK_THROW(fill_initial(at::empty({2, 2}), Init(), 0, 0, 0), std::exception);
  BOOST_CHECK_THROW(fill_initial(at::empty({4}, at::kDouble), Init(), 0, 0, 0), std::exception);
}
