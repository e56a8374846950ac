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

std::string check_values(const OwnedRange& owned) {
  auto [low_tensor, high_tensor] = at::aminmax(owned.values.to(at::kFloat));
  auto low = low_tensor.item<float>(), high = high_tensor.item<float>();
  auto& init = owned.parameter.parameter.slot().init;
  auto& fqn = owned.parameter.fqn();
  if (!std::isfinite(low) || !std::isfinite(high)) return fmt::format("{} holds a value that is not finite", fqn);
  if (init.kind == Init::Kind::Constant) {
    auto expected = at::full({}, init.value, owned.values.options()).item<float>();
    return low == expected && high == expected
               ? ""
               : fmt::format("{} holds values from {} to {} where {} was declared", fqn, low, high, init.value);
  }
  auto bound = kStandardDeviations * init.value;
  return low >= -bound && high <= bound
             ? ""
             : fmt::format("{} holds values from {} to {}: beyond {} standard deviations of {}", fqn, low, high,
                           kStandardDeviations, init.value);
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

std::string first_offender(const ShardingContext& context) {
  std::string offender;
  context.for_each_owned([&](const OwnedRange& owned) {
    if (offender.empty()) offender = check_values(owned);
  });
  walk(context.root(), [&](const std::string& fqn, Module& module) {
    for (auto& buffer : module.buffers()) {
      if (!offender.empty()) return;
      auto problem = check_buffer(buffer.tensor, buffer.declared());
      if (!problem.empty()) offender = fmt::format("buffer {} {}", join_name(fqn, buffer.name), problem);
    }
  });
  return offender;
}

}  // namespace

void audit_initialisation(const ShardingContext& context) {
  auto offenders = context.mesh().world().gather_texts(first_offender(context));
  for (std::size_t rank = 0; rank < offenders.size(); ++rank) {
    if (offenders[rank].empty()) continue;
    throw NonFiniteError(fmt::format("initialisation audit, rank {}: {}", rank, offenders[rank]));
  }
}

}  // namespace meshard
