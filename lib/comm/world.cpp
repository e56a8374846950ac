#include "comm/world.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <iterator>
#include <sstream>
#include <thread>

#include "base/hash.h"
#include "base/log.h"
#include "comm/device_backend.h"
#include "comm/device_choice.h"
#include "comm/mpi_backend.h"
#include "comm/recorder.h"
#include "comm/watchdog.h"

namespace meshard {

namespace {

constexpr auto kFailTogether = std::chrono::seconds(2);

/// What each rank tells the others at the start.
struct Introduction {
  char host[64];
  int local_rank;
  int local_size;
};

/// What a failing rank tells the others.
struct Failure {
  std::int64_t code;
  std::uint64_t message;
};

std::string host_name() {
  char name[64] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

at::Tensor bytes_tensor(std::int64_t size) {
  return at::empty({size}, at::kByte);
}

at::Tensor bytes_tensor(const std::string& text, std::int64_t size) {
  auto tensor = bytes_tensor(size);
  std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

}  // namespace

// Members in the order of construction. Destroyed in reverse: communicators, devices, MPI, watchdog.
struct World::State {
  std::unique_ptr<Recorder> recorder;
  std::unique_ptr<Watchdog> watchdog;
  std::optional<MpiEnvironment> environment;
  std::optional<MpiComm> world;
  std::optional<MpiComm> failing;  ///< only abandon() uses it: whatever else is in flight does not disturb it
  std::vector<RankPlace> places;
  int rank = 0;
  std::uint64_t launch = 0;
  std::filesystem::path own_folder;  ///< the temporary one, to be removed at the end
  std::optional<MpiEngine> engine;
  std::unique_ptr<DeviceBackend> devices;
  std::unique_ptr<MpiCommunicator> control;

  void join();
  void introduce();
  void watch(const WorldOptions& options);
  void fail_together(const std::string& problem);
  void clean_up();
  bool all_fail(const std::string& message, int code, bool& speaks);
  bool soon(MPI_Request request) const;
};

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
  for (const auto& each : all) places.push_back({each.host, each.local_rank, each.local_size, "cpu"});
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
  bool several_hosts = std::any_of(places.begin(), places.end(), [&](auto& at) { return at.host != places[0].host; });
  watchdog = std::make_unique<Watchdog>(*recorder, WatchdogOptions{.rank = rank,
                                                                   .size = static_cast<int>(places.size()),
                                                                   .launch = launch,
                                                                   .several_hosts = several_hosts,
                                                                   .timeout = options.timeout});
}

// raise_together() before there is a control communicator.
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
  std::error_code ignored;
  if (recorder) recorder->file().remove();
  if (!own_folder.empty()) std::filesystem::remove(own_folder, ignored);
}

World::World(const WorldOptions& options) : state_(std::make_unique<State>()) {
  check_launcher_environment();
  state_->join();
  if (options.expect_ranks && *options.expect_ranks != size()) {
    throw ConfigError(fmt::format("this run has {} ranks, not the {} of --expect-ranks: check how it was started",
                                  size(), *options.expect_ranks));
  }
  state_->introduce();
  std::string problem;
  try {
    state_->watch(options);
  } catch (const Error& error) {
    problem = error.what();
  }
  state_->fail_together(problem);
  state_->engine.emplace();
  state_->control = std::make_unique<MpiCommunicator>(MpiComm::duplicate(state_->world->get(), kControlAxis),
                                                      state_->world->get(), std::string(kControlAxis), *state_->engine,
                                                      *state_->recorder, kMaxMessageBytes);
  choose_backend(options);
}

void World::choose_backend(const WorldOptions& options) {
  if (options.backend == Backend::Mpi) return;
  std::vector<std::vector<std::string>> visible;
  std::vector<int> neighbours;
  auto texts = gather_texts(fmt::format("{}", fmt::join(visible_devices(), " ")));
  for (int other = 0; other < size(); ++other) {
    if (places()[other].host != place().host) continue;
    neighbours.push_back(other);
    std::istringstream words(texts[other]);
    visible.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  auto chosen = choose_devices(visible)[place().local_rank];
  auto problem = chosen ? std::string() : why_no_device(visible, neighbours, place().local_rank);
  auto problems = gather_texts(problem);
  auto first = std::find_if(problems.begin(), problems.end(), [](auto& text) { return !text.empty(); });
  if (first != problems.end()) {
    if (options.backend == Backend::Auto) return;
    state_->clean_up();
    throw ConfigError(fmt::format("no CUDA device: use comm.backend mpi ({})", *first));
  }
  state_->devices = make_device_backend(*chosen, options.timeout);
  state_->watchdog->set_probe([devices = state_->devices.get()] { return devices->oldest_unfinished(); });
  auto names = gather_texts(state_->devices->device().str());
  for (int other = 0; other < size(); ++other) state_->places[other].device = names[other];
}

World::~World() {
  if (!state_->control || std::uncaught_exceptions() > 0) {
    if (state_->environment && state_->control) state_->environment->abandon();
    if (state_->watchdog) state_->watchdog->set_probe(nullptr);
    return;
  }
  try {
    state_->control->barrier();
    auto call = state_->recorder->enter("finalize", std::string(kControlAxis), 0, {});
    state_->recorder->begin_wait(call);
    state_->watchdog->set_probe(nullptr);
    state_->control.reset();
    state_->devices.reset();
    state_->failing.reset();
    state_->world.reset();
    state_->environment.reset();
    state_->recorder->end_wait(call, true);
    state_->clean_up();
  } catch (const std::exception& error) {
    Log::error(fmt::format("rank {} on {}: while it left: {}", rank(), place().host, error.what()));
  }
}

bool World::State::soon(MPI_Request request) const {
  auto deadline = std::chrono::steady_clock::now() + kFailTogether;
  int done = 0;
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done;
}

bool World::State::all_fail(const std::string& message, int code, bool& speaks) {
  // Static: if the peers do not come, MPI may write into it until the process ends.
  static std::vector<Failure> failures;
  static Failure mine;
  mine = {code, hash_text(message)};
  failures.resize(places.size());
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, failures.data(), sizeof mine, MPI_BYTE, failing->get(), &request);
  if (!soon(request)) return false;
  auto first = std::find_if(failures.begin(), failures.end(), [](auto& each) { return each.message == mine.message; });
  speaks = first - failures.begin() == rank;
  return true;
}

void World::abandon(const std::string& message, int code) {
  bool speaks = false;
  if (!state_->all_fail(message, code, speaks)) {
    Log::error(fmt::format("rank {} on {}: {}", rank(), place().host, message));
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, code);
    ::_exit(code);
  }
  if (speaks) Log::error(message);
  std::fflush(nullptr);
  // The first exit ends the others: all must have printed.
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(state_->failing->get(), &request) == MPI_SUCCESS) state_->soon(request);
  ::_exit(code);
}

