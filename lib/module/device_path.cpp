#include "module/device_path.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace meshard {

namespace {

bool asked_for() {
  auto* value = std::getenv("MESHARD_DEVICE_PATH");
  return value != nullptr && std::string_view(value) == "1";
}

// Autograd's threads ask too.
std::atomic<bool> as_device = asked_for();
std::atomic<std::int64_t> waits = 0;

}  // namespace

bool on_device_path(at::Device device) {
  return !device.is_cpu() || as_device;
}

bool on_device_path(const at::Tensor& tensor) {
  return on_device_path(tensor.device());
}

DevicePathScope::DevicePathScope(bool on) : before_(as_device.exchange(on)) {}

DevicePathScope::~DevicePathScope() {
  as_device = before_;
}

PendingRead::PendingRead(const at::Tensor& tensor) : host_(tensor), of_device_(on_device_path(tensor)) {
  if (tensor.is_cpu()) return;
  host_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  copied_.emplace(tensor.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

at::Tensor PendingRead::wait() {
  if (of_device_) ++waits;
  if (copied_) copied_->synchronize();
  return host_;
}

at::Tensor read_back(const at::Tensor& tensor) {
  return PendingRead(tensor).wait();
}

std::int64_t host_wait_count() {
  return waits;
}

}  // namespace meshard
