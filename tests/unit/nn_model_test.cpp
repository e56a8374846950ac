#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "nn/causal_lm.h"
#include "nn/cross_entropy.h"
#include "nn/init.h"
#include "nn/recompute.h"
#include "nn_reference.h"
#include "support/forward_count.h"

using namespace meshard;
namespace data = boost::unit_test::data;

namespace {

DecoderOptions small_config() {
  DecoderOptions config;
  config.vocab_size = 37;
  config.hidden_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.intermediate_size = 40;
  config.max_position_embeddings = 32;
  config.initializer_range = 0.2;
  return config;
}

struct Variant {
  const char* name;
  void (*change)(DecoderOptions&);
};
std::ostream& operator<<(std::ostream& out, const Variant& v) {
  return out << v.name;
}

auto kVariants = data::make(std::vector<Variant>{
    {"llama", [](DecoderOptions&) {}},
    {"tied", [](DecoderOptions& c) { c.tie_word_embeddings = true; }},
    {"qk norm", [](DecoderOptions& c) { c.use_qk_norm = true; }},
    {"half rotary", [](DecoderOptions& c) { c.partial_rotary_factor = 0.5; }},
    {"attention bias", [](DecoderOptions& c) { c.attention_bias = c.attention_output_bias = true; }},
    {"one kv head", [](DecoderOptions& c) { c.num_key_value_heads = 1; }},
    {"all", [](DecoderOptions& c) {
       c.tie_word_embeddings = c.use_qk_norm = c.attention_bias = c.attention_output_bias = c.recompute = true;
       c.partial_rotary_factor = 0.25;
     }}});

DecoderOptions config_of(const Variant& variant) {
  auto config = small_config();
  variant.change(config);
  return config;
}

struct Batch {
  at::Tensor ids = at::randint(0, 37, {3, 21}, at::kLong);
  at::Tensor targets = at::randint(0, 37, {3, 21}, at::kLong);
};

// Constants too get values of their own, or a norm weight that is left out would not be noticed.
std::unique_ptr<CausalLM> make_model(const DecoderOptions& config, at::ScalarType dtype = at::kFloat) {
  auto model = std::make_unique<CausalLM>(config, at::TensorOptions(dtype));
  for (auto& [fqn, parameter] : named_parameters(*model)) {
    auto& slot = parameter.slot();
    const bool constant = slot.init.kind == Init::Kind::Constant;
    auto flat = slot.tensor.detach().view({-1});
    fill_initial(flat, constant ? Init::normal(0.2) : slot.init, 7, hash_text(fqn), 0);
    if (constant) flat.add_(slot.init.value);
  }
  return model;
}

reference::Model reference_of(CausalLM& model, const DecoderOptions& config) {
  reference::Model copy{config, {}};
  std::map<Slot*, at::Tensor> leaves;
  for (auto& [fqn, parameter] : named_parameters(model)) {
    auto& leaf = leaves[parameter.id()];
    if (!leaf.defined()) leaf = parameter.tensor().detach().to(at::kFloat).clone().set_requires_grad(true);
    copy.weights[fqn] = leaf;
  }
  return copy;
}

void give_sinks(CausalLM& model, double garbage) {
  for (auto& [fqn, parameter] : named_parameters(model)) {
    auto& slot = parameter.slot();
    slot.sink = {at::full(slot.shape, garbage, at::TensorOptions(slot.dtype)), false};
  }
}

void run(CausalLM& model, const Batch& batch, double scale = 0.1) {
  model.loss(batch.ids, batch.targets, scale).backward();
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, 1.3e-6, 1e-5);
}

double number(const at::Tensor& scalar) {
  return scalar.to(at::kFloat).item<float>();
}

/// |a - b| / |b|
double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kFloat) - b).norm().item<double>() / b.norm().item<double>();
}

}  // namespace

// Catches: any wrong formula, sign, head or transposition in forward or backward; a tied weight that gets one gradient.
BOOST_DATA_TEST_CASE(equals_the_plain_model, kVariants, variant) {
  auto config = config_of(variant);
  auto model = make_model(config);
  auto plain = reference_of(*model, config);
  Batch batch;
  batch.targets[1][5] = batch.targets[2][0] = kIgnoredTarget;

  BOOST_TEST(at::allclose(model->logits(batch.ids), plain.logits(batch.ids), 1e-5, 2e-5));
  auto loss = model->loss(batch.ids, batch.targets, 0.1), expected = plain.loss(batch.ids, batch.targets, 0.1);
  BOOST_TEST(number(loss) == number(expected), boost::test_tools::tolerance(1e-5));
  loss.backward();
  expected.backward();
  for (auto& [fqn, parameter] : named_parameters(*model)) {
    BOOST_TEST(at::allclose(parameter.tensor().grad(), plain.weights[fqn].grad(), 1e-4, 2e-5), fqn);
  }
}

