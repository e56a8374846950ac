#include "comm/world/world.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <sstream>

#include "base/log.h"
#include "comm/world/device_choice.h"
#include "comm/world/world_state.h"

namespace meshard {

namespace {

at::Tensor bytes_tensor(std::int64_t size) {
  return at::empty({size}, at::kByte);
}

at::Tensor bytes_tensor(const std::string& text, std::int64_t size) {
  auto tensor = bytes_tensor(size);
  std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

}  // namespace

World::World(const WorldOptions& options) : state_(std::make_unique<State>()) {
  check_launcher_environment();
  auto* check_order = std::getenv("MESHARD_CHECK_ORDER");
  if (check_order && std::string(check_order) == "1") state_->order.emplace();
  state_->join();
  check_launched_world(size());
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
  state_->engine.emplace(*state_->recorder);
  state_->control = std::make_unique<MpiCommunicator>(MpiComm::duplicate(state_->world->get(), kControlAxis),
                                                      state_->world->get(), std::string(kControlAxis), *state_->engine,
                                                      *state_->recorder, kMaxMessageBytes);
  choose_backend(options);
}

void World::choose_backend(const WorldOptions& options) {
  if (options.backend != Backend::Mpi) choose_device(options);
  state_->choose_progress(options.progress);
}

void World::choose_device(const WorldOptions& options) {
  auto& driver = options.devices ? *options.devices : built_in_devices();
  std::vector<std::vector<std::string>> visible;
  std::vector<int> neighbours;
  auto texts = gather_texts(fmt::format("{}", fmt::join(driver.visible(), " ")));
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
  try {
    state_->devices = driver.make(*chosen, options.timeout, *state_->engine);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  raise_together(problem);
  state_->watchdog->set_probe([devices = state_->devices.get()] { return devices->oldest_unfinished(); });
  state_->recorder->add_collector([devices = state_->devices.get()] { devices->collect(); });
  auto names = gather_texts(state_->devices->device().str());
  for (int other = 0; other < size(); ++other) state_->places[other].device = names[other];
}

World::~World() {
  if (state_->engine) state_->engine->stop_thread();
  if (!state_->control || std::uncaught_exceptions() > 0) {
    if (state_->environment && state_->control) state_->environment->abandon();
    if (state_->watchdog) state_->watchdog->set_probe(nullptr);
    return;
  }
  try {
    if (state_->order) {
      auto found = state_->order->checker().take_found();
      if (!found.empty()) Log::error(fmt::format("rank {}: order: {}", rank(), found));
    }
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

void World::abandon(const std::string& message, int code) {
  bool speaks = false;
  if (state_->engine) state_->engine->stop_thread();
  state_->leave_own_folder();
  if (!state_->all_fail(message, speaks)) {
    Log::error(fmt::format("rank {} on {}: {}", rank(), place().host, message));
    std::fflush(nullptr);
    std::error_code ignored;
    if (!state_->own_folder.empty()) std::filesystem::remove_all(state_->own_folder, ignored);
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

bool World::all_end(std::chrono::seconds patience) {
  state_->engine->stop_thread();
  MPI_Request request = MPI_REQUEST_NULL;
  return MPI_Ibarrier(state_->failing->get(), &request) == MPI_SUCCESS && state_->soon(request, patience);
}

void World::raise_together(const std::string& problem, ExitCode code) {
  auto any = at::empty({1}, at::kInt);
  *any.mutable_data_ptr<int>() = !problem.empty();
  control().all_reduce(any, ReduceOp::Max).wait();
  if (*any.const_data_ptr<int>() == 0) return;
  auto problems = gather_texts(problem);
  auto codes = gather_texts(std::to_string(code));
  auto first = std::find_if(problems.begin(), problems.end(), [](auto& text) { return !text.empty(); });
  auto culprit = first - problems.begin();
  throw Error(static_cast<ExitCode>(std::stoi(codes[culprit])),
              fmt::format("rank {} on {}: {}", culprit, places()[culprit].host, *first));
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
  state_->recorder->collect();
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
  std::lock_guard lock(state_->engine->mutex());
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
