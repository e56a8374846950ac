#include <fmt/format.h>

#include "comm/nccl/backend.h"
#include "comm/nccl/device_backend.h"
#include "comm/timeline/cuda_timeline.h"

namespace meshard {

namespace {
class CudaDevices : public DeviceDriver {
 public:
  std::vector<std::string> visible() override { return cuda_devices(); }
  std::unique_ptr<DeviceBackend> make(int index, std::chrono::milliseconds timeout, MpiEngine&) override {
    return std::make_unique<NcclBackend>(make_cuda_timeline(index), timeout);
  }
};
}  // namespace

DeviceDriver& built_in_devices() {
  static CudaDevices devices;
  return devices;
}

std::string built_in_backends() {
  return fmt::format("mpi, nccl {} (CUDA {})", nccl_version(), cuda_version());
}

}  // namespace meshard
