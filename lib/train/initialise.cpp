#include "train/initialise.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "base/hash.h"
#include "nn/init.h"
#include "sharding/unit_plan.h"

namespace meshard {

namespace {

// Values are made on the host, where log and cos are the same for everyone, and then copied.
void fill(at::Tensor values, const Init& init, std::uint64_t seed, const std::string& fqn, std::int64_t begin) {
  auto host = values.is_cpu() ? values : at::empty_like(values, values.options().device(at::kCPU));
  fill_initial(host, init, seed, hash_text(fqn), begin);
  if (!host.is_same(values)) values.copy_(host);
}

}  // namespace

void initialise_sharded(ShardingContext& context, std::uint64_t seed) {
  context.for_each_owned([&](const OwnedRange& owned) {
    fill(owned.values, owned.parameter.parameter.slot().init, seed, owned.parameter.fqn(), owned.begin);
  });
  context.refresh_weights();
}

void initialise_whole(Module& model, std::uint64_t seed) {
  ModuleNames names(model);
  for (auto& [fqn, parameter] : names.parameters()) {
    if (fqn != names.of(parameter).front()) continue;  // tied: done under its first name
    auto& slot = parameter.slot();
    auto row = slot.tensor.numel() / std::max<std::int64_t>(slot.shape.front(), 1);
    fill(parameter.tensor().detach().view({-1}), slot.init, seed, fqn, slot.first_row * row);
  }
}

}  // namespace meshard
