#pragma once
// A stand-in for NCCL, for tests of the nccl backend without a device: the calls that the backend makes, over MPI and
// with host memory. Its streams are the lanes of a HostTimeline. Beside what NCCL does, it compares what each pair of
// ranks launches: calls, sizes, dtypes and their order over all communicators. Ranks that disagree would wait for each
// other for ever on devices; here it is an error that names both calls.

#include <memory>
#include <string>

#include "comm/nccl/device_backend.h"
#include "support/host_timeline.h"

namespace nccl_stub {

/// What NCCL and the network do to one.
struct Faults {
  int in_progress = 2;            ///< looks at a communicator before a call that it has taken is done
  bool init_never_ends = false;   ///< of communicators made from now on
  int launches_until_error = -1;  ///< of all communicators; the next launch then fails on its way; -1: none does
};
/// Local. Those of this rank.
Faults& faults();

/// Local. What was found to differ between this rank and another; empty: nothing.
std::string disagreement();

/// A driver of devices that are this host's memory: a backend over NCCL's stand-in, on a HostTimeline. One per process.
class Devices : public meshard::DeviceDriver {
 public:
  /// `early`: what HostTimeline takes.
  explicit Devices(std::optional<unsigned> early) : early_(early) {}

  std::vector<std::string> visible() override;
  std::unique_ptr<meshard::DeviceBackend> make(int index, std::chrono::milliseconds timeout,
                                               meshard::MpiEngine& engine) override;

  /// Local. That of the backend that was made last.
  HostTimeline& timeline() { return *timeline_; }

 private:
  std::optional<unsigned> early_;
  HostTimeline* timeline_ = nullptr;
};

/// Local. Those of this test program, if its backend is nccl-late or nccl-early; else null. The order is then checked.
Devices* test_devices();

}  // namespace nccl_stub