// Catches: bf16 kernels that read or write the wrong width, or sum in bf16.
BOOST_DATA_TEST_CASE(bf16_stays_near_the_plain_model, kVariants, variant) {
  auto config = config_of(variant);
  auto model = make_model(config, at::kBFloat16);
  auto plain = reference_of(*model, config);
  const Batch batch;
  auto loss = model->loss(batch.ids, batch.targets, 0.1), expected = plain.loss(batch.ids, batch.targets, 0.1);
  BOOST_TEST(number(loss) == number(expected), boost::test_tools::tolerance(1.6e-2));
  BOOST_TEST((loss.scalar_type() == at::kFloat));
  loss.backward();
  expected.backward();
  for (auto& [fqn, parameter] : named_parameters(*model)) {
    auto error = difference(parameter.tensor().grad(), plain.weights[fqn].grad());
    BOOST_TEST(error < 6e-2, fqn << ": " << error);
  }
}

// Catches: a gradient returned to autograd as well as written, garbage kept in a fresh sink, a second pass that
// overwrites the first.
BOOST_DATA_TEST_CASE(gradients_go_into_sinks, kVariants* data::make({at::kFloat, at::kBFloat16}), variant, dtype) {
  auto config = config_of(variant);
  auto model = make_model(config, dtype), other = make_model(config, dtype);
  const Batch batch;
  run(*other, batch);
  give_sinks(*model, std::nan(""));
  run(*model, batch);
  auto ours = named_parameters(*model), theirs = named_parameters(*other);
  std::vector<at::Tensor> first;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    auto& slot = ours[i].parameter.slot();
    BOOST_TEST(!slot.tensor.grad().defined(), ours[i].name);
    BOOST_TEST(slot.sink.filled);
    auto expected = theirs[i].parameter.tensor().grad().to(at::kFloat);
    BOOST_TEST(difference(slot.sink.grad, expected) < (dtype == at::kFloat ? 1e-6 : 1e-2), ours[i].name);
    first.push_back(slot.sink.grad.to(at::kFloat).clone());
  }
  run(*model, batch);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    BOOST_TEST(difference(ours[i].parameter.slot().sink.grad, 2 * first[i]) < (dtype == at::kFloat ? 1e-6 : 1e-2));
  }
}

// Catches: recomputation that sees other inputs, drops a gradient or rounds differently; a flag that is ignored.
BOOST_DATA_TEST_CASE(recomputation_changes_no_bit, data::make({at::kFloat, at::kBFloat16}), dtype) {
  auto config = small_config();
  auto kept = make_model(config, dtype);
  config.recompute = true;
  auto again = make_model(config, dtype);
  const Batch batch;
  auto once = count_forwards(kept->layers(), "mlp"), twice = count_forwards(again->layers(), "mlp");
  run(*kept, batch);
  run(*again, batch);
  BOOST_TEST(*once == config.num_hidden_layers);
  BOOST_TEST(*twice == 2 * config.num_hidden_layers);
  auto a = named_parameters(*kept), b = named_parameters(*again);
  for (std::size_t i = 0; i < a.size(); ++i) {
    BOOST_TEST(at::equal(a[i].parameter.tensor().grad(), b[i].parameter.tensor().grad()), a[i].name);
  }
}

// Catches: in_recomputation() true in the first run or left on after an exception; a body that runs more than twice.
BOOST_AUTO_TEST_CASE(a_body_knows_that_it_runs_again) {
  std::vector<bool> seen;
  bool fail = false;
  auto body = [&](const at::Tensor& x) {
    seen.push_back(in_recomputation());
    if (fail && in_recomputation()) throw LogicError("the second run fails");
    return x * x;
  };
  auto x = at::full({2}, 3.0).set_requires_grad(true);
  recompute(x, body).sum().backward();
  BOOST_TEST((seen == std::vector{false, true}));
  BOOST_TEST(x.grad().eq(6.0).all().item<bool>());
  fail = true;
  auto y = recompute(x, body).sum();
  BOOST_CHECK_THROW(y.backward(), std::exception);
  BOOST_TEST(!in_recomputation());
}

