#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

namespace meshard {

namespace {

std::vector<int> divisors_of(std::int64_t number) {
  std::vector<int> all;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) all.push_back(divisor);
  }
  return all;
}

auto rank_of(const FoundMesh& mesh) {
  return std::tuple(three_digits(mesh.seconds), mesh.memory_bytes, mesh.expert, mesh.dp_outer, mesh.strategy,
                    mesh.recompute, -mesh.micro_batch);
}

bool better(const FoundMesh& a, const FoundMesh& b) {
  return rank_of(a) < rank_of(b);
}

class Search {
 public:
  Search(const Config& config, const SearchOptions& options, const Hardware& hardware)
      : config_(config), options_(options), hardware_(hardware), free_(options.free) {
    free_.expert = free_.expert && config.model.moe;
    result_.free = free_;
  }

  SearchResult run() {
    for (auto& candidate : candidates()) consider(candidate);
    std::ranges::stable_sort(fitting_, {}, &FoundMesh::seconds);
    simulate();
    report();
    return std::move(result_);
  }

 private:
  std::vector<FoundMesh> candidates() const {
    std::vector<FoundMesh> all;
    auto& parallel = config_.parallel;
    auto& train = config_.train;
    auto experts = config_.model.moe ? std::gcd(config_.model.moe->n_routed_experts, std::int64_t{options_.ranks}) : 1;
    bool recompute = train.activation_checkpoint == TrainConfig::Checkpointing::Full;
    for (auto outer : choices(free_.mesh, divisors_of(options_.ranks), parallel.dp_outer)) {
      for (auto strategy : choices(free_.strategy, all_words_of_strategy(), parallel.strategy)) {
        if (free_.mesh && is_double(strategy, outer)) continue;
        for (auto expert : choices(free_.expert, divisors_of(experts), parallel.expert)) {
          for (bool again : choices(free_.recompute, std::vector<bool>{false, true}, recompute)) {
            for (auto micro : choices(free_.micro_batch, divisors_of(train.global_batch_size / options_.ranks),
                                      static_cast<int>(train.micro_batch_size))) {
              all.push_back({.dp_outer = outer,
                             .dp_shard = options_.ranks / outer,
                             .expert = expert,
                             .strategy = strategy,
                             .recompute = again,
                             .micro_batch = micro});
            }
          }
        }
      }
    }
    return all;
  }

  template <class T>
  static std::vector<T> choices(bool free, std::vector<T> all, T fixed) {
    return free ? all : std::vector<T>{fixed};
  }

  static std::vector<Strategy> all_words_of_strategy() {
    std::vector<Strategy> all;
    for (std::size_t i = 0; i < kStrategyNames.size(); ++i) all.push_back(static_cast<Strategy>(i));
    return all;
  }

  /// Does what another candidate does: fsdp shards over all ranks however they are split, and without an outer axis
  /// hsdp and hfsdp are fsdp.
  bool is_double(Strategy strategy, int outer) const {
    bool hybrid = strategy == Strategy::Hsdp || strategy == Strategy::Hfsdp;
    if (strategy == Strategy::Fsdp) return outer > 1;
    return hybrid && outer == 1 && free_.strategy;
  }

  Config config_of(const FoundMesh& mesh) const {
    auto config = config_;
    config.parallel.dp_outer = mesh.dp_outer;
    config.parallel.dp_shard = mesh.dp_shard;
    config.parallel.expert = mesh.expert;
    config.parallel.strategy = mesh.strategy;
    config.train.activation_checkpoint =
        mesh.recompute ? TrainConfig::Checkpointing::Full : TrainConfig::Checkpointing::None;
    config.train.micro_batch_size = mesh.micro_batch;
    return config;
  }

  Plan& placed(const FoundMesh& mesh) {
    auto config = config_of(mesh);
    auto found = plans_.find(mesh.expert);
    if (found == plans_.end()) found = plans_.emplace(mesh.expert, make_plan(config, options_.ranks)).first;
    place_units(found->second, config);
    return found->second;
  }

