#include "moe/moe_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <boost/test/unit_test.hpp>

#include "moe/dispatch.h"
#include "moe/selection.h"
#include "nn/recompute.h"
#include "support/sharded_pair.h"

using namespace meshard;

namespace {

constexpr std::int64_t kExperts = 8, kTopK = 2;

// Fixed values without a period, so that no two rows are alike.
at::Tensor noise(at::IntArrayRef shape, double salt) {
  auto index = at::arange(c10::multiply_integers(shape), at::kDouble);
  return (index * index * 0.7 + index * salt).sin().to(at::kFloat).view(shape);
}

struct ExpertAxis {
  explicit ExpertAxis(int ep)
      : axis(test_world().split(test_world().rank() / ep, test_world().rank(), "expert")),
        parallel{.size = ep, .rank = axis->rank(), .axis = axis.get()} {}
  std::unique_ptr<Communicator> axis;
  ExpertParallel parallel;
};

std::vector<int> expert_axis_sizes() {
  std::vector<int> sizes;
  for (int ep : {1, 2, 4}) {
    if (test_world().size() % ep == 0) sizes.push_back(ep);
  }
  return sizes;
}

MoeOptions layer_options(std::int64_t hidden, std::int64_t width) {
  return {.hidden_size = hidden,
          .moe_intermediate_size = width,
          .n_routed_experts = kExperts,
          .num_experts_per_tok = kTopK};
}

struct ExpertWeights {
  at::Tensor gate_up, down;
};

// Of all experts, fp32.
ExpertWeights expert_weights(const MoeOptions& o) {
  return {noise({kExperts * 2 * o.moe_intermediate_size, o.hidden_size}, 50.0) * 0.3,
          noise({kExperts * o.hidden_size, o.moe_intermediate_size}, 60.0) * 0.3};
}

at::Tensor leaf(const at::Tensor& values) {
  return values.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(true);
}

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  return a.defined() && b.defined() && a.sizes() == b.sizes() &&
         at::allclose(a.to(at::kFloat), b.to(at::kFloat), tolerance, tolerance);
}

// This rank's part of the matrices of all experts, one below the other.
at::Tensor own_rows(const Parameter& parameter, const at::Tensor& all) {
  auto& slot = parameter.slot();
  return all.narrow(0, slot.part.box().offsets[0] * slot.part.box().sizes[1], slot.shape[0]);
}

void fill_experts(Experts& experts, const ExpertWeights& weights) {
  auto &gate_up = experts.parameters()[0].parameter, &down = experts.parameters()[1].parameter;
  gate_up.tensor().detach().copy_(own_rows(gate_up, weights.gate_up));
  down.tensor().detach().copy_(own_rows(down, weights.down));
}

at::Tensor plain_mlp(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& down) {
  return at::linear(at::silu(at::linear(x, gate)) * at::linear(x, up), down);
}

// Every expert for every token, then masked: slow, and nothing is moved.
at::Tensor plain_routed(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights,
                        const ExpertWeights& all) {
  auto width = all.down.size(1), hidden = all.gate_up.size(1);
  auto y = at::zeros(x.sizes());
  for (std::int64_t e = 0; e < kExperts; ++e) {
    auto gate_up = all.gate_up.narrow(0, e * 2 * width, 2 * width);
    auto out = plain_mlp(x, gate_up.narrow(0, 0, width), gate_up.narrow(0, width, width),
                         all.down.narrow(0, e * hidden, hidden));
    y = y + out * (weights * ids.eq(e)).sum(1, true);
  }
  return y;
}

// ---- rows that go where a test says --------------------------------------------------------------------------------

constexpr std::int64_t kHidden = 12, kWidth = 6;

struct Pattern {
  const char* name;
  std::int64_t (*tokens)(int rank);
  std::int64_t (*expert)(int rank, std::int64_t token, std::int64_t k);

