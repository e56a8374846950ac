#include "train/initialise.h"

#include <ATen/ops/empty_like.h>

#include "base/hash.h"
#include "nn/init.h"
#include "sharding/unit_plan.h"

namespace meshard {

namespace {

// Values are made on the host, where log and cos are the same for everyone, and then copied. `values`: elements
// `elements` of the slot's tensor.
void fill(const Slot& slot, at::Tensor values, const IndexRange& elements, std::uint64_t seed, const std::string& fqn) {
  auto host = values.is_cpu() ? values : at::empty_like(values, values.options().device(at::kCPU));
  auto fqn_hash = hash_text(fqn);
  slot.part.for_each_run(elements, [&](const TensorPart::Run& run) {
    auto part = host.narrow(0, run.local - elements.begin, run.count);
    fill_initial(part, slot.init, seed, fqn_hash, run.whole);
  });
  if (!host.is_same(values)) values.copy_(host);
}

}  // namespace

void initialise_sharded(ShardingRuntime& runtime, std::uint64_t seed) {
  runtime.for_each_owned([&](const OwnedRange& owned) {
    fill(owned.parameter.parameter.slot(), owned.values, owned.elements, seed, owned.parameter.fqn());
  });
  runtime.refresh_weights();
}

void initialise_whole(Module& model, std::uint64_t seed) {
  ModuleNames names(model);
  for (auto& [fqn, parameter] : names.parameters()) {
    if (fqn != names.of(parameter).front()) continue;  // tied: done under its first name
    auto values = parameter.tensor().detach().view({-1});
    fill(parameter.slot(), values, {0, values.numel()}, seed, fqn);
  }
}

}  // namespace meshard
