// What a MoE layer of moe.yaml spends besides its products: routing, sorting and moving rows, forward and backward, of
// one microbatch. Prints {"ms": median}. Usage: routing_cost THREADS

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "moe/dispatch.h"
#include "moe/router.h"

using namespace meshard;

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  constexpr std::int64_t kTokens = 8 * 256, kRuns = 60;
  MoeOptions options;
  options.hidden_size = options.moe_intermediate_size = 192;
  options.n_routed_experts = 8;
  options.num_experts_per_tok = 2;
  MoePass pass{.training = true, .loss_scale = 1.0 / kTokens};
  Router router(options, 0, pass, at::kFloat);
  router.parameters().front().parameter.tensor().detach().copy_(at::randn({8, 192}) * 0.02);
  auto x = at::randn({kTokens, 192}).set_requires_grad(true);
  auto grad = at::randn({kTokens, 192});

  std::vector<double> ms;
  for (int run = 0; run < kRuns; ++run) {
    auto begin = std::chrono::steady_clock::now();
    auto routing = router.route(x, 256);
    auto plan = plan_dispatch(routing.ids, options.n_routed_experts, {});
    combine(dispatch(x, plan), routing.weights, plan).backward(grad);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::nth_element(ms, ms.begin() + kRuns / 2);
  std::printf("{\"ms\": %.3f}\n", ms[kRuns / 2]);
}
