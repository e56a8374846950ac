#pragma once
// The sharding strategies, the one word that config and sharding share. sharding/DESIGN.md section 4.

#include <array>
#include <string_view>

namespace meshard {

/// Ddp: all replicated. Zero1: optimizer sharded. Zero2: and gradients. Fsdp: and parameters, over all ranks.
/// Hsdp: sharded within dp_shard, replicated over dp_outer. Hfsdp: and the optimizer sharded over dp_outer too.
enum class Strategy { Ddp, Zero1, Zero2, Fsdp, Hsdp, Hfsdp };

inline constexpr std::array<std::string_view, 6> kStrategyNames = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};

constexpr std::string_view to_string(Strategy strategy) {
  return kStrategyNames[static_cast<std::size_t>(strategy)];
}

}  // namespace meshard
