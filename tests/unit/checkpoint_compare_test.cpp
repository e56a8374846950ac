#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "checkpoint/compare.h"
#include "dcp/tiling.h"
#include "support/saved_checkpoint.h"
#include "support/torch_items.h"

using namespace meshard;
using meshard::test::Saved;
using pickle::Value;
namespace tt = boost::test_tools;
using Texts = std::vector<std::string>;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const CheckpointCompareOptions kExact{.exact = true};

CheckpointComparison compared(Saved a, Saved b, const CheckpointCompareOptions& options = {}) {
  return compare_checkpoints(a.reader(), b.reader(), options);
}

/// The one tensor `x` in both.
CheckpointComparison compared(const at::Tensor& a, const at::Tensor& b, const CheckpointCompareOptions& options = {}) {
  return compared(Saved().tensor("x", a), Saved().tensor("x", b), options);
}

std::string text_of(const TensorDifference& found) {
  return fmt::format("{} {}/{} first [{}] {} {} abs {:.3g} [{}] rel {:.3g} [{}] nan {} {}", found.key, found.differing,
                     found.elements, fmt::join(found.first, ","), found.first_a, found.first_b, found.largest_absolute,
                     fmt::join(found.absolute_at, ","), found.largest_relative, fmt::join(found.relative_at, ","),
                     found.nan_a, found.nan_b);
}

Texts texts_of(const CheckpointComparison& comparison) {
  Texts texts;
  for (auto& found : comparison.tensors) texts.push_back(text_of(found));
  return texts;
}

/// 0, 1, 2, ... with one more at `index`.
at::Tensor counted(Shape shape, std::int64_t index = -1, double more = 0) {
  auto values = at::arange(whole(shape).numel(), at::kFloat);
  if (index >= 0) values[index] += more;
  return values.view(shape);
}

std::string metadata_text(const Saved& saved) {
  return encode_metadata(saved.metadata, "ck", "id");
}

}  // namespace

// Catches: blocks that leave something out, overlap, are out of order, or larger than they may be.
BOOST_AUTO_TEST_CASE(blocks_tile_a_shape_in_order) {
  for (Shape shape : {Shape{}, {1}, {7}, {3, 5}, {2, 3, 4}, {4, 1, 1, 3}, {1, 9, 2}, {2, 1, 5}}) {
    for (std::int64_t most : {1, 2, 3, 4, 7, 12, 1000}) {
      auto blocks = blocks_of(shape, most);
      BOOST_TEST(tiling_problem(shape, blocks) == "");
      BOOST_TEST(std::ranges::is_sorted(blocks, {}, &Box::offsets));
      for (auto& block : blocks) BOOST_TEST(block.numel() <= most);
      BOOST_TEST(std::ssize(blocks) <=
                 2 * ((whole(shape).numel() + most - 1) / most) + whole(shape).numel() / most + 12);
    }
  }
  BOOST_TEST(blocks_of({3, 0, 2}, 4).empty());
  BOOST_TEST(blocks_of({5, 4}, 8).size() == 3);
  BOOST_TEST(to_string(blocks_of({5, 4}, 8)[2]) == "[4:5, 0:4]");
}

// Catches: a comparison that depends on how a tensor was cut, or on the blocks in which it is read.
BOOST_AUTO_TEST_CASE(chunks_and_blocks_do_not_matter) {
  std::vector<Box> uneven{{{0, 0}, {4, 6}}, {{4, 0}, {3, 6}}}, by_column{{{0, 0}, {7, 1}}, {{0, 1}, {7, 5}}};
  for (std::int64_t block : {1, 4, 6, 13, 1000}) {
    for (bool exact : {false, true}) {
      CheckpointCompareOptions options{.exact = exact, .block_elements = block};
      auto same = compared(Saved().tensor("x", counted({7, 6}), uneven),
                           Saved().tensor("x", counted({7, 6}), by_column), options);
      BOOST_TEST(same.same());
      BOOST_TEST(same.compared_elements == 42);
      auto found = compared(Saved().tensor("x", counted({7, 6}), uneven),
                            Saved().tensor("x", counted({7, 6}, 27, 64), by_column), options);
      BOOST_TEST_REQUIRE(found.tensors.size() == 1);
      BOOST_TEST(text_of(found.tensors[0]).starts_with("x 1/42 first [4,3] 27 91 abs 64 [4,3] rel 0.703 [4,3]"));
    }
  }
}

