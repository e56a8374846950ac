#include "comm/mpi/support.h"

#include <fmt/format.h>

#include <exception>
#include <numeric>

#include "base/error.h"

namespace meshard {

void check_mpi(int code, std::string_view call, std::string_view axis) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(fmt::format("{} on axis {}: {}", call, axis, std::string_view(text, length)));
}

MpiEnvironment::MpiEnvironment() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised) throw CommError("MPI is initialised already: one World per process");
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided_), "MPI_Init_thread", "world");
  if (provided_ < MPI_THREAD_FUNNELED) {
    throw CommError(fmt::format("this MPI provides thread level {}; MPI_THREAD_FUNNELED ({}) is needed", provided_,
                                static_cast<int>(MPI_THREAD_FUNNELED)));
  }
}

MpiEnvironment::~MpiEnvironment() {
  if (!abandoned_) MPI_Finalize();
}

MpiComm::MpiComm(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiComm MpiComm::duplicate(MPI_Comm parent, std::string_view axis) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(parent, &comm), "MPI_Comm_dup", axis);
  return MpiComm(comm);
}

MpiComm MpiComm::split(MPI_Comm parent, int color, int key, std::string_view axis) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(parent, color, key, &comm), "MPI_Comm_split", axis);
  return MpiComm(comm);
}

MpiComm MpiComm::split_by_host(MPI_Comm parent) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm), "MPI_Comm_split_type", "host");
  return MpiComm(comm);
}

MpiComm::~MpiComm() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (comm_ != MPI_COMM_NULL && !finalised && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

std::vector<int> MpiComm::members_in(MPI_Comm world) const {
  std::vector<int> here(size()), there(size());
  std::iota(here.begin(), here.end(), 0);
  MPI_Group mine = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  MPI_Comm_group(comm_, &mine);
  MPI_Comm_group(world, &all);
  int code = MPI_Group_translate_ranks(mine, size(), here.data(), all, there.data());
  MPI_Group_free(&mine);
  MPI_Group_free(&all);
  check_mpi(code, "MPI_Group_translate_ranks", "world");
  return there;
}

}  // namespace meshard
