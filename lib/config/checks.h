#pragma once
// What no single key can tell: defaults that follow from other keys, and contradictions between keys or with the number
// of ranks. Keys that already have a problem are left out of comparisons.

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/report.h"

namespace meshard {

/// Local. Fills num_key_value_heads, head_dim, max_position_embeddings and expert_bias.enabled in, where not given.
/// Problems of the attention shape and the mixture of experts (moe/DESIGN.md section 1) go into `report`.
void check_model(Config& config, Report& report);

/// Local. Resolves dp_shard: auto. Problems of run name, mesh, batch, precision, schedule and data go into `report`.
void check_run(Config& config, int ranks, Report& report);

/// Local. The numbers that divide all of `numbers`, as "1, 2 or 4"; only those around `near` where they are many.
std::string divisors(const std::vector<std::int64_t>& numbers, std::int64_t near);

}  // namespace meshard
