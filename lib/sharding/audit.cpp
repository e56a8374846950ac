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

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  auto left = a.cpu().contiguous(), right = b.contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

std::string first_offender(const ShardingContext& context) {
  std::string offender;
  context.for_each_owned([&](const OwnedRange& owned) {
    if (offender.empty()) offender = check_values(owned);
  });
  walk(context.root(), [&](const std::string& fqn, Module& module) {
    for (auto& buffer : module.buffers()) {
      if (!offender.empty() || same_bits(buffer.tensor, buffer.declared())) continue;
      offender = fmt::format("buffer {} does not hold its declared value: something overwrote it during sharding",
                             join_name(fqn, buffer.name));
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
