#pragma once
// What a World owns, and how its ranks find together before, and fail together after, there are communicators.
// Private to world.cpp.

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/backend.h"
#include "comm/nccl/device_backend.h"
#include "comm/recorder.h"
#include "comm/timeline/order_observer.h"
#include "comm/watchdog.h"
#include "comm/world/world.h"

namespace meshard {

// Members in the order of construction. Destroyed in reverse: communicators, devices, MPI, watchdog.
struct World::State {
  std::optional<OrderObserver> order;  ///< where the user wants the order checked
  std::unique_ptr<Recorder> recorder;
  std::unique_ptr<Watchdog> watchdog;
  std::optional<MpiEnvironment> environment;
  std::optional<MpiComm> world;
  std::optional<MpiComm> failing;  ///< for ranks that an error ends: whatever else is in flight does not disturb it
  std::vector<RankPlace> places;
  int rank = 0;
  std::uint64_t launch = 0;
  std::filesystem::path own_folder;  ///< the temporary one, to be removed at the end
  std::optional<MpiEngine> engine;
  std::unique_ptr<DeviceBackend> devices;
  std::unique_ptr<MpiCommunicator> control;

  /// Collective over all ranks. MPI, and the world's own communicators.
  void join();
  /// Collective over all ranks. Who is where; the number of this launch.
  void introduce();
  /// Local. The ring and its watchdog. Throws IoError.
  void watch(const WorldOptions& options);
  /// Local. Starts the engine's thread if it is wanted. Throws ConfigError if this MPI cannot be called by one.
  void choose_progress(MpiProgress wanted);
  bool several_hosts() const;
  /// Collective over all ranks. World::raise_together() before there is a control communicator.
  void fail_together(const std::string& problem);
  /// Local. Removes the ring, and the temporary folder if it is empty.
  void clean_up();
  /// Local. Removes this rank's ring from the temporary folder, and the folder if it is empty. A ring in the dump
  /// folder of a run stays.
  void leave_own_folder();

  /// Collective over all ranks, with patience: false if not all ranks come within two seconds. `speaks`: this rank is
  /// the first of those that fail with this message.
  bool all_fail(const std::string& message, bool& speaks);
  static constexpr std::chrono::seconds kFailTogether{2};
  /// Local. The request completes within this time.
  bool soon(MPI_Request request, std::chrono::seconds patience = kFailTogether) const;
};

}  // namespace meshard
