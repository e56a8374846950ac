#pragma once
// What a build with CUDA adds to a World: device discovery, and communicators over NCCL. A build without links
// no_device_backend.cpp, in which there are no devices.

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/support.h"

namespace meshard {

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual at::Device device() const = 0;

  /// Collective over `comm`. A communicator of the same ranks over this backend. It keeps `comm`, but uses it only to
  /// set itself up. Throws CommError, also if the set-up takes longer than the timeout.
  virtual std::unique_ptr<Communicator> make_communicator(MpiComm comm, MPI_Comm world, const std::string& axis,
                                                          Recorder& recorder) = 0;

  /// Local. Any thread. The sequence number of the oldest collective that the device has not finished; 0: none. Also
  /// looks for errors of communicators, and aborts those that have one: what waits for them on the device then ends,
  /// and their next use throws CommError.
  virtual std::uint64_t oldest_unfinished() = 0;
};

/// Local. PCI bus ids of the devices that this process sees, in CUDA's order. Touches no device.
std::vector<std::string> visible_devices();

/// Local. Makes device `index` the current one and returns its backend. Throws CommError if CUDA or NCCL will not have
/// it.
std::unique_ptr<DeviceBackend> make_device_backend(int index, std::chrono::milliseconds timeout);

/// Local. "mpi", or "mpi, nccl 2.27.3 (CUDA 13.0)": what this build can do.
std::string built_in_backends();

}  // namespace meshard