  at::Tensor ids(int rank) const {
    auto made = at::zeros({tokens(rank), kTopK}, at::kLong);
    auto* id = made.mutable_data_ptr<std::int64_t>();
    for (std::int64_t pair = 0; pair < made.numel(); ++pair) id[pair] = expert(rank, pair / kTopK, pair % kTopK);
    return made;
  }
  at::Tensor x(int rank, at::ScalarType dtype) const { return noise({tokens(rank), kHidden}, 10.0 + rank).to(dtype); }
  at::Tensor weights(int rank) const { return noise({tokens(rank), kTopK}, 20.0 + rank); }
  at::Tensor seed(int rank, at::ScalarType dtype) const {
    return noise({tokens(rank), kHidden}, 30.0 + rank).to(dtype);
  }
};

const Pattern kPatterns[] = {
    {"spread, uneven tokens", [](int rank) -> std::int64_t { return 5 + 3 * rank; },
     [](int rank, std::int64_t t, std::int64_t k) { return (3 * t + 5 * k + rank) % kExperts; }},
    {"all to expert 0", [](int) -> std::int64_t { return 6; },
     [](int, std::int64_t, std::int64_t) -> std::int64_t { return 0; }},
    {"the upper half of the experts gets nothing", [](int) -> std::int64_t { return 7; },
     [](int, std::int64_t t, std::int64_t k) { return (t + k) % (kExperts / 2); }},
    {"rank 0 has no tokens", [](int rank) -> std::int64_t { return rank == 0 ? 0 : 5; },
     [](int rank, std::int64_t t, std::int64_t k) { return (t + 4 * k + rank) % kExperts; }},
    {"no rank has tokens", [](int) -> std::int64_t { return 0; },
     [](int, std::int64_t, std::int64_t) -> std::int64_t { return 0; }},
    {"pairs are dropped", [](int) -> std::int64_t { return 8; },
     [](int rank, std::int64_t t, std::int64_t k) {
       return (t + k) % 3 == 0 || t == 4 ? kDroppedPair : (5 * t + k + rank) % kExperts;
     }},
};

// Pairs of world rank `from` whose expert lies on rank `to` of its expert axis.
std::int64_t pairs_between(const Pattern& pattern, int from, int to, int ep) {
  auto ids = pattern.ids(from);
  auto local = kExperts / ep;
  return ids.ge(to * local).logical_and(ids.lt((to + 1) * local)).sum().item<std::int64_t>();
}

// Rows that leave this rank, and that come in.
std::pair<std::int64_t, std::int64_t> crossing_rows(const Pattern& pattern, const Communicator& axis) {
  std::int64_t leave = 0, enter = 0;
  auto me = axis.members()[axis.rank()];
  for (int rank = 0; rank < axis.size(); ++rank) {
    if (rank == axis.rank()) continue;
    leave += pairs_between(pattern, me, rank, axis.size());
    enter += pairs_between(pattern, axis.members()[rank], axis.rank(), axis.size());
  }
  return {leave, enter};
}

struct PlainRun {
  at::Tensor out, grad_x, grad_weights;  ///< of this rank's tokens
  ExpertWeights grads;                   ///< of all experts, summed over the ranks of the axis
};

PlainRun plain_run(const Pattern& pattern, const Communicator& axis, at::ScalarType dtype) {
  auto values = expert_weights(layer_options(kHidden, kWidth));
  const ExpertWeights all{leaf(values.gate_up.to(dtype)), leaf(values.down.to(dtype))};
  PlainRun run;
  for (int rank : axis.members()) {
    auto x = leaf(pattern.x(rank, dtype)), weights = leaf(pattern.weights(rank));
    auto out = plain_routed(x, pattern.ids(rank), weights, all);
    out.backward(pattern.seed(rank, dtype).to(at::kFloat));
    if (rank == test_world().rank()) run = {out, x.grad(), weights.grad(), {}};
  }
  run.grads = {all.gate_up.grad(), all.down.grad()};
  return run;
}

}  // namespace