void World::raise_together(const std::string& problem, ExitCode code) {
  auto any = at::empty({1}, at::kInt);
  *any.mutable_data_ptr<int>() = !problem.empty();
  control().all_reduce(any, ReduceOp::Max).wait();
  if (*any.const_data_ptr<int>() == 0) return;
  auto problems = gather_texts(problem);
  auto first = std::find_if(problems.begin(), problems.end(), [](auto& text) { return !text.empty(); });
  auto culprit = first - problems.begin();
  throw Error(code, fmt::format("rank {} on {}: {}", culprit, places()[culprit].host, *first));
}

int World::rank() const {
  return state_->rank;
}
int World::size() const {
  return state_->world->size();
}
const RankPlace& World::place() const {
  return state_->places[state_->rank];
}
const std::vector<RankPlace>& World::places() const {
  return state_->places;
}
Backend World::backend() const {
  return state_->devices ? Backend::Nccl : Backend::Mpi;
}
at::Device World::device() const {
  return state_->devices ? state_->devices->device() : at::Device(at::kCPU);
}
Communicator& World::control() {
  return *state_->control;
}
Ledger& World::ledger() {
  return state_->recorder->ledger(false);
}
Ledger& World::control_ledger() {
  return state_->recorder->ledger(true);
}
void World::move_dumps(const std::filesystem::path& dump_dir) {
  state_->recorder->move(dump_dir);
}
void World::set_timeout(std::chrono::seconds timeout) {
  state_->watchdog->set_timeout(timeout);
}
void World::enter_phase(const std::string& phase) {
  state_->recorder->enter_phase(phase);
}

std::unique_ptr<Communicator> World::split(int color, int key, const std::string& axis,
                                           std::int64_t max_message_bytes) {
  // MPI_Comm_split blocks at full speed: let it begin when all are there.
  control().barrier();
  auto comm = MpiComm::split(state_->world->get(), color, key, axis);
  if (state_->devices) {
    return state_->devices->make_communicator(std::move(comm), state_->world->get(), axis, *state_->recorder);
  }
  return std::make_unique<MpiCommunicator>(std::move(comm), state_->world->get(), axis, *state_->engine,
                                           *state_->recorder, max_message_bytes);
}

std::string World::share_text(const std::string& text) {
  auto length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  control().broadcast(length, 0).wait();
  auto size = *length.const_data_ptr<std::int64_t>();
  auto bytes = rank() == 0 ? bytes_tensor(text, size) : bytes_tensor(size);
  control().broadcast(bytes, 0).wait();
  return std::string(static_cast<const char*>(bytes.const_data_ptr()), size);
}

std::vector<std::string> World::gather_texts(const std::string& text) {
  auto lengths = at::empty({size()}, at::kLong);
  auto mine = at::empty({1}, at::kLong);
  *mine.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  control().all_gather(lengths, mine).wait();
  auto* length = lengths.const_data_ptr<std::int64_t>();
  auto longest = *std::max_element(length, length + size());
  auto all = bytes_tensor(longest * size());
  control().all_gather(all, bytes_tensor(text, longest)).wait();
  std::vector<std::string> texts;
  for (int other = 0; other < size(); ++other) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + other * longest, length[other]);
  }
  return texts;
}

}  // namespace meshard
