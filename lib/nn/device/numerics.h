#pragma once
// What a device may do with sums, and which kernel its attention gets: said once, before the first operation there.

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace meshard {

/// Local. Products of bf16 sum in fp32, also where the depth is split. `deterministic`: the same bits in every repeat:
/// flash attention, in the order of one block, instead of cuDNN's, and no kernel with atomics where ATen has another.
/// Does nothing for a CPU: there every operation of a model is so.
void set_device_numerics(at::Device device, bool deterministic);

struct AttentionSizes {
  std::int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 1;
};

/// Local. By name, what ATen's attention will run on for such heads in training: "flash", "cuDNN", "memory-efficient",
/// "math"; on a CPU "fused", which is ours. ConfigError for math in bf16: it rounds every score and keeps all of them.
std::string_view attention_backend(const AttentionSizes& sizes, at::ScalarType dtype, at::Device device);

/// Local. The name of a choice of ATen's (at::SDPBackend); the same error.
std::string_view checked_backend(std::int64_t choice, const AttentionSizes& sizes, at::ScalarType dtype);

}  // namespace meshard
