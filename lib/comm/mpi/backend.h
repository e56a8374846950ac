#pragma once
// Communicator over MPI, for host tensors.

#include <optional>

#include "comm/communicator.h"
#include "comm/mpi/engine.h"
#include "comm/mpi/operations.h"
#include "comm/mpi/support.h"

namespace meshard {

class MpiCommunicator : public Communicator {
 public:
  /// Local. Takes a communicator over; `engine` and `recorder` must live longer.
  MpiCommunicator(MpiComm comm, MPI_Comm world, const std::string& axis, MpiEngine& engine, Recorder& recorder,
                  std::int64_t max_message_bytes);
  /// Collective over its ranks, as that of MpiComm. Operations that an exception left behind go no further.
  ~MpiCommunicator() override;

 protected:
  Work do_all_gather(at::Tensor full, at::Tensor shard) override;
  Work do_reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op) override;
  Work do_all_reduce(at::Tensor tensor, ReduceOp op) override;
  Work do_broadcast(at::Tensor tensor, int root) override;
  Work do_all_to_all(at::Tensor out, at::Tensor in) override;
  Work do_all_to_all_v(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_rows,
                       std::vector<std::int64_t> in_rows) override;
  Work do_barrier() override;

 private:
  void check_host(const at::Tensor& tensor) const;
  template <typename Start>
  Work issue(Start start);

  std::optional<MpiComm> comm_;
  MpiEngine& engine_;
  MpiChannel channel_;
};

}  // namespace meshard