// Catches: a choice that is made anew in the second run, or handed to another call, also in a body within a body.
BOOST_AUTO_TEST_CASE(choices_are_kept_for_the_second_run) {
  int made = 0;
  auto choice = [&] { return computed_once([&] { return at::full({2}, ++made); }); };
  auto inner = [&](const at::Tensor& x) { return x * choice(); };
  auto outer = [&](const at::Tensor& x) {
    auto first = choice();
    return recompute(x, inner) * first * choice();
  };
  auto x = at::full({2}, 1.0).set_requires_grad(true);
  auto y = recompute(x, outer);
  BOOST_TEST(made == 3);  // outer's first, inner's, outer's second
  y.sum().backward();
  BOOST_TEST(y.eq(6.0).all().item<bool>());
  BOOST_TEST(x.grad().eq(6.0).all().item<bool>());
  BOOST_TEST(made == 3);
  BOOST_TEST(choice().eq(4.0).all().item<bool>());
}

// Catches: a block whose parameters get no gradient because its input needs none (frozen embedding).
BOOST_DATA_TEST_CASE(frozen_weights_get_no_gradient, data::make({false, true}), recompute_blocks) {
  auto config = small_config();
  config.attention_bias = config.attention_output_bias = true;
  config.recompute = recompute_blocks;
  auto model = make_model(config), whole = make_model(config);
  const std::set<std::string> frozen{"model.embed_tokens.weight",
                                     "model.layers.0.self_attn.k_proj.weight",
                                     "model.layers.0.self_attn.v_proj.bias",
                                     "model.layers.0.mlp.up_proj.weight",
                                     "model.layers.1.input_layernorm.weight",
                                     "model.layers.1.self_attn.o_proj.bias",
                                     "lm_head.weight"};
  for (auto& [fqn, parameter] : named_parameters(*model)) {
    if (frozen.contains(fqn)) parameter.slot().tensor.set_requires_grad(parameter.slot().requires_grad = false);
  }
  give_sinks(*model, 0.0);
  const Batch batch;
  run(*model, batch);
  run(*whole, batch);
  auto ours = named_parameters(*model), theirs = named_parameters(*whole);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    auto& slot = ours[i].parameter.slot();
    BOOST_TEST(slot.sink.filled != frozen.contains(ours[i].name), ours[i].name);
    BOOST_TEST(!slot.tensor.grad().defined(), ours[i].name);
    if (slot.sink.filled) BOOST_TEST(close(slot.sink.grad, theirs[i].parameter.tensor().grad()), ours[i].name);
  }
}

// Catches: a token that sees its future.
BOOST_AUTO_TEST_CASE(logits_are_causal) {
  auto model = make_model(small_config());
  const Batch batch;
  auto changed = batch.ids.clone();
  changed.slice(1, 12) = (changed.slice(1, 12) + 1).remainder(37);
  auto a = model->logits(batch.ids), b = model->logits(changed);
  BOOST_TEST(at::equal(a.slice(1, 0, 12), b.slice(1, 0, 12)));
  BOOST_TEST(!at::equal(a.slice(1, 12), b.slice(1, 12)));
}

// Catches: a slice of logits lost, counted twice, or kept for the wrong rows; 2,500 rows are one full slice and a part.
BOOST_DATA_TEST_CASE(loss_over_slices, data::make({false, true}), with_sink) {
  const std::int64_t rows = logit_slice_rows(37) + 452;
  auto hidden = at::full({rows, 24}, 0.0);
  fill_initial(hidden.view({-1}), Init::normal(1.0), 3, 5, 0);
  auto targets = at::randint(0, 37, {rows}, at::kLong);
  targets[0] = targets[rows - 1] = kIgnoredTarget;
  auto model = make_model(small_config());
  auto head = named_parameters(*model).back().parameter;
  auto plain_hidden = hidden.clone().set_requires_grad(true), plain_head = head.tensor().detach().clone();
  plain_head.set_requires_grad(true);
  hidden.set_requires_grad(true);
  if (with_sink) head.slot().sink = {at::full({37, 24}, std::nan("")), false};

  (linear_cross_entropy(hidden, head, targets, 0.5) * 3).backward();
  auto log_p = at::log_softmax(at::matmul(plain_hidden, plain_head.t()), 1);
  (-(log_p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1) * targets.ne(-100)).sum() * 1.5).backward();

  BOOST_TEST(at::allclose(hidden.grad(), plain_hidden.grad(), 1e-5, 1e-5));
  BOOST_TEST(at::allclose(with_sink ? head.slot().sink.grad : head.tensor().grad(), plain_head.grad(), 1e-4, 1e-3));
}

