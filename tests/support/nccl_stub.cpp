#include "support/nccl_stub.h"

#include <fmt/format.h>
#include <mpi.h>
#include <nccl.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "base/error.h"
#include "comm/mpi/engine.h"
#include "comm/mpi/messages.h"
#include "comm/mpi/reduce.h"
#include "comm/nccl/backend.h"
#include "support/nccl_launches.h"

using namespace meshard;
using namespace nccl_stub;

namespace {

/// Messages with buffers of their own: an aborted communicator leaves them to MPI for good.
struct Buffers {
  std::vector<MPI_Request> requests;
  std::deque<std::vector<char>> bytes;

  void send(const void* data, std::int64_t size, int to, int tag) {
    auto& copy = bytes.emplace_back(static_cast<const char*>(data), static_cast<const char*>(data) + size);
    MPI_Isend(copy.data(), static_cast<int>(size), MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests.emplace_back());
  }
  char* receive(std::int64_t size, int from, int tag) {
    auto& room = bytes.emplace_back(size);
    MPI_Irecv(room.data(), static_cast<int>(size), MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests.emplace_back());
    return room.data();
  }
  bool done() {
    int all = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE);
    return all;
  }
};

// -- communicators ----------------------------------------------------------------------------------------------------

/// One of NCCL's calls within a group.
struct Call {
  Kind kind;
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
  int dtype = 0, op_or_root = 0;
  bool sends = false;
  void* stream = nullptr;
};

struct State {
  std::string name;
  int number = 0, rank = 0, size = 0;
  std::vector<int> members;  ///< world ranks
  std::atomic<int> status = ncclInProgress;
  std::atomic<bool> aborted = false;
  std::string error;
  int launches = 0;
  // What the next looks at the communicator go on with.
  int looks = 0;
  bool never_ready = false;
  std::function<bool()> going_on;
  std::vector<Call> group;
};

}  // namespace

struct ncclComm {
  std::shared_ptr<State> state = std::make_shared<State>();
};

namespace {

/// Each member tells its rank 0 its world rank, and gets the list of all.
class Introduction {
 public:
  Introduction(State& state, int root) : state_(state), root_(root) {
    state.members.resize(state.size);
    mine_[0] = state.rank;
    mine_[1] = shared().world_rank;
    if (state.rank == 0) {
      state.members[0] = root;
    } else {
      buffers_.send(mine_, sizeof mine_, root, tag());
      MPI_Irecv(state.members.data(), state.size, MPI_INT, root, tag(), MPI_COMM_WORLD,
                &buffers_.requests.emplace_back());
    }
  }

