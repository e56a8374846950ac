#pragma once
// A communicator of NCCL as an owner. All of NCCL's calls are nonblocking here: a peer that does not come, a cable that
// is out, is an error after the timeout and not a hang.

#include <mpi.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

namespace meshard {

/// Local. The version of the NCCL that runs, as "2.27.3". Sets NCCL_LAUNCH_ORDER_IMPLICIT before NCCL reads it, unless
/// the user has: communicators then run in the order in which the program launches them.
std::string nccl_version();

/// Local. The version of the NCCL that runs, as "2.27.3". Throws CommError if it is older than, or of another major
/// version than, the headers of this build, or if several are loaded.
std::string check_nccl_version();

class NcclComm {
 public:
  /// Collective over `comm`. The unique id is made by rank 0 and broadcast, and a barrier makes sure that all have it.
  /// Throws CommError, naming the axis, on an error of NCCL or after `timeout`.
  NcclComm(MPI_Comm comm, const std::string& axis, std::chrono::milliseconds timeout);
  /// Collective over its ranks: finalised and destroyed. Aborted instead after an error, and while an exception
  /// unwinds.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Local. Calls `issue` with the handle, as one group, and returns once NCCL has put it on the stream. Throws
  /// CommError if that fails, or if the communicator has failed before.
  void group(std::string_view call, const std::function<void(ncclComm_t)>& issue);

  /// Local. Any thread. Aborts the communicator if it has met an error.
  void abort_if_failed() noexcept;

 private:
  void settle(ncclResult_t result, std::string_view call);
  [[noreturn]] void fail(ncclResult_t result, std::string_view call);
  void abort(const std::string& reason) noexcept;

  std::string axis_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  ///< held while this rank is inside NCCL
  ncclComm_t comm_ = nullptr;
  std::string failure_;  ///< why it was aborted
};

/// Local. Throws CommError unless `result` is ncclSuccess or, of a nonblocking call, ncclInProgress.
void check_nccl(ncclResult_t result, std::string_view call, std::string_view axis);

}  // namespace meshard
