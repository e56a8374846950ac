// What logging one step costs: gathering over the ranks, the line of metrics.jsonl, the line printed; 8 MoE layers,
// with `per_layer` every expert of them. Prints {"ms": median}, of the slowest rank.
// Usage: mpirun -n N metrics_cost CONFIG FOLDER [per_layer] >/dev/null

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "config/config.h"
#include "train/metrics.h"

using namespace meshard;

namespace {

StepRecord moe_step(std::int64_t layers, std::int64_t experts, bool per_layer) {
  StepRecord record{.step = 1, .tokens = 4096, .loss = 1.9231, .grad_norm = 0.41, .lr = 2.1e-3, .seconds = 0.05};
  auto& balance = record.balance.emplace();
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    LayerBalance one;
    one.layer = layer;
    one.counts.assign(static_cast<std::size_t>(experts), 4096 / experts);
    one.bias.assign(static_cast<std::size_t>(experts), 1.25e-3f);
    balance.layers.push_back(std::move(one));
    if (per_layer) record.unit_norms.emplace_back(fmt::format("model.layers.{}", layer), 0.1);
  }
  return record;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) return kExitUsage;
  World world;
  auto config = load_config(argv[1], {fmt::format("logging.per_layer={}", argc == 4)}, world.size());
  Log log(world.rank() == 0);
  Metrics metrics(world, log, config, std::filesystem::path(argv[2]) / "metrics.jsonl", true, 1e9);
  auto record = moe_step(8, 8, argc == 4);

  std::vector<double> ms;
  for (int run = 0; run < 500; ++run) {
    world.control().barrier();
    auto begin = std::chrono::steady_clock::now();
    metrics.step(record, world.ledger(), false);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::nth_element(ms, ms.begin() + 250);
  auto slowest = spreads_over_ranks(world, {ms[250]}).front().max;
  if (world.rank() == 0) fmt::print(stderr, "{{\"ms\": {:.4f}}}\n", slowest);
}