// Catches: a parameter of another name, shape or decay class than Hugging Face's loader expects; memory on the meta
// device; a rotary table that is not real.
BOOST_AUTO_TEST_CASE(names_shapes_and_decay_on_meta) {
  auto config = small_config();
  config.num_hidden_layers = 1;
  config.use_qk_norm = config.attention_bias = config.attention_output_bias = true;
  CausalLM model(config, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  struct Row {
    std::string name;
    Shape shape;
    bool decay;
  };
  const std::string layer = "model.layers.0.";
  const std::vector<Row> expected{{"model.embed_tokens.weight", {37, 24}, false},
                                  {layer + "self_attn.q_proj.weight", {32, 24}, true},
                                  {layer + "self_attn.q_proj.bias", {32}, false},
                                  {layer + "self_attn.k_proj.weight", {16, 24}, true},
                                  {layer + "self_attn.k_proj.bias", {16}, false},
                                  {layer + "self_attn.v_proj.weight", {16, 24}, true},
                                  {layer + "self_attn.v_proj.bias", {16}, false},
                                  {layer + "self_attn.o_proj.weight", {24, 32}, true},
                                  {layer + "self_attn.o_proj.bias", {24}, false},
                                  {layer + "self_attn.q_norm.weight", {8}, false},
                                  {layer + "self_attn.k_norm.weight", {8}, false},
                                  {layer + "mlp.gate_proj.weight", {40, 24}, true},
                                  {layer + "mlp.up_proj.weight", {40, 24}, true},
                                  {layer + "mlp.down_proj.weight", {24, 40}, true},
                                  {layer + "input_layernorm.weight", {24}, false},
                                  {layer + "post_attention_layernorm.weight", {24}, false},
                                  {"model.norm.weight", {24}, false},
                                  {"lm_head.weight", {37, 24}, true}};
  auto parameters = named_parameters(model);
  BOOST_REQUIRE(parameters.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    auto& slot = parameters[i].parameter.slot();
    BOOST_TEST(parameters[i].name == expected[i].name);
    BOOST_TEST(slot.shape == expected[i].shape, boost::test_tools::per_element());
    BOOST_TEST(slot.decay == expected[i].decay, expected[i].name);
    BOOST_TEST(slot.tensor.is_meta());
    BOOST_TEST((slot.dtype == at::kBFloat16));
    BOOST_TEST((slot.init.kind == (expected[i].shape.size() == 2 ? Init::Kind::Normal : Init::Kind::Constant)));
  }
  int tables = 0;
  walk(model, [&](const std::string& fqn, Module& module) {
    for (auto& buffer : module.buffers()) {
      ++tables;
      BOOST_TEST(fqn == "model.rotary_emb");
      BOOST_TEST(at::equal(buffer.tensor, buffer.declared()));
      BOOST_TEST(!buffer.persistent);
    }
  });
  BOOST_TEST(tables == 2);
  BOOST_TEST(model.layers().size() == 1u);
}

// Catches: a tied head with a weight, or a decay class, of its own.
BOOST_AUTO_TEST_CASE(a_tied_head_is_the_embedding) {
  auto config = small_config();
  config.tie_word_embeddings = true;
  CausalLM model(config, at::TensorOptions(at::kMeta));
  auto parameters = named_parameters(model);
  BOOST_TEST(parameters.front().name == "model.embed_tokens.weight");
  BOOST_TEST(parameters.back().name == "lm_head.weight");
  BOOST_TEST(parameters.front().parameter.id() == parameters.back().parameter.id());
  BOOST_TEST(!parameters.back().parameter.slot().decay);
}

// Catches: bad input that reads or writes outside of memory instead of being named.
BOOST_AUTO_TEST_CASE(bad_input_is_named) {
  auto model = make_model(small_config());
  const Batch batch;
  BOOST_CHECK_THROW(model->logits(batch.ids + 37), ArgumentError);
  BOOST_CHECK_THROW(model->loss(batch.ids, batch.targets - 50, 1.0), ArgumentError);
  BOOST_CHECK_THROW(model->loss(batch.ids, batch.targets.slice(0, 0, 1), 1.0), ShapeError);
  auto config = small_config();
  config.num_key_value_heads = 3;
  BOOST_CHECK_THROW(CausalLM(config, at::TensorOptions(at::kFloat)), ArgumentError);
  config = small_config();
  config.partial_rotary_factor = 0.4;
  BOOST_CHECK_THROW(CausalLM(config, at::TensorOptions(at::kFloat)), ArgumentError);
  BOOST_CHECK_THROW(CausalLM(small_config(), at::TensorOptions(at::kHalf)), ArgumentError);
}
