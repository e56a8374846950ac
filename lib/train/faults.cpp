#include "train/faults.h"

#include <ATen/ops/full_like.h>

#include <limits>

namespace meshard {

namespace {

// In place, so that every handle to the buffer sees it.
void replace(Buffer& buffer, const at::Tensor& value) {
  buffer.tensor.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());
}

}  // namespace

void strike_at_start(Fault fault, Module& root, at::ScalarType param) {
  walk(root, [&](const std::string& fqn, Module& module) {
    for (auto& buffer : module.buffers()) {
      if (!buffer.tensor.is_floating_point()) continue;
      if (fault == Fault::ClobberRealBuffers) {
        replace(buffer, at::full_like(buffer.tensor, std::numeric_limits<double>::quiet_NaN()));
      } else if (fault == Fault::BiasCastToParamDtype && buffer.name == "e_score_correction_bias") {
        replace(buffer, buffer.tensor.to(param));
      }
    }
  });
}

}  // namespace meshard
