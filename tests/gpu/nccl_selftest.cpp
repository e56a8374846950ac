// NCCL on one device and one rank: start, every operation, teardown. Exit 0, 1 (with what was wrong), or 77 where there
// is no device.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdio>

#include "base/error.h"
#include "comm/nccl/backend.h"
#include "comm/recorder.h"
#include "comm/timeline/cuda_timeline.h"
#include "comm/world/world.h"

using namespace meshard;

namespace {

// The public functions of an axis of one rank issue nothing; these do.
struct Exposed : NcclCommunicator {
  using NcclCommunicator::do_all_gather;
  using NcclCommunicator::do_all_reduce;
  using NcclCommunicator::do_all_to_all;
  using NcclCommunicator::do_all_to_all_v;
  using NcclCommunicator::do_barrier;
  using NcclCommunicator::do_broadcast;
  using NcclCommunicator::do_reduce_scatter;
  using NcclCommunicator::NcclCommunicator;
};

int failures = 0;

void expect(const char* what, const at::Tensor& got, const at::Tensor& wanted) {
  bool equal = at::equal(got, wanted);
  std::printf("%s: %s\n", equal ? "ok" : "FAILED", what);
  failures += !equal;
}

void every_operation(Exposed& axis, at::TensorOptions options) {
  auto wanted = at::arange(1, 1001, options), out = at::zeros({1000}, options);
  axis.do_all_gather(out, wanted).wait();
  expect("all_gather", out, wanted);
  out.zero_();
  axis.do_reduce_scatter(out, wanted, ReduceOp::Average).wait();
  expect("reduce_scatter", out, wanted);
  axis.do_all_reduce(out, ReduceOp::Sum).wait();
  expect("all_reduce", out, wanted);
  axis.do_broadcast(out, 0).wait();
  expect("broadcast", out, wanted);
  out.zero_();
  axis.do_all_to_all(out, wanted).wait();
  expect("all_to_all", out, wanted);
  auto rows = at::zeros({500, 2}, options);
  axis.do_all_to_all_v(rows, wanted.view({500, 2}), {500}, {500}).wait();
  expect("all_to_all_v", rows, wanted.view({500, 2}));
  axis.do_barrier().wait();
}

}  // namespace

int main() {
  if (built_in_devices().visible().empty()) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
  try {
    WorldOptions options;
    options.backend = Backend::Nccl;
    World world(options);
    std::printf("%s on %s\n", built_in_backends().c_str(), world.device().str().c_str());
    {
      auto folder = std::filesystem::temp_directory_path() / "meshard-nccl-selftest";
      Recorder recorder(folder, 0, "selftest", 0);
      NcclBackend backend(make_cuda_timeline(world.device().index()), std::chrono::seconds(60));
      Exposed axis(MpiComm::duplicate(MPI_COMM_WORLD, "selftest"), MPI_COMM_WORLD, "selftest", backend, recorder,
                   std::chrono::seconds(60));
      for (auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
        every_operation(axis, at::device(world.device()).dtype(dtype));
      }
      c10::cuda::device_synchronize();
      failures += backend.oldest_unfinished() != 0;
      std::filesystem::remove_all(folder);
    }
    auto axis = world.split(0, 0, "dp_shard");
    axis->barrier();
  } catch (const Error& error) {
    std::printf("FAILED: %s (%s)\n", error.what(), error.place().c_str());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
