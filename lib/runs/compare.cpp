#include "runs/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/json_text.h"
#include "base/metric_names.h"

namespace meshard {

namespace {

using Json = RunMetrics::Json;
using Lines = std::map<std::int64_t, Json>;

constexpr double kSmallestDifference = 1e-30;
constexpr const char* kMissing = "missing";

bool is_wanted(const std::string& metric, const CompareOptions& options) {
  auto* known = find_metric(metric);
  bool only_if_named = known && known->nature != MetricNature::Result;
  if (options.metrics.empty()) return !only_if_named;
  return std::ranges::any_of(options.metrics, [&](const std::string& name) {
    return metric == name || (!only_if_named && metric.starts_with(name + "."));
  });
}

const Json* find(const Json& object, const std::string& key) {
  auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

/// The keys of both: the order of `a`, then those that only `b` has.
std::vector<std::string> keys_of(const Json& a, const Json& b) {
  std::vector<std::string> keys;
  for (auto& item : a.items()) keys.push_back(item.key());
  for (auto& item : b.items()) {
    if (!a.contains(item.key())) keys.push_back(item.key());
  }
  return keys;
}

/// By the value of `layer`.
std::map<std::int64_t, const Json*> layers_of(const Json* layers) {
  std::map<std::int64_t, const Json*> by_number;
  if (!layers) return by_number;
  for (auto& layer : *layers) by_number[layer.at("layer").get<std::int64_t>()] = &layer;
  return by_number;
}

/// Names of all metrics of a line, wanted or not.
void add_names(const Json& line, std::vector<std::string>& names) {
  auto add = [&](const std::string& prefix, const Json& object, std::initializer_list<std::string_view> without) {
    for (auto& item : object.items()) {
      if (std::ranges::find(without, item.key()) != without.end()) continue;
      auto name = prefix + item.key();
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  };
  add("", line, {"step", "moe"});
  auto moe = find(line, "moe");
  if (!moe) return;
  add("moe.", *moe, {"layers"});
  for (auto& [number, layer] : layers_of(find(*moe, "layers"))) add("moe.", *layer, {"layer"});
}

std::vector<std::string> names_of(const Lines& a, const Lines& b) {
  std::vector<std::string> names;
  for (auto* lines : {&a, &b}) {
    for (auto& [step, line] : *lines) add_names(line, names);
  }
  return names;
}

/// Walks two lines of one step side by side.
class LineComparer {
 public:
  LineComparer(const CompareOptions& options, std::vector<Difference>& differences)
      : options_(options), differences_(differences) {}

  void compare(std::int64_t step, const Json& a, const Json& b) {
    step_ = step;
    for (auto& key : keys_of(a, b)) {
      if (key == "moe") {
        balance(find(a, key), find(b, key));
      } else if (key != "step") {
        metric(key, "", find(a, key), find(b, key));
      }
    }
  }

  /// Of a metric that only one run has, one difference is enough.
  void merge_one_sided() {
    std::set<std::string> told;
    std::erase_if(differences_, [&](const Difference& difference) {
      bool one_sided = !(seen_a_.contains(difference.metric) && seen_b_.contains(difference.metric));
      return one_sided && !told.insert(difference.metric).second;
    });
  }

 private:
  void balance(const Json* a, const Json* b) {
    auto none = Json::object();
    auto& moe_a = a ? *a : none;
    auto& moe_b = b ? *b : none;
    for (auto& key : keys_of(moe_a, moe_b)) {
      if (key == "layers") {
        layers(layers_of(find(moe_a, key)), layers_of(find(moe_b, key)));
      } else {
        metric("moe." + key, "", find(moe_a, key), find(moe_b, key));
      }
    }
  }

  void layers(const std::map<std::int64_t, const Json*>& a, const std::map<std::int64_t, const Json*>& b) {
    auto both = a;
    both.insert(b.begin(), b.end());
    if (both.empty()) return;
    for (auto& field : keys_of(*(a.empty() ? b : a).begin()->second, *(b.empty() ? a : b).begin()->second)) {
      if (field == "layer") continue;
      for (auto& [layer, unused] : both) {
        auto value = [&](auto& side) { return side.contains(layer) ? find(*side.at(layer), field) : nullptr; };
        metric("moe." + field, fmt::format("layer {}", layer), value(a), value(b));
      }
    }
  }

  /// One metric of one place; null: missing there. Members of objects and experts of layers are compared one by one.
  void metric(const std::string& name, const std::string& where, const Json* a, const Json* b) {
    if (!is_wanted(name, options_)) return;
    if (!a && !b) return;
    if (a) seen_a_.insert(name);
    if (b) seen_b_.insert(name);
    if (a && b && a->is_object() && b->is_object()) {
      for (auto& key : keys_of(*a, *b)) {
        metric(name, where.empty() ? key : where + "." + key, find(*a, key), find(*b, key));
      }
    } else if (a && b && a->is_array() && b->is_array() && !where.empty()) {
      experts(name, where, *a, *b);
    } else if (!same(a, b)) {
      add(name, where, a, b);
    }
  }

  void experts(const std::string& name, const std::string& where, const Json& a, const Json& b) {
    for (std::size_t expert = 0; expert < std::max(a.size(), b.size()); ++expert) {
      auto element = [&](const Json& array) { return expert < array.size() ? &array[expert] : nullptr; };
      if (same(element(a), element(b))) continue;
      add(name, fmt::format("{}, expert {}", where, expert), element(a), element(b));
    }
  }

  bool same(const Json* a, const Json* b) const {
    if (!a || !b) return false;
    if (!a->is_number() || !b->is_number() || (a->is_number_integer() && b->is_number_integer())) return *a == *b;
    auto x = a->get<double>(), y = b->get<double>();
    if (options_.exact) return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
    auto distance = std::abs(x - y);
    return distance <= options_.rtol * std::max(std::abs(x), std::abs(y)) || distance <= kSmallestDifference;
  }

  void add(const std::string& name, const std::string& where, const Json* a, const Json* b) {
    Difference difference{step_, name, where, a ? json_text(*a) : kMissing, b ? json_text(*b) : kMissing, std::nullopt};
    if (a && b && a->is_number() && b->is_number()) {
      auto x = a->get<double>(), y = b->get<double>();
      auto larger = std::max(std::abs(x), std::abs(y));
      difference.relative = larger > 0.0 ? std::abs(x - y) / larger : 0.0;
    }
    differences_.push_back(std::move(difference));
  }

  const CompareOptions& options_;
  std::vector<Difference>& differences_;
  std::int64_t step_ = 0;
  std::set<std::string> seen_a_, seen_b_;
};

void check_names(const CompareOptions& options, const std::vector<std::string>& names) {
  for (auto& asked : options.metrics) {
    bool known = std::ranges::any_of(
        names, [&](const std::string& name) { return name == asked || name.starts_with(asked + "."); });
    if (known) continue;
    throw ArgumentError(fmt::format("neither run has a metric `{}`; they have {}", asked, fmt::join(names, ", ")));
  }
}

std::string range_text(const Lines& lines) {
  return fmt::format("{} to {}", lines.begin()->first, lines.rbegin()->first);
}

}  // namespace

Comparison compare_runs(const RunMetrics& a, const RunMetrics& b, const CompareOptions& options) {
  auto step_names = names_of(a.steps, b.steps), eval_names = names_of(a.evals, b.evals);
  auto names = step_names;
  names.insert(names.end(), eval_names.begin(), eval_names.end());
  check_names(options, names);
  auto wanted = [&](const std::string& name) { return is_wanted(name, options); };

  Comparison comparison;
  std::set<std::int64_t> all, common, only_a, only_b;
  std::vector<std::pair<const Lines*, const Lines*>> kinds;
  if (std::ranges::any_of(step_names, wanted)) kinds.emplace_back(&a.steps, &b.steps);
  if (std::ranges::any_of(eval_names, wanted)) kinds.emplace_back(&a.evals, &b.evals);
  for (auto& [lines_a, lines_b] : kinds) {
    for (auto& [step, line] : *lines_a) (lines_b->contains(step) ? common : only_a).insert(step);
    for (auto& [step, line] : *lines_b) {
      if (!lines_a->contains(step)) only_b.insert(step);
    }
  }
  if (common.empty()) {
    throw ArgumentError(
        fmt::format("no step stands in both runs: {} has {}, {} has {}; compare runs with common "
                    "logged steps",
                    a.folder.string(), range_text(a.steps), b.folder.string(), range_text(b.steps)));
  }

  LineComparer comparer(options, comparison.differences);
  for (auto step : common) {
    for (auto& [lines_a, lines_b] : kinds) {
      auto line_a = lines_a->find(step), line_b = lines_b->find(step);
      if (line_a == lines_a->end() || line_b == lines_b->end()) continue;
      comparer.compare(step, line_a->second, line_b->second);
    }
  }
  comparer.merge_one_sided();
  comparison.steps = static_cast<std::int64_t>(common.size());
  comparison.only_a.assign(only_a.begin(), only_a.end());
  comparison.only_b.assign(only_b.begin(), only_b.end());
  return comparison;
}

}  // namespace meshard
