#include "nn/options.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

std::int64_t DecoderOptions::rotary_dim() const {
  auto dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  if (dim <= 0 || dim % 2 != 0 || dim > head_dim) {
    throw ArgumentError(
        fmt::format("head_dim {} * partial_rotary_factor {} = {} rotary elements: must be even, and 2 to "
                    "head_dim",
                    head_dim, partial_rotary_factor, dim));
  }
  return dim;
}

}  // namespace meshard
