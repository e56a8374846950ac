#pragma once
// What devices add to a World: their discovery, and communicators over NCCL. A build with CUDA links
// cuda_device_backend.cpp; one without no_device_backend.cpp, in which there are no devices.

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/support.h"

namespace meshard {

class MpiEngine;

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

  /// Local. Reports the collectives that are done, and were not reported yet, to their recorders.
  virtual void collect() = 0;
};

/// The devices that a World may take, and who communicates between them: those of this build, or those of a test.
class DeviceDriver {
 public:
  virtual ~DeviceDriver() = default;

  /// Local. Names (of CUDA PCI bus ids) of the devices that this process sees, in their order. Touches no device.
  virtual std::vector<std::string> visible() = 0;

  /// Local. Makes device `index` the current one and returns its backend. `engine` moves what MPI carries while this
  /// rank waits, and lives longer. Throws CommError if the device or its library will not have it.
  virtual std::unique_ptr<DeviceBackend> make(int index, std::chrono::milliseconds timeout, MpiEngine& engine) = 0;
};

/// Those of this build: none without CUDA.
DeviceDriver& built_in_devices();

/// Local. "mpi", or "mpi, nccl 2.27.3 (CUDA 13.0)": what this build can do.
std::string built_in_backends();

}  // namespace meshard