// Catches: rows at the wrong expert or back at the wrong token, a rank or expert without rows that skips a collective
// or leaves its gradient undefined, expert gradients of a part of the tokens, bytes that are not the routed rows'.
BOOST_AUTO_TEST_CASE(moved_rows_equal_rows_that_stay) {
  auto& ledger = test_world().ledger();
  const int rank = test_world().rank();
  for (int ep : expert_axis_sizes()) {
    ExpertAxis experts_axis(ep);
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      for (auto& pattern : kPatterns) {
        BOOST_TEST_CONTEXT("ep " << ep << " " << c10::toString(dtype) << ": " << pattern.name) {
          auto options = layer_options(kHidden, kWidth);
          Experts experts(options, experts_axis.parallel, at::TensorOptions(dtype));
          fill_experts(experts, expert_weights(options));
          auto x = pattern.x(rank, dtype).set_requires_grad(true);
          auto weights = pattern.weights(rank).set_requires_grad(true);
          ledger.clear();

          auto plan = plan_dispatch(pattern.ids(rank), kExperts, experts_axis.parallel);
          auto out = combine(experts.compute(dispatch(x, plan), plan->expert_rows), weights, plan);
          auto forward = ledger.at("all_to_all_v", "expert");
          out.backward(pattern.seed(rank, dtype));

          auto [leave, enter] = crossing_rows(pattern, *experts_axis.axis);
          auto row_bytes = kHidden * static_cast<std::int64_t>(out.element_size());
          const int calls = ep == 1 ? 0 : 1;
          BOOST_TEST((ledger.at("all_to_all", "expert") == Traffic{calls, gather_bytes(kExperts * 8, ep)}));
          BOOST_TEST((forward == Traffic{2 * calls, (leave + enter) * row_bytes}));
          BOOST_TEST((ledger.at("all_to_all_v", "expert") == Traffic{4 * calls, 2 * (leave + enter) * row_bytes}));

          auto expected = plain_run(pattern, *experts_axis.axis, dtype);
          auto &gate_up = experts.parameters()[0].parameter, &down = experts.parameters()[1].parameter;
          const double tolerance = dtype == at::kFloat ? 1e-5 : 4e-2;
          BOOST_TEST(out.scalar_type() == dtype);
          BOOST_TEST(near(out, expected.out, tolerance));
          BOOST_TEST(near(x.grad(), expected.grad_x, tolerance));
          BOOST_TEST(near(weights.grad(), expected.grad_weights, tolerance));
          BOOST_TEST(near(gate_up.tensor().grad(), own_rows(gate_up, expected.grads.gate_up), tolerance));
          BOOST_TEST(near(down.tensor().grad(), own_rows(down, expected.grads.down), tolerance));
        }
      }
    }
  }
}

// ---- whole layers --------------------------------------------------------------------------------------------------

namespace {

at::Tensor layer_input(int rank, std::int64_t seq_len, std::int64_t hidden) {
  return noise({1, seq_len, hidden}, 100.0 + rank);
}

at::Tensor expert_bias() {
  return noise({kExperts}, 70.0) * 0.1;
}

// The layer once more, without experts that lie elsewhere; parameters of one seed.
struct PlainLayer {
  explicit PlainLayer(const MoeOptions& o)
      : gate(leaf(noise({kExperts, o.hidden_size}, 40.0))),
        experts{leaf(expert_weights(o).gate_up), leaf(expert_weights(o).down)} {
    if (o.n_shared_experts == 0) return;
    auto width = o.n_shared_experts * o.moe_intermediate_size;
    shared_gate = leaf(noise({width, o.hidden_size}, 80.0) * 0.3);
    shared_up = leaf(noise({width, o.hidden_size}, 81.0) * 0.3);
    shared_down = leaf(noise({o.hidden_size, width}, 82.0) * 0.3);
  }

  at::Tensor operator()(const at::Tensor& input) const {
    auto x = input.view({-1, input.size(-1)});
    auto scores = at::sigmoid(at::linear(x, gate));
    auto ids = std::get<1>(at::topk(scores.detach() + expert_bias(), kTopK));
    auto chosen = scores.gather(1, ids);
    auto y = plain_routed(x, ids, chosen / chosen.sum(1, true), experts);
    if (shared_gate.defined()) y = y + plain_mlp(x, shared_gate, shared_up, shared_down);
    return y.view(input.sizes());
  }

