#include "sharding/model_hash.h"

#include <fmt/format.h>

namespace meshard {

namespace {

template <class Bits>
std::uint64_t hash_of(const OwnedRange& owned) {
  auto values = owned.values.cpu();
  auto* bits = static_cast<const Bits*>(values.const_data_ptr());
  auto fqn_hash = hash_text(owned.parameter.fqn());
  std::uint64_t sum = 0;
  owned.parameter.parameter.slot().part.for_each_run(owned.elements, [&](const TensorPart::Run& run) {
    auto* first = bits + (run.local - owned.elements.begin);
    for (std::int64_t i = 0; i < run.count; ++i) sum += element_hash(fqn_hash, run.whole + i, first[i]);
  });
  return sum;
}

}  // namespace

std::uint64_t model_hash(const ShardingRuntime& runtime) {
  std::uint64_t mine = 0;
  for (auto& unit : runtime.units()) {
    for (auto& group : unit->groups()) {
      if (!group->counts_in_sums()) continue;
      group->for_each_owned([&](const OwnedRange& owned) {
        mine += owned.values.element_size() == 4 ? hash_of<std::uint32_t>(owned) : hash_of<std::uint16_t>(owned);
      });
    }
  }
  std::uint64_t sum = 0;
  for (auto& text : runtime.mesh().world().gather_texts(fmt::format("{}", mine))) sum += std::stoull(text);
  return sum;
}

}  // namespace meshard
