#pragma once
// How work on a device differs from work on the CPU, in one place: which way an operation takes, and where the host
// waits for the device. Tests take the way of devices on the CPU: everything but the kernels of CUDA itself is reached.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>

namespace meshard {

/// Local. Whether operations on this tensor take the way of devices (ATen's operators, our CUDA kernels) and not the
/// fused kernels for CPUs: true off the CPU, and on the CPU while the environment has MESHARD_DEVICE_PATH=1 or a
/// DevicePathScope lives.
bool on_device_path(const at::Tensor& tensor);
/// Local. The same for tensors on `device`.
bool on_device_path(at::Device device);

/// For tests: which way tensors on the CPU take while it lives.
class DevicePathScope {
 public:
  explicit DevicePathScope(bool as_device = true);
  ~DevicePathScope();
  DevicePathScope(const DevicePathScope&) = delete;
  DevicePathScope& operator=(const DevicePathScope&) = delete;

 private:
  bool before_;
};

/// The only way by which a training step reads what a device computed: a copy to the host, queued behind the work
/// before it. Until wait() the host is free to queue more.
class PendingRead {
 public:
  explicit PendingRead(const at::Tensor& tensor);
  /// Local. The values, on the CPU. Where they are of a device the host waits for them, and that is counted.
  at::Tensor wait();

 private:
  at::Tensor host_;
  bool of_device_;
  std::optional<c10::Event> copied_;
};

/// Local. `tensor` on the CPU: PendingRead(tensor).wait().
at::Tensor read_back(const at::Tensor& tensor);

/// Local. How often the host has waited for a device's values in this process.
std::int64_t host_wait_count();

}  // namespace meshard
