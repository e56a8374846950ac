#include "comm/nccl/support.h"

#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <set>
#include <thread>

#include "base/error.h"
#include "comm/mpi/support.h"

namespace meshard {

namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::set<std::string> loaded_nccl_libraries() {
  std::set<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        if (std::strstr(info->dlpi_name, "/libnccl.so"))
          static_cast<std::set<std::string>*>(found)->insert(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

/// Rank 0's id, on every rank.
ncclUniqueId share_unique_id(MPI_Comm comm, const std::string& axis) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  ncclUniqueId id{};
  ncclResult_t made = rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
  check_mpi(MPI_Bcast(&made, sizeof made, MPI_BYTE, 0, comm), "MPI_Bcast", axis);
  check_nccl(made, "ncclGetUniqueId", axis);
  check_mpi(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, comm), "MPI_Bcast", axis);
  // A broadcast may return here before the others have it, and a fast rank would wait for them inside NCCL.
  check_mpi(MPI_Barrier(comm), "MPI_Barrier", axis);
  return id;
}

}  // namespace

namespace {
int version_number() {
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion", "world");
  return version;
}
}  // namespace

std::string nccl_version() {
  return version_text(version_number());
}

std::string check_nccl_version() {
  auto version = version_number();
  if (version < NCCL_VERSION_CODE || version / 10000 != NCCL_MAJOR) {
    throw CommError(
        fmt::format("NCCL {} was loaded, but this build was made with the headers of {}: check "
                    "LD_LIBRARY_PATH, or build again",
                    version_text(version), version_text(NCCL_VERSION_CODE)));
  }
  auto libraries = loaded_nccl_libraries();
  if (libraries.size() > 1) {
    throw CommError(
        fmt::format("several NCCL libraries are loaded, LibTorch's and another: {}", fmt::join(libraries, ", ")));
  }
  return version_text(version);
}

void check_nccl(ncclResult_t result, std::string_view call, std::string_view axis) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw CommError(fmt::format("{} on axis {}: {}", call, axis, ncclGetErrorString(result)));
}

NcclComm::NcclComm(MPI_Comm comm, const std::string& axis, std::chrono::milliseconds timeout)
    : axis_(axis), timeout_(timeout) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  auto id = share_unique_id(comm, axis);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 25, 1)
  config.commName = axis_.c_str();
#endif
  std::lock_guard lock(mutex_);
  settle(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig");
}

NcclComm::~NcclComm() {
  std::lock_guard lock(mutex_);
  if (!comm_) return;
  if (std::uncaught_exceptions() > 0) {
    abort("left by an exception");
    return;
  }
  try {
    settle(ncclCommFinalize(comm_), "ncclCommFinalize");
    ncclCommDestroy(comm_);
  } catch (const CommError&) {
    // settle() has aborted it, and a destructor cannot say more.
  }
}

void NcclComm::group(std::string_view call, const std::function<void(ncclComm_t)>& issue) {
  std::lock_guard lock(mutex_);
  if (!comm_) throw CommError(fmt::format("{} on axis {}: the communicator failed: {}", call, axis_, failure_));
  check_nccl(ncclGroupStart(), "ncclGroupStart", axis_);
  try {
    issue(comm_);
  } catch (...) {
    ncclGroupEnd();
    throw;
  }
  settle(ncclGroupEnd(), call);
}

void NcclComm::settle(ncclResult_t result, std::string_view call) {
  auto deadline = std::chrono::steady_clock::now() + timeout_;
  for (int round = 0; result == ncclInProgress; ++round) {
    if (std::chrono::steady_clock::now() > deadline) {
      abort("timed out");
      throw CommError(fmt::format("{} on axis {}: not done after {} s", call, axis_, timeout_.count() / 1000));
    }
    // The first rounds are those of a group on its way to the stream, which takes microseconds.
    if (round > 1000) std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) result = ncclInternalError;
  }
  if (result != ncclSuccess) fail(result, call);
}

void NcclComm::fail(ncclResult_t result, std::string_view call) {
  auto text = fmt::format("{} on axis {}: {} ({})", call, axis_, ncclGetErrorString(result), ncclGetLastError(comm_));
  abort(text);
  throw CommError(text);
}

void NcclComm::abort(const std::string& reason) noexcept {
  if (comm_) ncclCommAbort(comm_);
  comm_ = nullptr;
  failure_ = reason;
}

void NcclComm::abort_if_failed() noexcept {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !comm_) return;
  ncclResult_t result = ncclSuccess;
  if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) result = ncclInternalError;
  if (result == ncclSuccess || result == ncclInProgress) return;
  abort(fmt::format("{} ({})", ncclGetErrorString(result), ncclGetLastError(comm_)));
}

}  // namespace meshard