  /// Whether it fits; if so, the time that it cannot be faster than.
  void consider(FoundMesh mesh) {
    ++result_.considered;
    auto& plan = placed(mesh);
    mesh.memory_bytes = plan.bytes.total();
    if (static_cast<double>(mesh.memory_bytes) <= options_.memory_limit_gb * 1e9) {
      mesh.seconds = least_step_seconds(plan, hardware_);
      fitting_.push_back(mesh);
      return;
    }
    ++too_large_;
    if (!smallest_ || mesh.memory_bytes < smallest_->memory_bytes) smallest_ = mesh;
  }

  void simulate() {
    auto& best = result_.best;
    for (auto& mesh : fitting_) {
      bool full = std::ssize(best) == options_.most;
      if (full && three_digits(mesh.seconds) > three_digits(best.back().seconds)) break;
      ++simulated_;
      auto step = predict_step(placed(mesh), hardware_);
      mesh.seconds = step.seconds;
      mesh.tokens_per_s = step.tokens_per_s;
      mesh.mfu = step.mfu;
      for (auto& [axis, time] : step.axes) mesh.exposed_s += time.exposed_s;
      best.insert(std::ranges::upper_bound(best, mesh, better), mesh);
      if (std::ssize(best) > options_.most) best.pop_back();
    }
  }

  void report() {
    if (too_large_ > 0) {
      result_.ruled_out.push_back(
          {fmt::format("need more than {:.4g} GB a rank", options_.memory_limit_gb), too_large_,
           fmt::format("the least takes {}: {}", human_bytes(smallest_->memory_bytes), smallest_->settings(free_))});
    }
    auto told = static_cast<std::int64_t>(result_.best.size());
    if (auto slower = simulated_ - told; slower > 0) {
      result_.ruled_out.push_back({fmt::format("are slower than the {} best", told), slower, ""});
    }
    if (auto hopeless = static_cast<std::int64_t>(fitting_.size()) - simulated_; hopeless > 0) {
      result_.ruled_out.push_back({fmt::format("compute for longer than the {} best take in all", told), hopeless, ""});
    }
  }

  const Config& config_;
  const SearchOptions& options_;
  const Hardware& hardware_;
  SearchKeys free_;
  std::map<int, Plan> plans_;  ///< by expert ranks
  std::vector<FoundMesh> fitting_;
  std::optional<FoundMesh> smallest_;
  std::int64_t too_large_ = 0, simulated_ = 0;
  SearchResult result_;
};

}  // namespace

std::string FoundMesh::settings(const SearchKeys& free) const {
  std::string text;
  auto add = [&](const char* key, const auto& value) {
    text += fmt::format("{}--set {}={}", text.empty() ? "" : " ", key, value);
  };
  if (free.mesh) {
    add("parallel.dp_outer", dp_outer);
    add("parallel.dp_shard", dp_shard);
  }
  if (free.strategy) add("parallel.strategy", to_string(strategy));
  if (free.expert) add("parallel.expert", expert);
  if (free.recompute) add("train.activation_checkpoint", recompute ? "full" : "none");
  if (free.micro_batch) add("train.micro_batch_size", micro_batch);
  return text;
}

std::vector<std::string> neutral_overrides(const std::vector<std::string>& overrides, SearchKeys& free) {
  auto given = [&](const std::string& key) {
    return std::ranges::any_of(overrides, [&](auto& override) { return override.starts_with(key + "="); });
  };
  free.mesh = !given("parallel.dp_outer") && !given("parallel.dp_shard");
  free.strategy = !given("parallel.strategy");
  free.expert = !given("parallel.expert");
  free.recompute = !given("train.activation_checkpoint");
  free.micro_batch = !given("train.micro_batch_size");
  auto all = overrides;
  if (free.mesh) all.insert(all.end(), {"parallel.dp_outer=1", "parallel.dp_shard=auto"});
  if (free.expert) all.push_back("parallel.expert=1");
  if (free.micro_batch) all.push_back("train.micro_batch_size=1");
  return all;
}

SearchResult search_meshes(const Config& config, const SearchOptions& options, const Hardware& hardware) {
  return Search(config, options, hardware).run();
}

}  // namespace meshard