  bool step() {
    while (state_.rank == 0 && known_ < state_.size) {
      int there = 0, pair[2];
      MPI_Iprobe(MPI_ANY_SOURCE, tag(), MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
      if (!there) return false;
      MPI_Recv(pair, sizeof pair, MPI_BYTE, MPI_ANY_SOURCE, tag(), MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      state_.members[pair[0]] = pair[1];
      if (++known_ < state_.size) continue;
      for (int rank = 1; rank < state_.size; ++rank) {
        buffers_.send(state_.members.data(), state_.size * sizeof(int), state_.members[rank], tag());
      }
    }
    return buffers_.done();
  }

 private:
  int tag() const { return state_.number * kTagsOfACommunicator; }
  State& state_;
  int root_, known_ = 1;
  int mine_[2];
  Buffers buffers_;
};

/// A group of calls on the stream.
class Launch : public LaneTask {
 public:
  Launch(std::shared_ptr<State> state, std::vector<Call> calls, bool fails)
      : state_(std::move(state)),
        calls_(std::move(calls)),
        fails_(fails),
        tag_(state_->number * kTagsOfACommunicator + 1 + state_->launches++ % (kTagsOfACommunicator - 1)) {
    announce();
  }

  bool step() override {
    if (state_->aborted) return abandon();
    if (fails_) {
      state_->error = "the network is gone";
      state_->status = ncclRemoteError;
      return false;  // until it is aborted
    }
    if (!agreed()) return false;
    if (!std::exchange(posted_, true)) post();
    if (!buffers_->done()) return false;
    finish();
    return true;
  }

 private:
  struct Arrived {
    int rank;
    const Call* call;
    const char* data;
  };

  std::int64_t size_of(const Call& call) const { return call.count * c10::elementSize(dtype_of(call.dtype)); }

  template <class Visit>
  void for_each_peer(const Visit& visit) {
    for (int rank = 0; rank < state_->size; ++rank) {
      if (rank != state_->rank) visit(rank);
    }
  }

  void announce() {
    auto& first = calls_.front();
    for_each_peer([&](int rank) {
      Notice notice{.communicator = state_->number,
                    .kind = static_cast<int>(first.kind),
                    .count = first.count,
                    .dtype = first.dtype,
                    .op_or_root = first.op_or_root};
      if (first.kind == Kind::SendRecv) {
        notice.count = notice.op_or_root = 0;
        for (auto& call : calls_) {
          if (call.op_or_root == rank) (call.sends ? notice.count : notice.back) = size_of(call);
        }
        if (notice.count == 0 && notice.back == 0) return;  // they do not meet in it
      }
      std::strncpy(notice.name, state_->name.c_str(), sizeof notice.name - 1);
      auto world_rank = state_->members[rank];
      auto& peer = shared().peers[world_rank];
      peer.launched.push_back(notice);
      position_[world_rank] = peer.launched.size();
      auto& [request, copy] = shared().sending.emplace_back(MPI_REQUEST_NULL, notice);
      MPI_Isend(&copy, sizeof copy, MPI_BYTE, world_rank, kNoticeTag, MPI_COMM_WORLD, &request);
      compare(world_rank, peer);
    });
  }

  bool agreed() const {
    if (!shared().disagreement.empty()) throw CommError("ranks disagree: " + shared().disagreement);
    return std::ranges::all_of(position_, [](auto& at) { return shared().peers[at.first].agreed >= at.second; });
  }

  void send(const void* data, std::int64_t size, int rank) { buffers_->send(data, size, state_->members[rank], tag_); }
  void receive(const Call& call, std::int64_t size, int rank) {
    arrived_.push_back({rank, &call, buffers_->receive(size, state_->members[rank], tag_)});
  }

  void post() {
    for (auto& call : calls_) {
      auto size = size_of(call);
      auto* in = static_cast<const char*>(call.in);
      switch (call.kind) {
        case Kind::AllGather:
        case Kind::AllReduce:
          own_.assign(in, in + size);
          for_each_peer([&](int rank) { send(in, size, rank), receive(call, size, rank); });
          break;
        case Kind::ReduceScatter:
          own_.assign(in + state_->rank * size, in + (state_->rank + 1) * size);
          for_each_peer([&](int rank) { send(in + rank * size, size, rank), receive(call, size, rank); });
          break;
        case Kind::Broadcast:
          if (call.op_or_root == state_->rank) {
            for_each_peer([&](int rank) { send(in, size, rank); });
          } else {
            receive(call, size, call.op_or_root);
          }
          break;
        case Kind::SendRecv:
          if (call.op_or_root == state_->rank) {
            if (call.sends) own_.assign(in, in + size);
          } else if (call.sends) {
            send(in, size, call.op_or_root);
          } else {
            receive(call, size, call.op_or_root);
          }
          break;
      }
    }
  }

  void finish() {
    for (auto& call : calls_) {
      auto size = size_of(call);
      auto* out = static_cast<char*>(call.out);
      switch (call.kind) {
        case Kind::AllGather:
          std::memmove(out + state_->rank * size, own_.data(), size);
          for (auto& each : arrived_) std::memcpy(out + each.rank * size, each.data, size);
          break;
        case Kind::ReduceScatter:
        case Kind::AllReduce: {
          std::vector<const void*> inputs(state_->size);
          inputs[state_->rank] = own_.data();
          for (auto& each : arrived_) inputs[each.rank] = each.data;
          reduce_in_order(out, inputs, call.count, dtype_of(call.dtype), op_of(call.op_or_root));
          break;
        }
        case Kind::Broadcast:
          for (auto& each : arrived_) std::memcpy(out, each.data, size);
          break;
        case Kind::SendRecv:
          if (!call.sends && call.op_or_root == state_->rank) std::memcpy(out, own_.data(), size);
          for (auto& each : arrived_) {
            if (each.call == &call) std::memcpy(out, each.data, size);
          }
          break;
      }
    }
  }

  bool abandon() {
    static std::vector<std::unique_ptr<Buffers>> left_to_mpi;
    if (buffers_) left_to_mpi.push_back(std::move(buffers_));
    return true;
  }

  std::shared_ptr<State> state_;
  std::vector<Call> calls_;
  bool fails_, posted_ = false;
  int tag_;
  std::map<int, std::size_t> position_;  ///< by world rank: launches with it, up to this one
  std::unique_ptr<Buffers> buffers_ = std::make_unique<Buffers>();
  std::vector<char> own_;
  std::vector<Arrived> arrived_;
};

thread_local int group_depth = 0;
thread_local ncclComm* group_of = nullptr;

/// The communicator is busy with `going_on` for some looks at it.
ncclResult_t begin(State& state, std::function<bool()> going_on) {
  state.looks = shared().faults.in_progress;
  state.going_on = std::move(going_on);
  state.status = ncclInProgress;
  return ncclInProgress;
}

ncclResult_t add(ncclComm_t comm, Call call) {
  if (group_depth == 0 || (group_of && group_of != comm)) return ncclInvalidUsage;
  group_of = comm;
  if (comm->state->status != ncclSuccess) return ncclInvalidUsage;
  comm->state->group.push_back(call);
  return ncclInProgress;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  MPI_Comm_rank(MPI_COMM_WORLD, &shared().world_rank);
  int words[2] = {shared().world_rank, shared().world_rank * kCommunicatorsOfARank + 1 + shared().made++};
  std::memcpy(id, words, sizeof words);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  MPI_Comm_rank(MPI_COMM_WORLD, &shared().world_rank);
  *comm = new ncclComm;
  auto& state = *(*comm)->state;
  int words[2];
  std::memcpy(words, &id, sizeof words);
  state.name = config->commName ? config->commName : "?";
  state.number = words[1];
  state.rank = rank;
  state.size = ranks;
  state.never_ready = shared().faults.init_never_ends;
  auto introduction = std::make_shared<Introduction>(state, words[0]);
  return begin(state, [introduction] { return introduction->step(); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  auto& state = *comm->state;
  if (std::this_thread::get_id() == shared().main && state.status == ncclInProgress) {
    listen();
    if (state.looks > 0) {
      --state.looks;
    } else if (!state.never_ready && state.going_on()) {
      state.going_on = nullptr;
      state.status = ncclSuccess;
    }
  }
  *result = static_cast<ncclResult_t>(state.status.load());
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return begin(*comm->state, [] { return true; });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->state->aborted = true;
  delete comm;  // launches keep what they need
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInProgress:
      return "in progress";
    default:
      return "an error of the stand-in for NCCL";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  return comm->state->error.c_str();
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  auto* comm = std::exchange(group_of, nullptr);
  if (!comm) return ncclSuccess;
  auto state = comm->state;
  if (state->status != ncclSuccess) {
    state->group.clear();
    return static_cast<ncclResult_t>(state->status.load());
  }
  // Only once the looks are over do the calls come to lie on the stream.
  return begin(*state, [state] {
    auto calls = std::exchange(state->group, {});
    auto& until_error = shared().faults.launches_until_error;
    bool fails = until_error == 0;
    if (until_error >= 0) --until_error;
    auto* stream = calls.front().stream;
    HostTimeline::put(stream, std::make_unique<Launch>(state, std::move(calls), fails));
    return true;
  });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, {Kind::AllGather, in, out, static_cast<std::int64_t>(count), type, 0, false, stream});
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Kind::ReduceScatter, in, out, static_cast<std::int64_t>(count), type, op, false, stream});
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Kind::AllReduce, in, out, static_cast<std::int64_t>(count), type, op, false, stream});
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, {Kind::Broadcast, in, out, static_cast<std::int64_t>(count), type, root, false, stream});
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, {Kind::SendRecv, in, nullptr, static_cast<std::int64_t>(count), type, peer, true, stream});
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Kind::SendRecv, nullptr, out, static_cast<std::int64_t>(count), type, peer, false, stream});
}

}  // extern "C"

