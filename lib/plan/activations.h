#pragma once

#include <cstdint>

#include "config/config.h"

namespace meshard {

/// Local. Bytes of activations of one microbatch that one rank holds at the peak: what every layer saves for backward
/// (nn/: the inputs of its products, q, k, v and the attention's output, gate and up), with recomputation only each
/// layer's input and one layer's worth, and the temporaries of one layer's backward and of one slice of the loss.
std::int64_t activation_bytes(const Config& config);

}  // namespace meshard