// Catches: --exact that overlooks a bit; a tolerance that does not take one.
BOOST_AUTO_TEST_CASE(one_bit_counts_if_asked) {
  auto a = counted({4, 4});
  auto b = a.clone();
  b[2][1] = std::nextafter(9.0F, 10.0F);
  BOOST_TEST(compared(a, b).same());
  auto found = compared(a, b, kExact);
  BOOST_TEST(
      texts_of(found) == Texts{"x 1/16 first [2,1] 9 9.000000953674316 abs 9.54e-07 [2,1] rel 9.97e-08 [2,1] nan 0 0"},
      tt::per_element());
  BOOST_TEST(!found.same());
  // Zeros of two signs are equal numbers of other bits.
  BOOST_TEST(compared(at::full({1}, 0.0), at::full({1}, -0.0)).same());
  BOOST_TEST(compared(at::full({1}, 0.0), at::full({1}, -0.0), kExact).tensors.size() == 1);
}

// Catches: a tolerance that is absolute, or relative to elements that cancelled to nearly nothing, or to other rows.
BOOST_AUTO_TEST_CASE(the_tolerance_is_relative_to_the_element_or_its_row) {
  auto of = [](double first, double others) {
    auto values = at::full({2, 4}, others, at::kDouble);
    values[1].fill_(1e6);
    values[0][0] = first;
    return values;
  };
  auto differ = [&](double a, double b, double others, CheckpointCompareOptions options = {}) {
    return !compared(of(a, others), of(b, others), options).same();
  };
  BOOST_TEST(!differ(100.0, 100.0019, 0.0));
  BOOST_TEST(differ(100.0, 100.0021, 0.0));
  BOOST_TEST(differ(1e-20, 1.0001e-20, 0.0));
  BOOST_TEST(!differ(1e-9, 2e-9, 1.0));
  BOOST_TEST(!differ(0.0, 1e-5, 1.0));
  BOOST_TEST(differ(0.0, 1e-4, 1.0));  // the other row's million does not help
  BOOST_TEST(differ(1.0, 1.1, 0.0, {.rtol = 0.09}));
  BOOST_TEST(!differ(1.0, 1.1, 0.0, {.rtol = 0.1}));
  BOOST_TEST(differ(1.0, -1.0, 0.0, {.rtol = 0.5}));
  // The largest relative difference is in the same measure.
  auto found = compared(of(0.0, 1.0), of(1e-3, 1.0)).tensors;
  BOOST_TEST_REQUIRE(found.size() == 1);
  BOOST_TEST(found[0].largest_relative == 1e-3 / std::sqrt(3.0 / 4), tt::tolerance(1e-3));
}

// Catches: infinities that are within any tolerance, or unequal to themselves.
BOOST_AUTO_TEST_CASE(infinities_are_equal_only_to_themselves) {
  auto inf = std::numeric_limits<double>::infinity();
  auto of = [](double value) { return at::full({3}, value); };
  BOOST_TEST(compared(of(inf), of(inf)).same());
  BOOST_TEST(compared(of(inf), of(-inf)).tensors.size() == 1);
  BOOST_TEST(texts_of(compared(of(inf), of(1.0))) == Texts{"x 3/3 first [0] inf 1 abs inf [0] rel inf [0] nan 0 0"},
             tt::per_element());
}

// Catches: NaN that is taken for a number within the tolerance, is hidden by equal bits, or is not said.
BOOST_AUTO_TEST_CASE(nan_is_equal_only_bitwise_and_only_if_exact) {
  auto a = counted({2, 3});
  a[1][0] = kNaN;
  auto b = counted({2, 3}, 2, 1.0);
  BOOST_TEST(texts_of(compared(a, b)) == Texts{"x 2/6 first [0,2] 2 3 abs 1 [0,2] rel 0.333 [0,2] nan 1 0"},
             tt::per_element());
  BOOST_TEST(texts_of(compared(a, a)) == Texts{"x 1/6 first [1,0] nan nan abs 0 [] rel 0 [] nan 1 1"},
             tt::per_element());
  auto exact = compared(a, a, kExact);
  BOOST_TEST(exact.same());
  BOOST_TEST(exact.nan_keys == Texts{"x"}, tt::per_element());
  BOOST_TEST(compared(b, b, kExact).nan_keys.empty());
  auto other = a.clone();
  other.data_ptr<float>()[3] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(a.data_ptr<float>()[3]) ^ 1U);
  BOOST_TEST(compared(a, other, kExact).tensors.size() == 1);
}

