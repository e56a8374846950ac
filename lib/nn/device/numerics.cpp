#include "nn/device/numerics.h"

#include <ATen/Context.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"

namespace meshard {

void set_device_numerics(at::Device device, bool deterministic) {
  if (device.is_cpu()) return;
  auto& context = at::globalContext();
  context.setAllowBF16ReductionCuBLAS(/*reduced=*/false, /*split_k=*/false);
  if (!deterministic) return;
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS is deterministic with a workspace of its own
  context.setSDPUseCuDNN(false);
  context.setDeterministicCuDNN(true);
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);
}

std::string_view checked_backend(std::int64_t choice, const AttentionSizes& sizes, at::ScalarType dtype) {
  switch (static_cast<at::SDPBackend>(choice)) {
    case at::SDPBackend::flash_attention:
      return "flash";
    case at::SDPBackend::cudnn_attention:
      return "cuDNN";
    case at::SDPBackend::efficient_attention:
      return "memory-efficient";
    case at::SDPBackend::math:
      if (dtype != at::kBFloat16) return "math";
      break;
    case at::SDPBackend::error:
    case at::SDPBackend::overrideable:
      break;
  }
  throw ConfigError(
      fmt::format("attention of {} heads of {} elements ({} for keys and values) in {} has no fused kernel on this "
                  "device; choose a head_dim of at most 256 that is a multiple of 8, or precision.param: fp32",
                  sizes.heads, sizes.head_dim, sizes.kv_heads, c10::toString(dtype)));
}

std::string_view attention_backend(const AttentionSizes& sizes, at::ScalarType dtype, at::Device device) {
  if (device.is_cpu()) return "fused";
  auto heads_of = [&](std::int64_t heads) {
    return at::empty({sizes.batch, heads, sizes.seq, sizes.head_dim}, at::device(device).dtype(dtype))
        .set_requires_grad(true);
  };
  auto keys = heads_of(sizes.kv_heads);
  auto choice = at::_fused_sdp_choice(heads_of(sizes.heads), keys, keys, std::nullopt, 0.0, /*is_causal=*/true,
                                      std::nullopt, /*enable_gqa=*/true);
  return checked_backend(choice, sizes, dtype);
}

}  // namespace meshard
