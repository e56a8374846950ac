#pragma once
// The processes of this run: MPI's environment, who and where this rank is, the devices, and the factory of
// communicators. Owns what every communicator shares: ledger, ring, watchdog. One World per process, created in main
// and passed by reference. comm/DESIGN.md sections 1 and 9.
//
// How failures end a run. An error that all ranks agree on (raise_together) is thrown on all of them; an error of one
// rank is thrown there alone, while the others may wait inside a collective for ever. main cannot tell the two apart,
// abandon() can: it prints the first kind once and the second with rank and host, and ends all ranks with the error's
// exit code. A World that is destroyed by an exception communicates nothing and leaves MPI unfinalised, so the exit of
// the process ends the peers.

#include <c10/core/Device.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/ledger.h"
#include "comm/mpi/message_pieces.h"
#include "comm/world/launcher.h"

namespace meshard {

enum class Backend { Auto, Mpi, Nccl };

/// Who moves the messages of the mpi backend while this rank computes. Auto: a thread where ranks are on several hosts.
enum class MpiProgress { Auto, Thread, None };

class DeviceDriver;

struct WorldOptions {
  Backend backend = Backend::Auto;  ///< Auto: nccl where every rank has a CUDA device of its own, else mpi
  MpiProgress progress = MpiProgress::Auto;
  std::chrono::seconds timeout{600};  ///< the watchdog's patience (comm.timeout_s)
  std::filesystem::path dump_dir;     ///< rings and hang summaries; empty: a temporary folder
  std::optional<int> expect_ranks;    ///< --expect-ranks
  DeviceDriver* devices = nullptr;    ///< whose devices nccl uses; null: those of this build. Must live longer
};

/// Where one rank runs.
struct RankPlace {
  std::string host;
  int local_rank = 0;  ///< among the ranks of its host
  int local_size = 1;
  std::string device;  ///< "cpu", "cuda:0"
};

class World {
 public:
  /// Collective over all processes of the launch. Guard (launcher.h), MPI_Init_thread (SERIALIZED; FUNNELED is enough
  /// without a thread), world duplicated, node communicator, rings and watchdog, backend choice. Throws ConfigError
  /// (expect_ranks, no CUDA device for nccl; the same on every rank) or CommError.
  explicit World(const WorldOptions& options = {});
  /// Collective. Barrier, communicators before CUDA before MPI, MPI_Finalize. While an exception unwinds the stack:
  /// local, nothing of that.
  ~World();

  /// Local, but best called by all. Ends the process and, one way or another, the run, with exit code `code`. Waits up
  /// to two seconds for the other ranks to do the same: if all do, each distinct message is printed once, as it is;
  /// else it is printed as "rank 2 on node7: message" and MPI_Abort ends the others. For main.cpp only.
  [[noreturn]] void abandon(const std::string& message, int code);

  /// Collective over all ranks, with patience: whether all of them call it meanwhile. For a rank that an error ends:
  /// only if all end may they still communicate; else the others wait for this one somewhere.
  bool all_end(std::chrono::seconds patience);

  /// Collective over all ranks. Throws the same Error on every rank if any rank gave a non-empty problem: "rank 2 on
  /// node7: <problem>" of the lowest such rank, with that rank's exit code `code`. together.h does this for a function.
  void raise_together(const std::string& problem, ExitCode code = kExitFailure);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Collective over all ranks, before the first split(). Takes `options.backend` and `options.progress` as the
  /// constructor does, which calls this: for a caller that knows them only after it has read a config for size() ranks,
  /// and so constructed with Backend::Mpi. Throws ConfigError, the same on every rank.
  void choose_backend(const WorldOptions& options);

  int rank() const;
  int size() const;
  const RankPlace& place() const;                ///< of this rank
  const std::vector<RankPlace>& places() const;  ///< of every rank, in rank order
  Backend backend() const;                       ///< Mpi or Nccl
  at::Device device() const;                     ///< where parameters live

  /// The communicator of all ranks, in rank order, for control traffic: always MPI, always host tensors.
  Communicator& control();

  /// Collective over all ranks. Splits the world by `color`, ordered by `key`, into communicators of this run's
  /// backend. Over MPI, messages of more than `max_message_bytes` travel in pieces. Destroy it before the World.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& axis,
                                      std::int64_t max_message_bytes = kMaxMessageBytes);

  /// Per-step traffic of everything that is not control, and its time up to now. The trainer clears it each step.
  Ledger& ledger();
  /// Control traffic, since the start.
  Ledger& control_ledger();

  /// Collective over all ranks. Every rank gets rank 0's text.
  std::string share_text(const std::string& text);
  /// Collective over all ranks. Everyone's text, in rank order.
  std::vector<std::string> gather_texts(const std::string& text);

  /// Local. From now on the ring and the summary go to this folder, which is made if need be; give all ranks the same.
  /// Throws IoError, and then stays with the old folder.
  void move_dumps(const std::filesystem::path& dump_dir);
  /// Local. From now on the watchdog's patience. A rank's time in one collective counts; its own work does not, but the
  /// time that others wait for it does.
  void set_timeout(std::chrono::seconds timeout);

  /// Local. Names what this rank is about (start-up, training, evaluation, saving) in the watchdog's summary.
  void enter_phase(const std::string& phase);

 private:
  void choose_device(const WorldOptions& options);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace meshard
