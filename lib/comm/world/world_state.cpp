#include "comm/world/world_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "base/error.h"
#include "base/hash.h"

namespace meshard {

namespace {

/// What each rank tells the others at the start.
struct Introduction {
  char host[64];
  int local_rank;
  int local_size;
};

std::string host_name() {
  char name[64] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

void World::State::join() {
  environment.emplace();
  world.emplace(MpiComm::duplicate(MPI_COMM_WORLD, "world"));
  failing.emplace(MpiComm::duplicate(world->get(), "world"));
  rank = world->rank();
}

void World::State::introduce() {
  auto node = MpiComm::split_by_host(world->get());
  Introduction mine{.host = "", .local_rank = node.rank(), .local_size = node.size()};
  copy_text(mine.host, host_name());
  std::vector<Introduction> all(world->size());
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, world->get()),
            "MPI_Allgather", "world");
  for (auto& each : all) places.push_back({each.host, each.local_rank, each.local_size, "cpu"});
  launch = mix64(hash_text(places[0].host) +
                 mix64(static_cast<std::uint64_t>(::getpid()) ^ std::bit_cast<std::uint64_t>(wall_seconds())));
  check_mpi(MPI_Bcast(&launch, sizeof launch, MPI_BYTE, 0, world->get()), "MPI_Bcast", "world");
}

void World::State::watch(const WorldOptions& options) {
  auto folder = options.dump_dir;
  if (folder.empty()) {
    own_folder = std::filesystem::temp_directory_path() / fmt::format("meshard-{:016x}", launch);
    folder = own_folder;
  }
  recorder = std::make_unique<Recorder>(folder, rank, places[rank].host, launch);
  watchdog = std::make_unique<Watchdog>(*recorder, WatchdogOptions{.rank = rank,
                                                                   .size = static_cast<int>(places.size()),
                                                                   .launch = launch,
                                                                   .several_hosts = several_hosts(),
                                                                   .timeout = options.timeout});
}

bool World::State::several_hosts() const {
  return std::any_of(places.begin(), places.end(), [&](auto& at) { return at.host != places[0].host; });
}

void World::State::choose_progress(MpiProgress wanted) {
  engine->stop_thread();
  bool possible = environment->serialized();
  if (wanted == MpiProgress::Thread && !possible) {
    throw ConfigError(
        "comm.progress: this MPI provides no MPI_THREAD_SERIALIZED, which thread needs; use none or auto");
  }
  bool useful = wanted == MpiProgress::Thread || (wanted == MpiProgress::Auto && several_hosts());
  // The axes of a run on devices are not over MPI.
  if (useful && possible && !devices) engine->start_thread();
}

void World::State::fail_together(const std::string& problem) {
  int mine = problem.empty() ? static_cast<int>(places.size()) : rank, first = 0;
  check_mpi(MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, world->get()), "MPI_Allreduce", "world");
  if (first == static_cast<int>(places.size())) return;
  char text[512] = "";
  copy_text(text, problem);
  check_mpi(MPI_Bcast(text, sizeof text, MPI_BYTE, first, world->get()), "MPI_Bcast", "world");
  throw CommError(fmt::format("rank {} on {}: {}", first, places[first].host, text));
}

void World::State::clean_up() {
  if (recorder) recorder->file().remove();
  leave_own_folder();
}

void World::State::leave_own_folder() {
  if (own_folder.empty()) return;
  std::error_code ignored;
  std::filesystem::remove(own_folder / fmt::format("ring-{}.bin", rank), ignored);
  std::filesystem::remove(own_folder, ignored);
}

bool World::State::soon(MPI_Request request, std::chrono::seconds patience) const {
  auto deadline = std::chrono::steady_clock::now() + patience;
  int done = 0;
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done;
}

bool World::State::all_fail(const std::string& message, bool& speaks) {
  // Static: if the peers do not come, MPI may write into it until the process ends.
  static std::vector<std::uint64_t> messages;
  static std::uint64_t mine;
  mine = hash_text(message);
  messages.resize(places.size());
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, messages.data(), sizeof mine, MPI_BYTE, failing->get(), &request);
  if (!soon(request)) return false;
  speaks = std::find(messages.begin(), messages.end(), mine) - messages.begin() == rank;
  return true;
}

}  // namespace meshard
