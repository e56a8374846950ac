#include "sharding/audit.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace meshard {

namespace {

constexpr double kStandardDeviations = 8.0;

std::string check_finite(const OwnedRange& owned) {
  auto [low, high] = at::aminmax(owned.values.to(at::kFloat));
  bool finite = std::isfinite(low.item<float>()) && std::isfinite(high.item<float>());
  return finite ? "" : fmt::format("{} holds a value that is not finite", owned.parameter.fqn());
}

std::string check_values(const OwnedRange& owned) {
  auto problem = check_finite(owned);
  if (!problem.empty()) return problem;
  auto [low_tensor, high_tensor] = at::aminmax(owned.values.to(at::kFloat));
  auto low = low_tensor.item<float>(), high = high_tensor.item<float>();
  auto& init = owned.parameter.parameter.slot().init;
  auto& fqn = owned.parameter.fqn();
  switch (init.kind) {
    case Init::Kind::Constant: {
      auto expected = at::full({}, init.value, owned.values.options()).item<float>();
      if (low == expected && high == expected) return "";
      return fmt::format("{} holds values from {} to {} where {} was declared", fqn, low, high, init.value);
    }
    case Init::Kind::Normal: {
      auto bound = kStandardDeviations * init.value;
      if (low >= -bound && high <= bound) return "";
      return fmt::format("{} holds values from {} to {}: beyond {} standard deviations of {}", fqn, low, high,
                         kStandardDeviations, init.value);
    }
  }
  throw LogicError("unknown kind of first values");
}

// What is wrong with a buffer, or empty. Bitwise: a NaN is not equal to itself, and -0 is not 0.
std::string check_buffer(const at::Tensor& buffer, const at::Tensor& declared) {
  if (buffer.scalar_type() != declared.scalar_type()) {
    return fmt::format("is of dtype {} where {} was declared: something cast it", c10::toString(buffer.scalar_type()),
                       c10::toString(declared.scalar_type()));
  }
  auto holds = buffer.cpu().contiguous().view({-1}), should = declared.contiguous().view({-1});
  if (buffer.sizes() != declared.sizes()) return "is not of its declared shape";
  if (std::memcmp(holds.const_data_ptr(), should.const_data_ptr(), should.nbytes()) == 0) return {};
  auto size = holds.element_size();
  for (std::int64_t i = 0; i < holds.numel(); ++i) {
    auto* a = static_cast<const char*>(holds.const_data_ptr()) + i * size;
    auto* b = static_cast<const char*>(should.const_data_ptr()) + i * size;
    if (std::memcmp(a, b, size) == 0) continue;
    return fmt::format("holds {} where {} was declared (element {}): something overwrote it while the model was made",
                       holds[i].item<double>(), should[i].item<double>(), i);
  }
  return {};
}

using CheckRange = std::string (*)(const OwnedRange&);

std::string first_offender(const ShardingRuntime& runtime, CheckRange check_range, bool persistent_buffers) {
  std::string offender;
  runtime.for_each_owned([&](const OwnedRange& owned) {
    if (offender.empty()) offender = check_range(owned);
  });
  walk(runtime.root(), [&](const std::string& fqn, Module& module) {
    for (auto& buffer : module.buffers()) {
      if (!offender.empty() || (buffer.persistent && !persistent_buffers)) continue;
      auto problem = check_buffer(buffer.tensor, buffer.declared());
      if (!problem.empty()) offender = fmt::format("buffer {} {}", join_name(fqn, buffer.name), problem);
    }
  });
  return offender;
}

void tell_together(const ShardingRuntime& runtime, const char* audit, const std::string& mine) {
  auto offenders = runtime.mesh().world().gather_texts(mine);
  for (std::size_t rank = 0; rank < offenders.size(); ++rank) {
    if (offenders[rank].empty()) continue;
    throw NonFiniteError(fmt::format("{}, rank {}: {}", audit, rank, offenders[rank]));
  }
}

}  // namespace

void audit_initialisation(const ShardingRuntime& runtime) {
  tell_together(runtime, "initialisation audit", first_offender(runtime, check_values, true));
}

void audit_load(const ShardingRuntime& runtime) {
  tell_together(runtime, "audit of the loaded state", first_offender(runtime, check_finite, false));
}

}  // namespace meshard
