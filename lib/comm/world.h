#pragma once
// The processes of this run: MPI's environment, who and where this rank is, the devices, and the factory of
// communicators. Owns what every communicator shares: ledger, ring, watchdog. One World per process, created in main
// and passed by reference.

#include <c10/core/Device.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"

namespace meshard {

enum class Backend { Auto, Mpi, Nccl };

struct WorldOptions {
  Backend backend = Backend::Auto;           ///< Auto: nccl where every rank has a CUDA device of its own, else mpi
  std::chrono::seconds timeout{600};         ///< the watchdog's patience (comm.timeout_s)
  std::filesystem::path dump_dir;            ///< rings and hang summaries; empty: a temporary folder
  std::optional<int> expect_ranks;           ///< --expect-ranks
};

/// Where one rank runs.
struct RankPlace {
  std::string host;
  int local_rank = 0;   ///< among the ranks of its host
  int local_size = 1;
  std::string device;   ///< "cpu", "cuda:0"
};

/// Local. The guard to be called BEFORE MPI_Init: some builds of Open MPI abort inside it. Throws ConfigError with the
/// right command if the environment shows an `srun` step of several tasks without PMI (each task would be a world of
/// its own).
void check_launcher_environment();

class World {
 public:
  /// Collective over all processes of the launch. Guard, MPI_Init_thread (FUNNELED or better, checked), world
  /// duplicated, node communicator, backend choice. Throws ConfigError (expect_ranks, no CUDA device for nccl) or
  /// CommError.
  explicit World(const WorldOptions& options = {});
  /// Collective. Barrier, communicators before CUDA before MPI, MPI_Finalize. After an exception: see abandon().
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  const RankPlace& place() const;                 ///< of this rank
  const std::vector<RankPlace>& places() const;   ///< of every rank, in rank order
  Backend backend() const;                        ///< Mpi or Nccl
  at::Device device() const;                      ///< where parameters live

  /// The communicator of all ranks, in rank order, for control traffic: always MPI, always host tensors.
  Communicator& control();

  /// Collective over all ranks. Splits the world by `color`, ordered by `key`, into communicators of this run's backend.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& axis);

  /// Per-step traffic of everything that is not control. The trainer clears it each step.
  Ledger& ledger();
  /// Control traffic, since the start.
  Ledger& control_ledger();

  /// Collective over all ranks, if rank 0 gave a non-empty text: every rank gets rank 0's.
  std::string share_text(const std::string& text);
  /// Collective over all ranks. Everyone's text, in rank order.
  std::vector<std::string> gather_texts(const std::string& text);

  /// Local. From now on rings and summaries go to this folder.
  void move_dumps(const std::filesystem::path& dump_dir);
  /// Local. The watchdog takes no action while the returned guard lives, nor counts the time (long local work).
  void set_timeout(std::chrono::seconds timeout);

  /// Local. Marks a phase outside the collectives (start-up, evaluation, saving) for the watchdog: a phase that lasts
  /// longer than the timeout on this rank while others wait is named by it.
  void enter_phase(const std::string& phase);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace meshard
