#pragma once
// A command that runs under mpirun.

#include "base/error.h"
#include "base/memory.h"
#include "comm/world/world.h"

namespace meshard {

/// Collective over all processes of the launch. Makes the World, does `work(world)` and returns its exit code. An error
/// that it throws ends all ranks, as World::abandon() says.
template <class Work>
int on_every_rank(const WorldOptions& options, const Work& work) {
  World world(options);
  try {
    return work(world);
  } catch (const Error& error) {
    world.abandon(error.what(), error.code());
  } catch (const std::exception& error) {
    world.abandon(message_of(error), kExitFailure);
  }
}

}  // namespace meshard
