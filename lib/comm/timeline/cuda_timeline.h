#pragma once
// Lanes as streams of a CUDA device, tokens as events. Nothing else of the backend calls CUDA.

#include <memory>
#include <string>
#include <vector>

#include "comm/timeline/timeline.h"

namespace meshard {

/// Local. Makes device `index` the current one. Compute is the stream that is current on the calling thread, the other
/// lanes are streams of their own, of high priority. Throws CommError if CUDA will not have it.
std::unique_ptr<Timeline> make_cuda_timeline(int index);

/// Local. PCI bus ids of the devices that this process sees, in CUDA's order. Touches no device.
std::vector<std::string> cuda_devices();

/// Local. "13.0", of this build.
std::string cuda_version();

}  // namespace meshard
