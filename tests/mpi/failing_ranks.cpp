// Runs that fail, for failures_test.sh: failing_ranks MODE [DUMP_FOLDER]. Rank 1 is the one that misbehaves.

#include <ATen/ops/zeros.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "comm/world/world.h"

using namespace meshard;

namespace {

void gather(Communicator& axis, int unit) {
  auto full = at::zeros({axis.size() * 1000}, at::kFloat);
  axis.all_gather(full, full.narrow(0, axis.rank() * 1000, 1000), {.unit = "layer." + std::to_string(unit)}).wait();
}

void stop(World& world, Communicator& axis) {
  for (int unit = 0; unit < 300; ++unit) gather(axis, unit);
  if (world.rank() == 1) ::raise(SIGSTOP);
  gather(axis, 300);
}

// Longer than the timeout, but nobody waits longer than that.
void compute_apart(World& world) {
  std::this_thread::sleep_for(std::chrono::seconds(4));
  world.control().barrier();
}

// Rank 1 leaves while collectives are on their way, in the hands of a thread, and takes its communicator down.
void leave_in_flight(Communicator& axis, bool all) {
  auto full = at::zeros({axis.size() << 20}, at::kFloat), sum = at::zeros({1 << 20}, at::kFloat);
  auto gathered = axis.all_gather(full, full.narrow(0, axis.rank() << 20, 1 << 20));
  auto reduced = axis.all_reduce(sum, ReduceOp::Sum);
  if (all || axis.rank() == 1) throw IoError("left in flight");
  gathered.wait();
  reduced.wait();
  gather(axis, 0);
}

void misbehave(World& world, const std::string& mode) {
  auto axis = world.split(0, world.rank(), "dp_shard");
  world.enter_phase("training");
  constexpr std::chrono::seconds patience{2};
  if (mode == "stop") stop(world, *axis);
  if (mode == "compute") compute_apart(world);
  if (mode == "one" && world.rank() == 1) {
    if (world.all_end(patience)) throw IoError("the others end, too");
    throw IoError("cannot write metrics.jsonl: No space left on device");
  }
  if (mode == "all") throw ConfigError(world.all_end(patience) ? "3 problems in run.yaml" : "the others go on");
  if (mode == "flight" || mode == "flight_all") leave_in_flight(*axis, mode == "flight_all");
  if (mode == "each") throw CommError("problem of rank " + std::to_string(world.rank()));
  gather(*axis, 0);
}

}  // namespace

int main(int argc, char** argv) {
  std::string mode = argv[1];
  WorldOptions options;
  options.backend = Backend::Mpi;
  // Where a rank fails, its peers must end because of that and not because of the watchdog.
  options.timeout = std::chrono::seconds(mode == "stop" || mode == "compute" ? 2 : 60);
  if (argc > 2) options.dump_dir = argv[2];
  if (mode.starts_with("flight")) options.progress = MpiProgress::Thread;
  if (mode == "expect") options.expect_ranks = 64;
  try {
    World world(options);
    if (mode == "unwind" && world.rank() == 1) throw IoError("nobody caught this inside");
    try {
      misbehave(world, mode == "unwind" ? "" : mode);
    } catch (const Error& error) {
      world.abandon(error.what(), error.code());
    }
  } catch (const Error& error) {
    if (mode == "unwind" || launch_of_environment().rank == 0) Log::error(error.what());
    return error.code();
  }
}