  at::Tensor gate;
  ExpertWeights experts;
  at::Tensor shared_gate, shared_up, shared_down;
};

// The same values in this rank's part.
void fill_layer(MoeLayer& layer, const PlainLayer& plain) {
  fill_experts(layer.experts(), plain.experts);
  layer.router().parameters()[0].parameter.tensor().detach().copy_(plain.gate);
  layer.router().bias().copy_(expert_bias());
  const at::Tensor shared[] = {plain.shared_gate, plain.shared_up, plain.shared_down};
  if (layer.children().size() < 3) return;
  for (std::size_t i = 0; i < 3; ++i) {
    auto& linear = *layer.children()[2].module->children()[i].module;
    linear.parameters()[0].parameter.tensor().detach().copy_(shared[i]);
  }
}

struct MeshCase {
  int outer, inner, ep;
};
std::vector<MeshCase> mesh_cases() {
  std::vector<MeshCase> all;
  for (auto& c :
       {MeshCase{1, 1, 1}, {2, 1, 2}, {2, 1, 1}, {1, 2, 2}, {2, 2, 1}, {1, 4, 2}, {2, 2, 2}, {1, 4, 4}, {2, 2, 4}}) {
    if (c.outer * c.inner == test_world().size()) all.push_back(c);
  }
  return all;
}

}  // namespace

// Catches: expert gradients that are ep times too large or miss the sink, a router or shared expert whose gradient
// misses the routed half, a bias that enters the weights, input gradients that miss one of the three ways.
BOOST_AUTO_TEST_CASE(sharded_layers_equal_one_rank) {
  auto& world = test_world();
  auto options = layer_options(16, 8);
  options.n_shared_experts = 1;
  const MoePass pass{.training = true, .loss_scale = 1.0};
  for (auto [outer, inner, ep] : mesh_cases()) {
    Mesh mesh(world, {world.size(), outer, inner, ep});
    const ExpertParallel parallel{ep, mesh.coordinate(Axis::Expert), &mesh.axis(Axis::Expert)};
    const PlainLayer plain(options);
    at::Tensor expected_out, expected_grad;
    for (int rank = 0; rank < world.size(); ++rank) {
      auto x = leaf(layer_input(rank, 6, options.hidden_size));
      auto out = plain(x);
      (out.square().sum() / world.size()).backward();
      if (rank == world.rank()) expected_out = out, expected_grad = x.grad() * world.size();
    }
    for (auto strategy : kStrategies) {
      BOOST_TEST_CONTEXT("outer " << outer << " inner " << inner << " ep " << ep << " " << to_string(strategy)) {
        MoeLayer layer(options, 3, 0, parallel, pass, at::TensorOptions(at::kFloat));
        fill_layer(layer, plain);
        ShardingRuntime runtime(layer, mesh);
        runtime.fully_shard(layer.experts(),
                            {.strategy = strategy, .mesh = UnitMesh::Expert, .grad_divisor = double(ep)});
        runtime.fully_shard(layer, {.strategy = strategy});
        auto x = leaf(layer_input(world.rank(), 6, options.hidden_size));

        auto out = layer(x);
        out.square().sum().backward();

        BOOST_TEST(near(out, expected_out, 1e-5));
        BOOST_TEST(near(x.grad(), expected_grad, 1e-5));
        BOOST_TEST(layer.router().counts().sum().item<std::int64_t>() == 6 * kTopK);
        auto gradients = full_gradients(runtime);
        auto own = [&](int i, const at::Tensor& all) {
          return own_rows(layer.experts().parameters()[i].parameter, all);
        };
        BOOST_TEST(near(gradients.at("gate.weight"), plain.gate.grad(), 1e-5));
        BOOST_TEST(near(gradients.at("experts.gate_up_proj"), own(0, plain.experts.gate_up.grad()), 1e-5));
        BOOST_TEST(near(gradients.at("experts.down_proj"), own(1, plain.experts.down.grad()), 1e-5));
        BOOST_TEST(near(gradients.at("shared_experts.gate_proj.weight"), plain.shared_gate.grad(), 1e-5));
        BOOST_TEST(near(gradients.at("shared_experts.up_proj.weight"), plain.shared_up.grad(), 1e-5));
        BOOST_TEST(near(gradients.at("shared_experts.down_proj.weight"), plain.shared_down.grad(), 1e-5));
      }
    }
  }
}

