#pragma once
// The meshes and strategies of a config by predicted step time: all that fit the ranks, the experts, the batch and the
// memory. Units are laid out once per number of expert ranks; all else only moves them.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/step_model.h"

namespace meshard {

/// What a search may change; the rest stays as the config has it.
struct SearchKeys {
  bool mesh = true;  ///< dp_outer and dp_shard
  bool strategy = true, expert = true, recompute = true, micro_batch = true;
};

struct SearchOptions {
  int ranks = 1;
  double memory_limit_gb = 80.0;  ///< 1e9 bytes a rank
  SearchKeys free;
  int most = 10;  ///< of the best that are told
};

struct FoundMesh {
  int dp_outer = 1, dp_shard = 1, expert = 1;
  Strategy strategy = Strategy::Fsdp;
  bool recompute = false;
  std::int64_t micro_batch = 1;
  double seconds = 0.0;  ///< predicted, of a step
  double tokens_per_s = 0.0, mfu = 0.0;
  double exposed_s = 0.0;         ///< communication, of all axes
  std::int64_t memory_bytes = 0;  ///< of a rank

  /// Local. The options that pick it: "--set parallel.dp_outer=4 --set ...", of the keys that were free.
  std::string settings(const SearchKeys& free) const;
};

/// Why some were not taken.
struct RuledOut {
  std::string why;  ///< "need more than 80 GB a rank"
  std::int64_t count = 0;
  std::string nearest;  ///< the one that came nearest; may be empty
};

struct SearchResult {
  SearchKeys free;  ///< what was searched: of a dense model no expert ranks
  std::vector<FoundMesh> best;
  std::int64_t considered = 0;  ///< legal and different from one another
  std::vector<RuledOut> ruled_out;
};

/// Local. The config with what is free to be searched at values that fit every number of ranks; what load_config()
/// needs to add to `overrides` for it. A key in `overrides` is not free: that goes into `free`.
std::vector<std::string> neutral_overrides(const std::vector<std::string>& overrides, SearchKeys& free);

/// Local. Every mesh, strategy, expert ranks, recomputation and micro-batch that the config would be accepted with and
/// that differs in what is done: a dp_outer beside fsdp is none, hsdp without one is fsdp. Ties, step times equal in
/// three digits, go to less memory, then fewer expert ranks, the smaller dp_outer, the simpler strategy, the larger
/// micro-batch. `config` must have been loaded for that number of ranks. ConfigError as axis_link().
SearchResult search_meshes(const Config& config, const SearchOptions& options, const Hardware& hardware);

/// Local. Tables for people.
std::string search_text(const SearchResult& result, const SearchOptions& options, const Hardware& hardware);

/// Local. The object `search` of train/CONTRACT.md section 9.
nlohmann::ordered_json search_json(const SearchResult& result, const SearchOptions& options, const Hardware& hardware);

}  // namespace meshard
