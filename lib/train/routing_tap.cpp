#include "train/routing_tap.h"

#include <fmt/format.h>

#include "base/error.h"
#include "comm/world/together.h"

namespace meshard {

namespace {

RoutingShape routing_shape(const Config& config) {
  auto& moe = *config.model.moe;
  return {config.model.num_hidden_layers - moe.first_k_dense_replace, moe.n_routed_experts, moe.num_experts_per_tok,
          config.train.seq_len, config.train.global_batch_size};
}

[[noreturn]] void refuse_replay(const std::string& why) {
  throw ConfigError(fmt::format(
      "regression.replay_routing: {}; give a file that a run of this model with regression.record_routing wrote", why));
}

void check_length(const std::string& file, const Config& config) {
  auto recorded = recorded_positions(file, routing_shape(config));
  auto needed = config.train.steps * config.train.global_batch_size;
  if (recorded >= needed) return;
  throw ConfigError(fmt::format(
      "regression.replay_routing: {} has the routing of {} samples, and this run trains on {}: train.steps can be at "
      "most {}, or record a longer run",
      file, recorded, needed, recorded / config.train.global_batch_size));
}

}  // namespace

std::unique_ptr<RoutingTap> open_replay(const Config& config) {
  if (auto& file = config.regression.record_routing) {
    auto problem = recording_problem(*file, routing_shape(config));
    if (!problem.empty()) {
      throw ConfigError(fmt::format("regression.record_routing: {}; choose another file", problem));
    }
  }
  auto& file = config.regression.replay_routing;
  if (!file) return nullptr;
  if (std::filesystem::exists(*file) && !std::filesystem::is_regular_file(*file)) {
    refuse_replay(fmt::format("{} is no regular file", *file));
  }
  try {
    auto tap = replay_routing(*file, routing_shape(config));
    check_length(*file, config);
    return tap;
  } catch (const IoError& error) {
    refuse_replay(error.what());
  }
}

std::unique_ptr<RoutingTap> start_recording(World& world, const Config& config) {
  auto& file = config.regression.record_routing;
  if (!file) return nullptr;
  on_rank_0(world, [&] { create_routing_file(*file, routing_shape(config)); });
  return together(world, [&] { return record_routing(*file, routing_shape(config)); });
}

}  // namespace meshard