// Catches: a recomputed forward that asks for the counts again, drops other pairs, or sends rows elsewhere.
BOOST_AUTO_TEST_CASE(recomputation_changes_no_bit_and_sends_no_counts) {
  const int ep = test_world().size();
  ExpertAxis axis(ep);
  auto options = layer_options(16, 8);
  options.capacity_factor = 0.5;
  const MoePass pass{.training = true, .loss_scale = 1.0};
  MoeLayer layer(options, 0, 0, axis.parallel, pass, at::TensorOptions(at::kFloat));
  fill_layer(layer, PlainLayer(options));
  auto body = [&](const at::Tensor& x) { return layer(x); };

  std::vector<at::Tensor> kept, again;
  for (auto* results : {&kept, &again}) {
    for (auto& [name, parameter] : named_parameters(layer)) parameter.tensor().mutable_grad().reset();
    test_world().ledger().clear();
    auto x = leaf(layer_input(test_world().rank(), 9, options.hidden_size));
    auto out = results == &again ? recompute(x, body) : body(x);
    out.square().sum().backward();
    *results = {out, x.grad()};
    for (auto& [name, parameter] : named_parameters(layer)) results->push_back(parameter.tensor().grad());
    const int calls = ep == 1 ? 0 : 1;
    BOOST_TEST(test_world().ledger().at("all_to_all", "expert").count == calls);
    BOOST_TEST(test_world().ledger().at("all_to_all_v", "expert").count == (results == &again ? 6 : 4) * calls);
  }
  for (std::size_t i = 0; i < kept.size(); ++i) BOOST_TEST(at::equal(kept[i], again[i]));
  BOOST_TEST(layer.router().tally().dropped > 0);
}

// Catches: anything that adds up over steps. The case of moe/DESIGN.md section 8: every rank has one sequence of 8
// tokens.
BOOST_AUTO_TEST_CASE(five_steps_of_sgd_equal_one_rank) {
  const int ep = test_world().size();
  ExpertAxis axis(ep);
  auto options = layer_options(64, 128);
  const MoePass pass{.training = true, .loss_scale = 1.0};
  MoeLayer layer(options, 0, 0, axis.parallel, pass, at::TensorOptions(at::kFloat));
  const PlainLayer plain(options);
  fill_layer(layer, plain);
  auto loss_of = [&](const at::Tensor& out, int rank) {
    return (out - noise(out.sizes(), 200.0 + rank)).square().mean() * 8;
  };
  auto descend = [](const at::Tensor& parameter, double scale) {
    parameter.detach().sub_(parameter.grad(), 0.02 * scale);
    parameter.mutable_grad().reset();
  };

  std::vector<float> losses;
  for (int step = 0; step < 5; ++step) {
    auto expected = at::zeros({});
    for (int rank = 0; rank < ep; ++rank) {
      expected = expected + loss_of(plain(layer_input(rank, 8, options.hidden_size)), rank) / ep;
    }
    expected.backward();
    for (auto& parameter : {plain.gate, plain.experts.gate_up, plain.experts.down}) descend(parameter, 1.0);

    auto loss = loss_of(layer(layer_input(test_world().rank(), 8, options.hidden_size)), test_world().rank());
    loss.backward();
    loss = loss.detach();
    auto& gate = layer.router().parameters()[0].parameter.tensor();
    axis.axis->all_reduce(loss, ReduceOp::Average).wait();
    axis.axis->all_reduce(gate.grad(), ReduceOp::Average).wait();
    descend(gate, 1.0);
    for (auto& [name, parameter] : layer.experts().parameters()) descend(parameter.tensor(), 1.0 / ep);

    losses.push_back(loss.item<float>());
    BOOST_TEST(losses.back() == expected.item<float>(), boost::test_tools::tolerance(1e-5f));
  }
  BOOST_TEST(losses.back() < 0.9f * losses.front());
}