// Catches: dtypes that are not read, converted with loss, or compared within a tolerance that integers do not have.
BOOST_AUTO_TEST_CASE(every_dtype_is_compared_in_its_own_way) {
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    auto a = at::full({4}, 1.0).to(dtype), b = a.clone();
    BOOST_TEST(compared(a, b).same());
    auto* bytes = static_cast<unsigned char*>(b.mutable_data_ptr());
    bytes[b.nbytes() - 1] ^= 0x80;  // the last element's sign
    BOOST_TEST(texts_of(compared(a, b)) == Texts{"x 1/4 first [3] 1 -1 abs 2 [3] rel 2 [3] nan 0 0"},
               tt::per_element());
  }
  for (auto dtype : {at::kLong, at::kInt, at::kShort, at::kByte, at::kChar}) {
    auto a = at::full({4}, 100, at::kLong).to(dtype), b = a.clone();
    b[1] += 1;
    BOOST_TEST(compared(a, a).same());
    BOOST_TEST(compared(a, b, {.rtol = 0.5}).tensors.size() == 1);
  }
  auto flags = at::ones({3}, at::kBool), other = flags.clone();
  other[2] = false;
  BOOST_TEST(compared(flags, flags).same());
  BOOST_TEST(compared(flags, other).tensors[0].differing == 1);
  // Beyond what a double can tell apart.
  auto large = at::full({1}, std::int64_t{1} << 60, at::kLong);
  BOOST_TEST(compared(large, at::full({1}, (std::int64_t{1} << 60) + 1, at::kLong)).tensors.size() == 1);
  auto complex = at::ones({2}, at::kComplexFloat), turned = complex.clone();
  turned[1] = c10::complex<float>(1.0F, 2.0F);
  BOOST_TEST(compared(complex, complex).same());
  BOOST_TEST(text_of(compared(complex, turned).tensors.at(0)).starts_with("x 1/2 first [1,1] 0 2 abs 2 [1,1]"));
}

// Catches: bf16 against fp32 of the same values that counts as no difference, or as one of values.
BOOST_AUTO_TEST_CASE(another_dtype_is_said_and_values_are_still_compared) {
  auto a = counted({4}), b = a.to(at::kBFloat16);
  auto found = compared(a, b);
  BOOST_TEST(!found.same());
  BOOST_TEST(found.dtypes == Texts{"x: Float against BFloat16"}, tt::per_element());
  BOOST_TEST(found.tensors.empty());
  b[2] = 5.0;
  BOOST_TEST(compared(a, b).tensors.at(0).differing == 1);
  BOOST_TEST(compared(at::ones({2}), at::ones({2}, at::kComplexFloat)).dtypes.size() == 1);
}

// Catches: scalars and tensors without elements that are passed over, or read where nothing is.
BOOST_AUTO_TEST_CASE(scalars_and_empty_tensors) {
  auto found = compared(at::full({}, 2.0), at::full({}, 3.0));
  BOOST_TEST(texts_of(found) == Texts{"x 1/1 first [] 2 3 abs 1 [] rel 0.333 [] nan 0 0"}, tt::per_element());
  BOOST_TEST(compared(at::full({}, 2.0), at::full({}, 2.0), kExact).same());
  auto empty = compared(at::zeros({0, 4}), at::zeros({0, 4}));
  BOOST_TEST(empty.same());
  BOOST_TEST(empty.compared_tensors == 1);
  BOOST_TEST(empty.compared_elements == 0);
  BOOST_TEST(compared(at::zeros({0, 4}), at::zeros({0, 3})).shapes == Texts{"x: [0, 4] against [0, 3]"},
             tt::per_element());
}

// Catches: what only one has, or has in another shape, that counts as the same, or stops the comparison of the rest.
BOOST_AUTO_TEST_CASE(keys_and_shapes_that_do_not_match_are_named) {
  auto one = at::ones({2});
  auto found = compared(
      Saved().tensor("a", one).tensor("shared", one).tensor("s", at::ones({2, 1})).value("v", Value::integer_of(1)),
      Saved()
          .tensor("b", one)
          .tensor("shared", at::zeros({2}))
          .tensor("s", at::ones({1, 2}))
          .value("w", Value::integer_of(1)));
  BOOST_TEST(found.only_a == (Texts{"a", "v"}), tt::per_element());
  BOOST_TEST(found.only_b == (Texts{"b", "w"}), tt::per_element());
  BOOST_TEST(found.shapes == Texts{"s: [2, 1] against [1, 2]"}, tt::per_element());
  BOOST_TEST(found.tensors.size() == 1);
  BOOST_TEST(found.compared_tensors == 1);
  BOOST_TEST(!compared(Saved().tensor("a", one), Saved()).same());
  BOOST_TEST(!compared(Saved(), Saved().tensor("a", one)).same());
  BOOST_TEST(!compared(one, at::ones({2, 1})).same());
}

