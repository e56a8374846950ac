// A model of one's own, built without memory, sharded over the ranks of an mpirun and trained with AdamW: learns y =
// 2x.

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>

#include <cstdio>

#include "base/error.h"
#include "mesh/mesh.h"
#include "optim/optimizer.h"
#include "sharding/runtime.h"

namespace {

class Double : public meshard::Module {
 public:
  explicit Double(const at::TensorOptions& options)
      : weight_(add_parameter("weight", {4, 4}, options, meshard::Init::constant(0.1), /*decay=*/true)) {}

 private:
  at::Tensor forward(const at::Tensor& input) override { return at::linear(input, weight_); }

  meshard::Parameter weight_;
};

}  // namespace

int main() {
  meshard::World world;
  meshard::Mesh mesh(world, meshard::MeshShape(world.size(), /*dp_outer=*/1, /*dp_shard=*/world.size()));

  Double model(at::TensorOptions(at::kFloat).device(at::kMeta));
  meshard::ShardingRuntime runtime(model, mesh);
  runtime.fully_shard(model, {.strategy = meshard::Strategy::Fsdp});
  runtime.for_each_owned([](const meshard::OwnedRange& owned) { owned.values.fill_(0.1); });
  runtime.refresh_weights();

  meshard::AdamW optimizer({.weight_decay = 0.0});
  auto x = at::full({1, 4}, 1.0 + world.rank()).to(world.device());
  double loss = 0.0;
  for (int step = 0; step < 200; ++step) {
    auto error = (model(x) - 2 * x).square().mean();
    error.backward();
    optimizer.step(runtime.flat_shards(), /*lr=*/0.01);
    runtime.refresh_weights();
    runtime.zero_grad();
    loss = error.item<double>();
  }
  std::printf("rank %d of %d: loss %.2e\n", world.rank(), world.size(), loss);
  return loss < 1e-3 ? meshard::kExitDone : meshard::kExitFailure;
}
