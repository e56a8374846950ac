#include "sharding/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "module/device_path.h"

namespace meshard {

namespace {

constexpr std::int64_t kCpuBlock = 1 << 18;     // read in place, by one thread
constexpr std::int64_t kCopiedBlock = 1 << 22;  // of a tensor that is not contiguous
constexpr std::int64_t kDeviceBlock = 512;      // summed in fp32

// Four independent fp64 sums, so that the loop is not bound by the latency of one addition.
template <class T>
double sum_of_block(const T* values, std::int64_t count) {
  double sums[4] = {};
  std::int64_t i = 0;
  auto add = [&](int lane, double value) { sums[lane] += value * value; };
  for (; i + 4 <= count; i += 4) {
    for (int lane = 0; lane < 4; ++lane) add(lane, values[i + lane]);
  }
  for (; i < count; ++i) add(0, values[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
double sum_on_cpu(const T* values, std::int64_t count) {
  std::vector<double> sums((count + kCpuBlock - 1) / kCpuBlock);
  at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto block = begin; block < end; ++block) {
      auto first = block * kCpuBlock;
      sums[block] = sum_of_block(values + first, std::min(kCpuBlock, count - first));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

double sum_on_cpu(const at::Tensor& flat) {
  switch (flat.scalar_type()) {
    case at::kFloat:
      return sum_on_cpu(flat.const_data_ptr<float>(), flat.numel());
    case at::kBFloat16:
      return sum_on_cpu(flat.const_data_ptr<c10::BFloat16>(), flat.numel());
    default:
      return sum_on_cpu(flat.to(at::kDouble).const_data_ptr<double>(), flat.numel());
  }
}

// A norm, unlike a sum of squares, is one kernel without a tensor of squares.
at::Tensor norms_of_rows(const at::Tensor& rows) {
  auto dtype = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, /*keepdim=*/false, dtype).to(at::kDouble);
}

at::Tensor sum_on_device(const at::Tensor& flat) {
  auto blocks = flat.numel() / kDeviceBlock, whole = blocks * kDeviceBlock;
  auto rest = flat.narrow(0, whole, flat.numel() - whole).unsqueeze(0);
  auto norms =
      at::cat({norms_of_rows(flat.narrow(0, 0, whole).unflatten(0, {blocks, kDeviceBlock})), norms_of_rows(rest)});
  return norms.square_().sum();
}

// Names, one a line, of the parameters whose part of `shard` (a flat tensor like the main weights) is not finite.
std::string nonfinite_in(const ParamGroup& group, const at::Tensor& shard) {
  std::string names;
  for (int i = 0; i < group.plan().layout.count(); ++i) {
    auto part = group.main_weights().part_of(shard, i);
    if (!at::isfinite(part).all().item<bool>()) names += group.plan().parameters[i].fqn() + "\n";
  }
  return names;
}

// Collective over world. The first few distinct names over all ranks.
void add_names(World& world, const std::string& mine, const char* prefix, std::vector<std::string>& names) {
  constexpr std::size_t kFew = 8;
  auto limit = names.size() + kFew;
  for (auto& text : world.gather_texts(mine)) {
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      auto name = prefix + text.substr(begin, end - begin);
      if (names.size() < limit && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
}

std::vector<std::string> find_nonfinite(const ShardingRuntime& runtime) {
  std::string weights, gradients;
  for (auto& unit : runtime.units()) {
    for (auto& group : unit->groups()) {
      if (!group->final_grad().defined()) continue;
      weights += nonfinite_in(*group, group->main_weights().local());
      gradients += nonfinite_in(*group, group->final_grad());
    }
  }
  std::vector<std::string> names;
  auto& world = runtime.mesh().world();
  add_names(world, weights, "weight ", names);
  add_names(world, gradients, "gradient of ", names);
  return names.empty() ? std::vector<std::string>{"the sum of squares of all gradients (overflow)"} : names;
}

}  // namespace

at::Tensor sum_of_squares(const at::Tensor& flat) {
  if (on_device_path(flat)) return sum_on_device(flat);
  if (flat.is_contiguous()) return at::scalar_tensor(sum_on_cpu(flat), at::kDouble);
  double sum = 0.0;
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kCopiedBlock) {
    sum += sum_on_cpu(flat.narrow(0, begin, std::min(kCopiedBlock, flat.numel() - begin)).contiguous());
  }
  return at::scalar_tensor(sum, at::kDouble);
}

GradientNorm gradient_norm(const ShardingRuntime& runtime, const at::Tensor& riders) {
  auto& world = runtime.mesh().world();
  auto count = static_cast<std::int64_t>(runtime.units().size());
  auto on_device = at::zeros({count}, at::device(world.device()).dtype(at::kDouble));
  for (std::int64_t i = 0; i < count; ++i) {
    for (auto& group : runtime.units()[i]->groups()) {
      if (!group->counts_in_sums() || !group->final_grad().defined()) continue;
      on_device.select(0, i) += sum_of_squares(group->final_grad());
    }
  }
  auto read = read_back(riders.defined() ? at::cat({on_device, riders}) : on_device);  // the one of a step
  auto squares = read.narrow(0, 0, count).clone();
  world.control().all_reduce(squares, ReduceOp::Sum, {"gradient norm", true}).wait();

  GradientNorm norm;
  norm.riders.assign(read.const_data_ptr<double>() + count, read.const_data_ptr<double>() + read.numel());
  auto* all = squares.const_data_ptr<double>();
  norm.unit_squares.assign(all, all + squares.numel());
  double total = 0.0;
  for (double square : norm.unit_squares) total += square;
  norm.value = std::sqrt(total);
  if (!std::isfinite(total)) norm.nonfinite = find_nonfinite(runtime);
  return norm;
}

double clip_scale(const GradientNorm& norm, double max_norm) {
  return max_norm > 0.0 ? std::min(1.0, max_norm / (norm.value + 1e-6)) : 1.0;
}

void clip_gradients(const ShardingRuntime& runtime, const GradientNorm& norm, double max_norm) {
  auto scale = clip_scale(norm, max_norm);
  if (scale == 1.0) return;
  for (auto& unit : runtime.units()) {
    for (auto& group : unit->groups()) {
      if (group->final_grad().defined()) group->final_grad().mul_(scale);
    }
  }
}

}  // namespace meshard