// Catches: layer 10 told before layer 2; a layer or expert that is another's.
BOOST_AUTO_TEST_CASE(tensors_are_in_the_order_of_layers_and_name_layer_and_expert) {
  const std::string layer2 = "model.model.layers.2.mlp.experts.down_proj",
                    router = "model.model.layers.10.mlp.gate.weight";
  const std::string single = "model.model.layers.10.mlp.experts.7.up_proj.weight";
  const std::string shared = "model.model.layers.10.mlp.shared_experts.up_proj.weight";
  Saved a, b;
  a.tensor(router, counted({4, 2})).tensor(layer2, counted({4, 2, 2})).tensor(single, counted({2, 2}));
  b.tensor(router, counted({4, 2}, 3, 1)).tensor(single, counted({2, 2}, 3, 1));
  a.tensor(shared, counted({2, 2})).tensor("model.lm_head.weight", counted({2}));
  b.tensor(shared, counted({2, 2}, 3, 1)).tensor("model.lm_head.weight", counted({2}, 1, 1));
  auto changed = counted({4, 2, 2});
  changed[1] += 1;
  changed[3] += 1;
  b.tensor(layer2, changed);
  auto found = compared(a, b).tensors;
  Texts places;
  for (auto& tensor : found) {
    places.push_back(fmt::format("{} {} [{}]", tensor.key, tensor.layer.value_or(-1), fmt::join(tensor.experts, ",")));
  }
  BOOST_TEST(places == (Texts{"model.lm_head.weight -1 []", layer2 + " 2 [1,3]", single + " 10 [7]", router + " 10 [1]",
                              shared + " 10 []"}),
             tt::per_element());
}

// Catches: param groups that are not compared, lists against tuples told apart, an item of a long list that is not
// named.
BOOST_AUTO_TEST_CASE(plain_values_are_compared) {
  auto differ = [](const Value& a, const Value& b, const CheckpointCompareOptions& options = {}) -> std::string {
    auto found = value_difference("k", a, b, options);
    return found ? fmt::format("{}: {} against {}", found->key, found->a, found->b) : "";
  };
  auto number = [](double value) { return Value::real(value); };
  auto text = [](const char* value) { return Value::string(value); };
  BOOST_TEST(differ(number(0.1), number(0.2)) == "k: 0.1 against 0.2");
  BOOST_TEST(differ(number(0.1), number(0.1000001)) == "");
  BOOST_TEST(differ(number(0.1), number(0.10000000000000002), kExact) == "k: 0.1 against 0.10000000000000002");
  BOOST_TEST(differ(Value::integer_of(3), number(3.0), kExact) == "");
  BOOST_TEST(differ(Value::integer_of(1000000), Value::integer_of(1000001)) == "k: 1000000 against 1000001");
  BOOST_TEST(differ(Value::boolean(true), Value::none()) == "k: True against None");
  BOOST_TEST(differ(number(kNaN), number(kNaN)) == "k: nan against nan");
  BOOST_TEST(differ(number(kNaN), number(kNaN), kExact) == "");
  BOOST_TEST(differ(text("a"), text("b")) == "k: 'a' against 'b'");
  BOOST_TEST(differ(Value::tuple({number(0.9), number(0.95)}), Value::list({number(0.9), number(0.95)})) == "");
  BOOST_TEST(differ(Value::tuple({number(0.9), number(0.95)}), Value::list({number(0.9), number(0.99)})) ==
             "k[1]: 0.95 against 0.99");
  BOOST_TEST(differ(Value::list({text("a")}), Value::list({})) == "k: 1 items against 0 items");
  BOOST_TEST(differ(Value::list({text("a")}), text("a")) == "k: ['a'] against 'a'");
  auto dict = [&](const char* key, double value) { return Value::dict({{text(key), number(value)}}); };
  BOOST_TEST(differ(dict("lr", 1), dict("lr", 2)) == "k['lr']: 1 against 2");
  BOOST_TEST(differ(dict("lr", 1), dict("rl", 1)) == "k, key: 'lr' against 'rl'");

  auto found = compared(Saved().value("lr", number(1)).value("eps", number(1)),
                        Saved().value("lr", number(2)).value("eps", number(1)));
  BOOST_TEST(found.compared_values == 2);
  BOOST_TEST_REQUIRE(found.values.size() == 1);
  BOOST_TEST(found.values[0].key == "lr");
  BOOST_TEST(!found.same());
}

