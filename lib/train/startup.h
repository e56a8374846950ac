#pragma once
// What a run says of itself before its first step.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/world/world.h"
#include "plan/plan.h"

namespace meshard {

struct StartupFacts {
  const Plan& plan;
  std::string corpus;  ///< one line
  std::string resolved_config;
  std::uint64_t model_hash = 0;
  const Ledger& start_traffic;  ///< collectives before the first step
  std::int64_t steps_done = 0;  ///< by earlier parts of this run
};

/// Local. Versions, mesh, ranks, parameters, bytes per rank by purpose, the resolved config.
std::string startup_text(World& world, const StartupFacts& facts);

/// Local. The same as the header of metrics.jsonl.
nlohmann::ordered_json startup_json(World& world, const StartupFacts& facts);

}  // namespace meshard