namespace nccl_stub {

Faults& faults() {
  return shared().faults;
}

std::string disagreement() {
  return shared().disagreement;
}

namespace {
/// Moves the lanes while this rank waits for MPI, as a device would by itself.
class Drive : public MpiOperation {
 public:
  Drive(HostTimeline& timeline, MpiEngine& engine) : timeline_(timeline), engine_(engine) {
    std::lock_guard lock(engine.mutex());
    engine.add(*this, channel_);
  }
  ~Drive() override { engine_.remove(*this); }
  bool step() override {
    try {
      timeline_.idle();
    } catch (const CommError&) {
      // Whoever waits for the lane meets it.
    }
    return false;
  }

 private:
  HostTimeline& timeline_;
  MpiEngine& engine_;
  MpiChannel channel_;
};

class Backend : public NcclBackend {
 public:
  Backend(std::unique_ptr<HostTimeline> timeline, std::chrono::milliseconds timeout, MpiEngine& engine)
      : NcclBackend(std::move(timeline), timeout), drive_(static_cast<HostTimeline&>(this->timeline()), engine) {}

 private:
  Drive drive_;
};
}  // namespace

std::vector<std::string> Devices::visible() {
  std::vector<std::string> names;
  for (int index = 0; index < 64; ++index) names.push_back(fmt::format("host-memory-{}", index));
  return names;
}

std::unique_ptr<DeviceBackend> Devices::make(int index, std::chrono::milliseconds timeout, MpiEngine& engine) {
  auto timeline = std::make_unique<HostTimeline>(early_ ? std::optional(*early_ + index) : std::nullopt);
  timeline->on_idle(listen);
  timeline_ = timeline.get();
  return std::make_unique<Backend>(std::move(timeline), timeout, engine);
}

}  // namespace nccl_stub
