#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "plan/search.h"

namespace meshard {

std::string search_text(const SearchResult& result, const SearchOptions& options, const Hardware& hardware) {
  auto text = fmt::format("search      {} ranks of {}, at most {:.4g} GB a rank: {} candidates\n", options.ranks,
                          hardware.name, options.memory_limit_gb, result.considered);
  for (auto& row : result.ruled_out) {
    text += fmt::format("  {} {}{}\n", row.count, row.why, row.nearest.empty() ? "" : "; " + row.nearest);
  }
  if (result.best.empty()) return text + "none fits";
  text += fmt::format("{:>3} {:>10} {:>9} {:>6} {:>9} {:>9}\n", "", "step", "tokens/s", "mfu", "exposed", "memory");
  int place = 0;
  for (auto& mesh : result.best) {
    text += fmt::format("{:>3} {:>7.{}f} ms {:>9} {:>4.1f} % {:>7.1f} % {:>9}  {}\n", ++place, 1e3 * mesh.seconds,
                        mesh.seconds < 1.0 ? 1 : 0, human_count(static_cast<std::int64_t>(mesh.tokens_per_s)),
                        100.0 * mesh.mfu, 100.0 * mesh.exposed_s / mesh.seconds, human_bytes(mesh.memory_bytes),
                        mesh.settings(result.free));
  }
  text.pop_back();
  return text;
}

nlohmann::ordered_json search_json(const SearchResult& result, const SearchOptions& options, const Hardware& hardware) {
  auto best = nlohmann::ordered_json::array(), ruled_out = nlohmann::ordered_json::array();
  for (auto& mesh : result.best) {
    best.push_back({{"settings", mesh.settings(result.free)},
                    {"dp_outer", mesh.dp_outer},
                    {"dp_shard", mesh.dp_shard},
                    {"strategy", to_string(mesh.strategy)},
                    {"expert", mesh.expert},
                    {"recompute", mesh.recompute},
                    {"micro_batch_size", mesh.micro_batch},
                    {"step_s", mesh.seconds},
                    {"tokens_per_s", mesh.tokens_per_s},
                    {"mfu", mesh.mfu},
                    {"exposed_s", mesh.exposed_s},
                    {"memory_bytes", mesh.memory_bytes}});
  }
  for (auto& row : result.ruled_out)
    ruled_out.push_back({{"why", row.why}, {"count", row.count}, {"nearest", row.nearest}});
  return {{"hardware", hardware.name},
          {"ranks", options.ranks},
          {"memory_limit_gb", options.memory_limit_gb},
          {"considered", result.considered},
          {"ruled_out", std::move(ruled_out)},
          {"best", std::move(best)}};
}

}  // namespace meshard
