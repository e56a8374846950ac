#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/json_text.h"
#include "base/number_ranges.h"
#include "checkpoint/compare.h"

namespace meshard {

namespace {

constexpr std::size_t kMostTensors = 25, kMostListed = 20, kLongestText = 60;

std::string plural(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string cut_text(const std::string& text) {
  return text.size() <= kLongestText ? text : text.substr(0, kLongestText) + "...";
}

std::string experts_text(const std::vector<std::int64_t>& experts) {
  if (experts.empty()) return "";
  return fmt::format("expert{} {}", experts.size() == 1 ? "" : "s", cut_text(number_ranges(experts)));
}

std::string place_text(const TensorDifference& tensor) {
  auto text = tensor.layer ? fmt::format(", layer {}", *tensor.layer) : "";
  return tensor.experts.empty() ? text : text + ", " + experts_text(tensor.experts);
}

std::string index_text(const Shape& index) {
  return index.empty() ? "" : fmt::format("[{}]", fmt::join(index, ", "));
}

/// The one sentence that everything else explains.
std::string first_text(const ComparedCheckpoints& pair) {
  auto& found = pair.comparison;
  std::string what;
  if (!found.tensors.empty()) {
    auto& tensor = found.tensors.front();
    bool wide = tensor.dtype_a == "Double" || tensor.dtype_b == "Double";
    what = fmt::format("{}{}{}: {:.{}g} against {:.{}g}", tensor.key, index_text(tensor.first), place_text(tensor),
                       tensor.first_a, wide ? 17 : 9, tensor.first_b, wide ? 17 : 9);
  } else if (!found.values.empty()) {
    auto& [key, a, b] = found.values.front();
    what = fmt::format("{}: {} against {}", key, cut_text(a), cut_text(b));
  } else if (!found.shapes.empty() || !found.dtypes.empty()) {
    what = found.shapes.empty() ? found.dtypes.front() : found.shapes.front();
  } else {
    what = fmt::format("{} is only in {}", found.only_a.empty() ? found.only_b.front() : found.only_a.front(),
                       found.only_a.empty() ? "b" : "a");
  }
  return fmt::format("first difference: {}{}{}\n", pair.step, pair.step.empty() ? "" : ", ", what);
}

std::string pair_text(const ComparedCheckpoints& pair) {
  auto& found = pair.comparison;
  auto text = pair.step.empty() ? "" : pair.step + ": ";
  auto all = fmt::format("{} of {} elements, {}", plural(found.compared_tensors, "tensor"), found.compared_elements,
                         plural(found.compared_values, "value"));
  if (found.same()) return text + "same, " + all + "\n";
  std::vector<std::string> parts;
  auto add = [&](std::size_t count, const std::string& part) {
    if (count > 0) parts.push_back(part);
  };
  auto differing = [&](std::size_t count, std::int64_t of, const char* what) {
    add(count, fmt::format("{} of {} differ{}", count, plural(of, what), count == 1 ? "s" : ""));
  };
  differing(found.tensors.size(), found.compared_tensors, "tensor");
  differing(found.values.size(), found.compared_values, "value");
  add(found.only_a.size(), plural(found.only_a.size(), "key") + " only in a");
  add(found.only_b.size(), plural(found.only_b.size(), "key") + " only in b");
  add(found.shapes.size(), plural(found.shapes.size(), "shape") + " not the same");
  add(found.dtypes.size(), plural(found.dtypes.size(), "dtype") + " not the same");
  return fmt::format("{}{}\n", text, fmt::join(parts, ", "));
}

std::string list_text(const std::vector<std::string>& lines, const char* what) {
  if (lines.empty()) return "";
  auto text = fmt::format("\n{}\n", what);
  for (std::size_t i = 0; i < std::min(lines.size(), kMostListed); ++i) text += "  " + lines[i] + "\n";
  if (lines.size() > kMostListed) text += fmt::format("  and {} more\n", lines.size() - kMostListed);
  return text;
}

std::string row_text(const TensorDifference& tensor, std::size_t width) {
  auto text = fmt::format("{:<{}}  {:>10} of {:<10}  {:>8.1e} {:<16}  {:>8.1e} {:<16}", tensor.key, width,
                          tensor.differing, tensor.elements, tensor.largest_absolute, index_text(tensor.absolute_at),
                          tensor.largest_relative, index_text(tensor.relative_at));
  if (tensor.nan_a + tensor.nan_b > 0) text += fmt::format("  NaN: {} in a, {} in b", tensor.nan_a, tensor.nan_b);
  if (!tensor.experts.empty()) text += "  " + experts_text(tensor.experts);
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

std::string tensor_table(const std::vector<TensorDifference>& tensors) {
  if (tensors.empty()) return "";
  auto shown = std::span(tensors).first(std::min(tensors.size(), kMostTensors));
  std::size_t width = 6;
  for (auto& tensor : shown) width = std::max(width, tensor.key.size());
  auto text = fmt::format("\n{:<{}}  {:<24}  {:<25}  largest relative\n", "tensor", width, "elements that differ",
                          "largest absolute");
  for (auto& tensor : shown) text += row_text(tensor, width);
  if (tensors.size() > shown.size()) text += fmt::format("and {} more\n", tensors.size() - shown.size());
  return text;
}

std::string details_text(const CheckpointComparison& found) {
  std::vector<std::string> values;
  for (auto& [key, a, b] : found.values)
    values.push_back(fmt::format("{}: {} against {}", key, cut_text(a), cut_text(b)));
  return list_text(found.only_a, "only in a") + list_text(found.only_b, "only in b") +
         list_text(found.shapes, "shapes") + list_text(found.dtypes, "dtypes") + tensor_table(found.tensors) +
         list_text(values, "values");
}

}  // namespace

std::string step_text(const CheckpointReader& reader) {
  auto& extra = reader.extra();
  if (!extra.is_object() || !extra.contains("step")) return "";
  return fmt::format("step {}", json_text(extra["step"]));
}

std::string comparison_text(const std::vector<ComparedCheckpoints>& pairs) {
  std::string text;
  bool one = pairs.size() == 1;
  if (!pairs.empty()) {
    text = fmt::format("a  {}\nb  {}\n", (one ? pairs[0].a : pairs[0].a.parent_path()).string(),
                       (one ? pairs[0].b : pairs[0].b.parent_path()).string());
  }
  auto first = std::ranges::find_if(pairs, [](auto& pair) { return !pair.comparison.same(); });
  if (first != pairs.end()) text += first_text(*first);
  for (auto& pair : pairs) {
    text += pair_text(pair);
    text += list_text(pair.comparison.nan_keys, "NaN in both, in the same places");
  }
  return first == pairs.end() ? text : text + details_text(first->comparison);
}

}  // namespace meshard
