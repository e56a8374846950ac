#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "base/error.h"
#include "module/device_path.h"
#include "optim/optimizer.h"
#include "sharding/gradient_norm.h"

using namespace meshard;

namespace {
/// Values in [-1, 1] without a pattern that a cut could hide.
at::Tensor wave(std::int64_t size, double frequency) {
  return at::sin(at::arange(size, at::kDouble).mul(frequency)).to(at::kFloat);
}

at::Tensor grad_of_step(std::int64_t size, int step) {
  return wave(size, 0.37 + 0.11 * step);
}

FlatShard shard_of(std::string name, at::Tensor weight, at::Tensor grad, std::vector<DecayRun> runs) {
  return {std::move(name), std::move(weight), std::move(grad), std::move(runs)};
}

std::vector<double> values(const at::Tensor& tensor) {
  auto wide = tensor.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

bool has(const std::vector<DecayRun>& runs, std::int64_t i, bool decay) {
  for (auto& run : runs) {
    if (run.begin <= i && i < run.end && run.decay == decay) return true;
  }
  return false;
}

constexpr double kLr = 0.01;
constexpr int kSteps = 5;

/// AdamW as its paper has it, one element at a time, in double.
std::vector<double> adamw_reference(const at::Tensor& start, const std::vector<DecayRun>& runs, const AdamWOptions& o) {
  auto w = values(start);
  std::vector<double> m(w.size()), v(w.size());
  for (int t = 1; t <= kSteps; ++t) {
    auto g = values(grad_of_step(start.numel(), t));
    for (std::size_t i = 0; i < w.size(); ++i) {
      auto at = static_cast<std::int64_t>(i);
      bool decay = has(runs, at, true);
      if (!decay && !has(runs, at, false)) continue;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
      if (decay) w[i] -= kLr * o.weight_decay * w[i];
      double m_hat = m[i] / (1 - std::pow(o.beta1, t)), v_hat = v[i] / (1 - std::pow(o.beta2, t));
      w[i] -= kLr * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
  return w;
}

/// Takes kSteps steps on the elements [0, size) held as pieces between the given cuts, one shard each.
at::Tensor train_in_pieces(Optimizer& optimizer, std::int64_t size, std::vector<std::int64_t> cuts,
                           const std::vector<DecayRun>& runs) {
  auto weight = wave(size, 1.7);
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(size);
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<FlatShard> shards;
    for (std::size_t piece = 0; piece + 1 < cuts.size(); ++piece) {
      auto begin = cuts[piece], end = cuts[piece + 1];
      std::vector<DecayRun> local;
      for (auto run : runs) {
        run = {std::max(run.begin, begin) - begin, std::min(run.end, end) - begin, run.decay};
        if (run.begin < run.end) local.push_back(run);
      }
      shards.push_back(shard_of("piece" + std::to_string(piece), weight.slice(0, begin, end),
                                grad_of_step(size, t).slice(0, begin, end), local));
    }
    optimizer.step(shards, kLr);
  }
  return weight;
}

const std::vector<DecayRun> kRuns{
    {0, 700, true}, {700, 751, false}, {751, 751, true}, {760, 1013, true}, {1013, 1020, false}};
constexpr std::int64_t kSize = 1030;  // with a gap before 760 and padding at the end
}  // namespace

// Catches: a wrong bias correction, coupled weight decay, decay on the wrong runs, padding that is trained.
BOOST_AUTO_TEST_CASE(adamw_is_the_papers) {
  AdamWOptions options{0.9, 0.95, 1e-8, 0.1};
  AdamW optimizer(options);

  auto trained = values(train_in_pieces(optimizer, kSize, {}, kRuns));

  auto expected = adamw_reference(wave(kSize, 1.7), kRuns, options);
  for (std::size_t i = 0; i < trained.size(); ++i) BOOST_REQUIRE_SMALL(trained[i] - expected[i], 2e-6);
  BOOST_TEST(optimizer.steps() == kSteps);
}

// Catches: results that depend on where a shard boundary falls, that is on the mesh.
BOOST_AUTO_TEST_CASE(cutting_a_shard_changes_no_bit) {
  AdamW whole_adamw({}), cut_adamw({});
  Sgd whole_sgd({0.1}), cut_sgd({0.1});
  std::vector<std::int64_t> cuts;  // rounding differs in one element of a hundred: make most of them ends of runs
  for (std::int64_t cut = 1; cut < kSize; cut += 7) cuts.push_back(cut);

  BOOST_TEST(at::equal(train_in_pieces(whole_adamw, kSize, {}, kRuns), train_in_pieces(cut_adamw, kSize, cuts, kRuns)));
  BOOST_TEST(at::equal(train_in_pieces(whole_sgd, kSize, {}, kRuns), train_in_pieces(cut_sgd, kSize, cuts, kRuns)));
}

// Catches: momentum in a plain SGD, the learning rate left out of the decay, decay on the wrong run.
BOOST_AUTO_TEST_CASE(sgd_is_plain) {
  auto weight = at::full({20}, 4.0f), grad = at::full({20}, 2.0f);
  std::vector<FlatShard> shards{shard_of("s", weight, grad, {{0, 17, true}, {17, 19, false}})};
  Sgd optimizer({0.5});

  optimizer.step(shards, 0.25);
  BOOST_TEST(values(weight.slice(0, 0, 17)) == std::vector<double>(17, 3.0));  // 4 - 0.25 * (2 + 0.5 * 4)
  BOOST_TEST(values(weight.slice(0, 17)) == (std::vector<double>{3.5, 3.5, 4.0}));

  optimizer.step(shards, 0.25);
  BOOST_TEST(values(weight.slice(0, 17)) == (std::vector<double>{3.0, 3.0, 4.0}));
  BOOST_TEST(optimizer.state().empty());
}

// Catches: state that is a copy, lies differently from its shard, or is lost on the way through a checkpoint.
BOOST_AUTO_TEST_CASE(state_carries_a_run_over) {
  std::vector<DecayRun> runs{{0, 40, true}};
  auto weight = wave(40, 1.7);
  auto step_at = [&](Optimizer& optimizer, at::Tensor& on, int t) {
    optimizer.step(std::vector{shard_of("unit[fp32]", on, grad_of_step(40, t), runs)}, kLr);
  };
  AdamW first({});
  BOOST_TEST(first.state().empty());
  step_at(first, weight, 1);
  step_at(first, weight, 2);

  auto resumed_weight = weight.clone();
  AdamW resumed({});
  resumed.allocate(std::vector{shard_of("unit[fp32]", resumed_weight, {}, runs)});
  auto from = first.state(), to = resumed.state();
  BOOST_REQUIRE(to.size() == 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    BOOST_TEST(to[i].shard == "unit[fp32]");
    BOOST_TEST(to[i].name == (i == 0 ? "exp_avg" : "exp_avg_sq"));
    BOOST_TEST(to[i].tensor.numel() == 40);
    to[i].tensor.copy_(from[i].tensor);
  }
  resumed.set_steps(first.steps());

  step_at(first, weight, 3);
  step_at(resumed, resumed_weight, 3);
  BOOST_TEST(at::equal(weight, resumed_weight));
  BOOST_TEST(first.bytes_per_element() == 8);
}

// Catches: a rank that owns nothing, or an empty run, breaking the step of the others.
BOOST_AUTO_TEST_CASE(owning_nothing_is_legal) {
  auto empty = at::zeros({0}), padding = at::ones({8}), weight = at::ones({16});
  std::vector<FlatShard> shards{shard_of("empty", empty, empty, {{0, 0, true}}), shard_of("padding", padding, {}, {}),
                                shard_of("some", weight, at::ones({16}), {{0, 16, false}})};
  AdamW optimizer({});
  optimizer.step(shards, 0.5);
  BOOST_TEST(values(padding) == std::vector<double>(8, 1.0));
  BOOST_TEST(weight[0].item<float>() == 0.5f, boost::test_tools::tolerance(1e-5f));
}

// Catches: weights that need a gradient making the update part of the graph.
BOOST_AUTO_TEST_CASE(the_update_is_outside_autograd) {
  auto weight = at::ones({21}).requires_grad_();
  AdamW({}).step(std::vector{shard_of("s", weight, at::ones({21}), {{0, 21, true}})}, 0.5);
  BOOST_TEST(weight.is_leaf());
  BOOST_TEST(weight.detach()[20].item<float>() < 0.6f);
}

// Catches: a half-done step, or an error that does not say which shard.
BOOST_AUTO_TEST_CASE(contract_violations_name_the_shard_and_change_nothing) {
  auto weight = at::ones({16}), grad = at::ones({16});
  std::vector<DecayRun> runs{{0, 16, true}};
  auto good = shard_of("good", weight, grad, runs);
  auto names_it = [](const Error& error) { return std::string(error.what()).find("bad") != std::string::npos; };
  AdamW optimizer({});
  auto step = [&](FlatShard bad) { optimizer.step(std::vector{good, std::move(bad)}, 0.5); };

  BOOST_CHECK_EXCEPTION(step(shard_of("bad", at::ones({16}), {}, runs)), LogicError, names_it);
  BOOST_CHECK_EXCEPTION(step(shard_of("bad", at::ones({16}), at::ones({15}), runs)), ShapeError, names_it);
  BOOST_CHECK_EXCEPTION(step(shard_of("bad", at::ones({16}), grad.to(at::kBFloat16), runs)), ShapeError, names_it);
  BOOST_CHECK_EXCEPTION(step(shard_of("bad", at::ones({4, 4}), grad, runs)), ShapeError, names_it);
  BOOST_CHECK_EXCEPTION(step(shard_of("bad", at::ones({16}), grad, {{0, 17, true}})), ShapeError, names_it);
  BOOST_CHECK_THROW(step(good), LogicError);
  BOOST_TEST(values(weight) == std::vector<double>(16, 1.0));
  BOOST_TEST(optimizer.steps() == 0);

  optimizer.step(std::vector{good}, 0.5);
  BOOST_CHECK_EXCEPTION(step(shard_of("bad", at::ones({16}), grad, runs)), LogicError, names_it);
}

// Catches: a block left out or counted twice.
BOOST_AUTO_TEST_CASE(squares_are_summed_block_by_block) {
  for (auto [dtype, block] : {std::pair{at::kFloat, 1 << 18}, {at::kBFloat16, 1 << 18}, {at::kDouble, 1 << 24}}) {
    auto flat = at::ones({block + 3}, dtype);
    for (std::int64_t i : {0, block - 1, block, block + 2}) flat[i] = 8;
    BOOST_TEST(sum_of_squares(flat).item<double>() == block + 3 + 4 * 63.0);
  }
  auto strided = at::full({1}, 2, at::kBFloat16).expand({(1 << 25) + 1});
  BOOST_TEST(sum_of_squares(strided).item<double>() == 4.0 * strided.numel());
  BOOST_TEST(sum_of_squares(at::zeros({0})).item<double>() == 0.0);
}

// Catches: an index of 32 bits. The zeros are never written, so they take no memory.
BOOST_AUTO_TEST_CASE(squares_of_more_than_2_31_elements_are_summed) {
  constexpr std::int64_t kCount = (std::int64_t{1} << 31) + 5, kBytes = 2 * kCount;
  auto* zeros = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BOOST_REQUIRE(zeros != MAP_FAILED);
  madvise(zeros, kBytes, MADV_HUGEPAGE);
  auto flat = at::from_blob(zeros, {kCount}, at::kBFloat16);
  flat[kCount - 1] = 3;
  flat[std::int64_t{1} << 31] = 2;
  BOOST_TEST(sum_of_squares(flat).item<double>() == 13.0);
  munmap(zeros, kBytes);
}

// Catches: a norm whose last bits depend on the number of threads.
BOOST_AUTO_TEST_CASE(squares_sum_to_the_same_bits_with_any_number_of_threads) {
  auto flat = wave(1'000'003, 0.37);
  auto threads = at::get_num_threads();
  std::vector<double> sums;
  for (int count : {1, 2, 3, 8}) {
    at::set_num_threads(count);
    sums.push_back(sum_of_squares(flat).item<double>());
  }
  at::set_num_threads(threads);
  BOOST_TEST(sums == std::vector<double>(4, sums.front()), boost::test_tools::per_element());
}

// Catches: a scale that is not applied, or its inverse is; decay scaled along with the gradient.
BOOST_AUTO_TEST_CASE(gradients_are_scaled_in_passing) {
  const std::vector<DecayRun> runs{{0, 21, true}, {21, 40, false}};
  auto gradient = at::randn({40}), start = at::randn({40});
  for (int kind = 0; kind < 2; ++kind) {
    auto step = [&](const at::Tensor& grad, double scale) {
      auto weight = start.clone();
      std::unique_ptr<Optimizer> optimizer;
      if (kind == 0) {
        optimizer = std::make_unique<AdamW>(AdamWOptions{.eps = 0.1});
      } else {
        optimizer = std::make_unique<Sgd>(SgdOptions{.weight_decay = 0.1});
      }
      optimizer->step(std::vector{shard_of("s", weight, grad.clone(), runs)}, 0.5, scale);
      return weight;
    };
    BOOST_TEST(at::allclose(step(gradient, 0.25), step(gradient * 0.25, 1.0), 1e-6, 1e-7));
    BOOST_TEST(!at::allclose(step(gradient, 0.25), step(gradient, 1.0), 1e-3, 1e-3));
  }
}

// Catches: a block of fp32 sums that is left out or counted twice, elements after the last whole block, a device's way
// that rounds more than blocks of fp32 do.
BOOST_AUTO_TEST_CASE(a_device_sums_squares_in_blocks) {
  for (std::int64_t size : {0, 1, 511, 512, 513, 50000}) {
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      auto flat = at::randn({size}).to(dtype);
      auto expected = sum_of_squares(flat).item<double>();
      const DevicePathScope path;
      BOOST_TEST(sum_of_squares(flat).item<double>() == expected, boost::test_tools::tolerance(5e-7));
    }
  }
}
