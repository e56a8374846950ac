#pragma once
// regression.record_routing and regression.replay_routing.

#include <memory>

#include "comm/world/world.h"
#include "config/config.h"
#include "moe/routing_file.h"

namespace meshard {

/// Local. The tap that replays, or null if the config asks for none. Throws ConfigError, naming the key, for a file
/// that cannot be opened, is none, is of another model, or ends before this run does; and for a file to be recorded in
/// a folder that is not there. Before anything is written.
std::unique_ptr<RoutingTap> open_replay(const Config& config);

/// Collective over world. The tap that records, or null. Rank 0 makes the file, which every rank then opens.
std::unique_ptr<RoutingTap> start_recording(World& world, const Config& config);

}  // namespace meshard
