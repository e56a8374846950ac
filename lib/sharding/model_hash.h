#pragma once
// One number for all weights of a model, the same on any mesh.

#include <cstdint>

#include "base/hash.h"
#include "sharding/runtime.h"

namespace meshard {

/// Local. The contribution of one element: mix64(mix64(fqn_hash + index) ^ bits), where `bits` is the element's bit
/// pattern zero-extended to 64 bits, `index` its position in the flattened full parameter, and mix64 the splitmix64
/// finaliser of base/hash.h.
constexpr std::uint64_t element_hash(std::uint64_t fqn_hash, std::int64_t index, std::uint64_t bits) {
  return mix64(mix64(fqn_hash + static_cast<std::uint64_t>(index)) ^ bits);
}

/// Collective over world (control traffic). The sum modulo 2^64 of element_hash() over the main weights, each physical
/// parameter once, under its first FQN. DESIGN.md section 7.
std::uint64_t model_hash(const ShardingRuntime& runtime);

}  // namespace meshard
