#pragma once
// MPI's handles as owners, and its status codes as CommError. Nothing else of the project calls MPI_Init, MPI_Finalize,
// MPI_Comm_free.

#include <mpi.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

/// Local. Throws CommError "MPI_Isend on axis dp_shard: <MPI's text>" unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view call, std::string_view axis);

/// MPI_Init_thread and MPI_Finalize.
class MpiEnvironment {
 public:
  /// Collective over all processes. Asks for SERIALIZED; throws CommError if MPI is already initialised or provides
  /// less than FUNNELED.
  MpiEnvironment();
  /// Collective over all processes, unless abandoned.
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// Local. The destructor will not finalise: the peers will not come.
  void abandon() { abandoned_ = true; }

  /// Local. Whether threads may take turns in calling MPI.
  bool serialized() const { return provided_ >= MPI_THREAD_SERIALIZED; }

 private:
  bool abandoned_ = false;
  int provided_ = MPI_THREAD_SINGLE;
};

/// An owned communicator whose errors are returned, not fatal.
class MpiComm {
 public:
  /// Collective over `parent`.
  static MpiComm duplicate(MPI_Comm parent, std::string_view axis);
  static MpiComm split(MPI_Comm parent, int color, int key, std::string_view axis);
  /// Collective over `parent`. The ranks of this host.
  static MpiComm split_by_host(MPI_Comm parent);

  MpiComm(MpiComm&& other) noexcept
      : comm_(std::exchange(other.comm_, MPI_COMM_NULL)), rank_(other.rank_), size_(other.size_) {}
  MpiComm& operator=(MpiComm&&) = delete;
  /// Collective over its ranks; nothing if MPI is finalised or an exception unwinds the stack.
  ~MpiComm();

  MPI_Comm get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Local. The ranks that its members have in `world`, in order.
  std::vector<int> members_in(MPI_Comm world) const;

 private:
  explicit MpiComm(MPI_Comm comm);
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
};

}  // namespace meshard
