#include "sharding/model_hash.h"

#include <fmt/format.h>

namespace meshard {

namespace {

template <class Bits>
std::uint64_t hash_range(const at::Tensor& values, std::uint64_t fqn_hash, std::int64_t begin) {
  auto* bits = static_cast<const Bits*>(values.const_data_ptr());
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) sum += element_hash(fqn_hash, begin + i, bits[i]);
  return sum;
}

}  // namespace

std::uint64_t model_hash(const ShardingContext& context) {
  std::uint64_t mine = 0;
  for (auto& unit : context.units()) {
    for (auto& group : unit->groups()) {
      if (!group->counts_in_sums()) continue;
      group->for_each_owned([&](const OwnedRange& owned) {
        auto values = owned.values.cpu();
        auto name = hash_text(owned.parameter.fqn());
        mine += values.element_size() == 4 ? hash_range<std::uint32_t>(values, name, owned.begin)
                                           : hash_range<std::uint16_t>(values, name, owned.begin);
      });
    }
  }
  std::uint64_t sum = 0;
  for (auto& text : context.mesh().world().gather_texts(fmt::format("{}", mine))) sum += std::stoull(text);
  return sum;
}

}  // namespace meshard