// Catches: a damaged checkpoint that compares as if it were whole, or whose damage counts as a difference.
BOOST_AUTO_TEST_CASE(what_cannot_be_read_is_an_error) {
  Saved a, b;
  a.tensor("x", counted({4}));
  b.tensor("x", counted({4}));
  auto whole = b.data;
  b.data.resize(b.data.size() / 2);
  BOOST_CHECK_THROW(compared(a, b), IoError);
  b.data = whole;
  b.flip(b.data_of("x"));
  BOOST_TEST(says(refusal([&] { compared(a, b); }), {"ck cannot be compared:", "x of ck/data: its ", "is damaged"}));
  BOOST_TEST(metadata_text(a) == metadata_text(b));
}

// Catches: a report that does not lead with where they part, or leaves out a step, a key or a NaN.
BOOST_AUTO_TEST_CASE(the_text_leads_with_the_first_difference) {
  auto pair = [](const char* step, const CheckpointComparison& comparison) {
    return ComparedCheckpoints{std::string("runs/a/checkpoints/") + step, std::string("runs/b/checkpoints/") + step,
                               step, comparison};
  };
  Saved a, b;
  const std::string key = "model.layers.1.mlp.experts.down_proj";
  a.tensor(key, counted({2, 2, 2})).tensor("gone", at::ones({1})).tensor("n", at::full({1}, kNaN));
  b.tensor(key, counted({2, 2, 2}, 6, 2)).tensor("n", at::full({1}, kNaN)).value("lr", Value::real(1));
  a.value("lr", Value::real(2)).tensor("d", at::ones({2})).tensor("s", at::ones({2}));
  b.tensor("d", at::ones({2}, at::kBFloat16)).tensor("s", at::ones({3}));
  auto same = compared(at::ones({2, 3}), at::ones({2, 3}));
  auto text = comparison_text(
      {pair("step 10", same), pair("step 20", compared(a, b)), pair("step 30", compared(a, a, kExact))});
  BOOST_TEST(
      text ==
      "a  runs/a/checkpoints\n"
      "b  runs/b/checkpoints\n"
      "first difference: step 20, model.layers.1.mlp.experts.down_proj[1, 1, 0], layer 1, expert 1: 6 against 8\n"
      "step 10: same, 1 tensor of 6 elements, 0 values\n"
      "step 20: 2 of 3 tensors differ, 1 of 1 value differs, 1 key only in a, 1 shape not the same, 1 dtype not "
      "the same\n"
      "step 30: same, 5 tensors of 14 elements, 1 value\n"
      "\n"
      "NaN in both, in the same places\n"
      "  n\n"
      "\n"
      "only in a\n"
      "  gone\n"
      "\n"
      "shapes\n"
      "  s: [2] against [3]\n"
      "\n"
      "dtypes\n"
      "  d: Float against BFloat16\n"
      "\n"
      "tensor                                elements that differ      largest absolute           largest "
      "relative\n"
      "model.layers.1.mlp.experts.down_proj           1 of 8            2.0e+00 [1, 1, 0]          2.5e-01 [1, 1, "
      "0]         expert 1\n"
      "n                                              1 of 1            0.0e+00                    0.0e+00        "
      "           NaN: 1 in a, 1 in b\n"
      "\n"
      "values\n"
      "  lr: 2 against 1\n");
  auto alone = comparison_text({pair("", compared(Saved(), Saved().tensor("x", at::ones({1}))))});
  BOOST_TEST(
      alone.starts_with("a  runs/a/checkpoints/\nb  runs/b/checkpoints/\nfirst difference: x is only in b\n"
                        "1 key only in b\n"));
}

// Catches: pages of keys.
BOOST_AUTO_TEST_CASE(long_lists_are_cut) {
  Saved a, b;
  for (int i = 0; i < 40; ++i) {
    a.tensor(fmt::format("only.{}", i), at::ones({1})).tensor(fmt::format("x.{}", i), at::ones({1}));
    b.tensor(fmt::format("x.{}", i), at::zeros({1}));
  }
  auto text = comparison_text({{"a", "b", "", compared(a, b)}});
  BOOST_TEST(says(text, {"  only.19\n  and 20 more\n", "\nx.24 ", "\nand 15 more\n"}));
  BOOST_TEST(text.find("only.20") == std::string::npos);
}
