#include "checkpoint/compare.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace meshard {

namespace {

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

/// The number that follows `word` in a key, if one does.
std::optional<std::int64_t> number_after(const std::string& key, std::string_view word) {
  auto at = key.find(word);
  if (at == std::string::npos) return {};
  auto begin = at + word.size(), end = begin;
  while (end < key.size() && is_digit(key[end])) ++end;
  if (end == begin || end - begin > 9) return {};
  return std::stoll(key.substr(begin, end - begin));
}

/// Numbers in names by value: layers.2 before layers.10.
bool name_less(const std::string& a, const std::string& b) {
  std::size_t i = 0, j = 0;
  auto number = [](const std::string& text, std::size_t& at) {
    auto begin = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    while (begin + 1 < at && text[begin] == '0') ++begin;
    return text.substr(begin, at - begin);
  };
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      auto x = number(a, i), y = number(b, j);
      if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

/// One tensor in both checkpoints, block by block.
class TensorComparer {
 public:
  TensorComparer(const CheckpointReader& a, const CheckpointReader& b, const std::string& key,
                 const CheckpointCompareOptions& options)
      : a_(a),
        b_(b),
        options_(options),
        entry_a_(a.metadata().tensors.at(key)),
        entry_b_(b.metadata().tensors.at(key)) {
    found_.key = key;
    found_.dtype_a = c10::toString(entry_a_.dtype);
    found_.dtype_b = c10::toString(entry_b_.dtype);
    found_.layer = number_after(key, "layers.");
    expert_of_key_ = number_after(key, "mlp.experts.");
    first_is_expert_ = !expert_of_key_ &&
                       (key.find("mlp.experts.") != std::string::npos || key.find("mlp.gate.") != std::string::npos);
    bits_ = entry_a_.dtype == entry_b_.dtype && (options.exact || !is_real(entry_a_.dtype));
  }

  TensorDifference compare() {
    for (auto& box : blocks_of(entry_a_.shape, options_.block_elements)) {
      found_.elements += box.numel();
      compare(box, read(a_, entry_a_, box), read(b_, entry_b_, box));
    }
    if (expert_of_key_ && found_.differing > 0) experts_.insert(*expert_of_key_);
    found_.experts.assign(experts_.begin(), experts_.end());
    return std::move(found_);
  }

 private:
  static bool is_real(at::ScalarType dtype) { return at::isFloatingType(dtype) || at::isComplexType(dtype); }

  at::Tensor read(const CheckpointReader& reader, const TensorEntry& entry, const Box& box) const {
    auto values = at::empty(box.sizes, entry.dtype);
    reader.read(StateTensor{found_.key, {}, entry.dtype, entry.shape, {{box, values}}, {}});
    return values;
  }

  static std::int64_t nans(const at::Tensor& values) {
    if (!is_real(values.scalar_type())) return 0;
    bool small = values.element_size() == 1;  // isnan() has no float8
    return at::isnan(small ? values.to(at::kFloat) : values).sum().item<std::int64_t>();
  }

  void compare(const Box& box, const at::Tensor& a, const at::Tensor& b) {
    auto nan_a = nans(a), nan_b = nans(b);
    found_.nan_a += nan_a;
    found_.nan_b += nan_b;
    bool same_bits =
        a.scalar_type() == b.scalar_type() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
    if (same_bits && (options_.exact || nan_a == 0)) return;
    auto real_a = a.is_complex() ? at::view_as_real(a) : a, real_b = b.is_complex() ? at::view_as_real(b) : b;
    rows(box, real_a, real_b);
  }

  /// Of a complex number the real and the imaginary part are a row of two.
  void rows(const Box& box, const at::Tensor& a, const at::Tensor& b) {
    auto doubles_a = a.to(at::kDouble), doubles_b = b.to(at::kDouble);
    auto *x = doubles_a.const_data_ptr<double>(), *y = doubles_b.const_data_ptr<double>();
    auto width = static_cast<std::size_t>(a.element_size());
    auto *bytes_x = static_cast<const char*>(a.const_data_ptr()),
         *bytes_y = static_cast<const char*>(b.const_data_ptr());
    auto columns = a.dim() == 0 ? 1 : a.size(-1);
    auto index = [&](std::int64_t position) { return index_of(box, a.sizes(), position); };
    Largest absolute{found_.largest_absolute}, relative{found_.largest_relative};
    for (std::int64_t begin = 0; begin < a.numel(); begin += columns) {
      auto scale = std::max(root_mean_square(x + begin, columns), root_mean_square(y + begin, columns));
      auto before = found_.differing;
      for (auto i = begin; i < begin + columns; ++i) {
        bool same =
            bits_ ? std::memcmp(bytes_x + i * width, bytes_y + i * width, width) == 0 : close(x[i], y[i], scale);
        if (same) continue;
        if (found_.differing++ == 0) found_.first = index(i), found_.first_a = x[i], found_.first_b = y[i];
        if (first_is_expert_ && a.dim() == 1) experts_.insert(index(i)[0]);
        absolute.take(std::abs(x[i] - y[i]), i);
        relative.take(relative_difference(x[i], y[i], scale), i);
      }
      if (first_is_expert_ && a.dim() > 1 && found_.differing > before) experts_.insert(index(begin)[0]);
    }
    if (absolute.at) found_.largest_absolute = absolute.value, found_.absolute_at = index(*absolute.at);
    if (relative.at) found_.largest_relative = relative.value, found_.relative_at = index(*relative.at);
  }

  /// A maximum over blocks: NaN is none.
  struct Largest {
    double value;
    std::optional<std::int64_t> at;
    void take(double other, std::int64_t position) {
      if (other > value) value = other, at = position;
    }
  };

  static double root_mean_square(const double* values, std::int64_t count) {
    double squares = 0.0;
    std::int64_t finite = 0;
    for (auto value : std::span(values, static_cast<std::size_t>(count))) {
      if (!std::isfinite(value)) continue;
      squares += value * value;
      ++finite;
    }
    auto root = finite > 0 ? std::sqrt(squares / static_cast<double>(finite)) : 0.0;
    return std::isfinite(root) ? root : 0.0;
  }

  /// Of infinities infinite, of NaN NaN.
  static double relative_difference(double x, double y, double scale) {
    auto larger = std::max({std::abs(x), std::abs(y), scale});
    return std::isfinite(larger) && larger > 0.0 ? std::abs(x - y) / larger : std::abs(x - y);
  }

  bool close(double x, double y, double scale) const {
    return x == y || (!options_.exact && relative_difference(x, y, scale) <= options_.rtol);
  }

  static Shape index_of(const Box& box, at::IntArrayRef sizes, std::int64_t position) {
    Shape index(sizes.size());
    for (auto d = sizes.size(); d-- > 0; position /= sizes[d]) {
      index[d] = position % sizes[d] + (d < box.offsets.size() ? box.offsets[d] : 0);
    }
    return index;
  }

  const CheckpointReader &a_, &b_;
  const CheckpointCompareOptions& options_;
  const TensorEntry &entry_a_, &entry_b_;
  bool bits_ = false;
  std::optional<std::int64_t> expert_of_key_;
  bool first_is_expert_ = false;
  std::set<std::int64_t> experts_;
  TensorDifference found_;
};

template <class Map>
void add_only(const Map& one, const Map& other, std::vector<std::string>& keys) {
  for (auto& [key, _] : one) {
    if (!other.contains(key)) keys.push_back(key);
  }
}

template <class Map>
std::vector<std::string> common_keys(const Map& a, const Map& b) {
  std::vector<std::string> keys;
  for (auto& [key, _] : a) {
    if (b.contains(key)) keys.push_back(key);
  }
  std::ranges::sort(keys, name_less);
  return keys;
}

}  // namespace

std::vector<Box> blocks_of(const Shape& shape, std::int64_t most) {
  if (std::ranges::count(shape, 0) > 0) return {};
  // Dimensions after `cut` lie whole in every block, those before it one index at a time.
  std::int64_t inner = 1;
  auto cut = shape.size();
  while (cut > 0 && inner * shape[cut - 1] <= most) inner *= shape[--cut];
  if (cut == 0) return {whole(shape)};
  auto dim = cut - 1;
  auto step = std::max<std::int64_t>(1, most / inner);
  std::vector<Box> blocks;
  for (auto box = whole(shape);;) {
    for (std::size_t d = 0; d < dim; ++d) box.sizes[d] = 1;
    box.sizes[dim] = std::min(step, shape[dim] - box.offsets[dim]);
    blocks.push_back(box);
    auto d = dim;
    for (box.offsets[d] += box.sizes[d]; box.offsets[d] == shape[d]; ++box.offsets[--d]) {
      if (d == 0) return blocks;
      box.offsets[d] = 0;
    }
  }
}

CheckpointComparison compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b,
                                         const CheckpointCompareOptions& options) {
  a.require_sound("compared");
  b.require_sound("compared");
  CheckpointComparison comparison;
  auto &left = a.metadata(), &right = b.metadata();
  add_only(left.tensors, right.tensors, comparison.only_a);
  add_only(left.values, right.values, comparison.only_a);
  add_only(right.tensors, left.tensors, comparison.only_b);
  add_only(right.values, left.values, comparison.only_b);
  for (auto* keys : {&comparison.only_a, &comparison.only_b}) std::ranges::sort(*keys, name_less);
  for (auto& key : common_keys(left.tensors, right.tensors)) {
    auto &entry_a = left.tensors.at(key), &entry_b = right.tensors.at(key);
    if (entry_a.shape != entry_b.shape) {
      comparison.shapes.push_back(
          fmt::format("{}: [{}] against [{}]", key, fmt::join(entry_a.shape, ", "), fmt::join(entry_b.shape, ", ")));
      continue;
    }
    if (entry_a.dtype != entry_b.dtype) {
      comparison.dtypes.push_back(
          fmt::format("{}: {} against {}", key, c10::toString(entry_a.dtype), c10::toString(entry_b.dtype)));
      if (at::isComplexType(entry_a.dtype) != at::isComplexType(entry_b.dtype)) continue;
    }
    auto difference = TensorComparer(a, b, key, options).compare();
    ++comparison.compared_tensors;
    comparison.compared_elements += difference.elements;
    if (difference.differing > 0) {
      comparison.tensors.push_back(std::move(difference));
    } else if (difference.nan_a > 0) {
      comparison.nan_keys.push_back(key);
    }
  }
  for (auto& key : common_keys(left.values, right.values)) {
    ++comparison.compared_values;
    auto difference = value_difference(key, a.read_value(key), b.read_value(key), options);
    if (difference) comparison.values.push_back(std::move(*difference));
  }
  return comparison;
}

}  // namespace meshard
