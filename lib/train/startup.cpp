#include "train/startup.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "mesh/mesh_text.h"
#include "model/options.h"
#include "nn/device/numerics.h"
#include "train/metrics.h"
#include "train/run.h"

namespace meshard {

namespace {

// Ranks of one host in one line: "0-3 node1 cpu".
std::string rank_lines(const std::vector<RankPlace>& places) {
  std::string text;
  for (std::size_t first = 0; first < places.size();) {
    auto last = first;
    bool device = places[first].device != "cpu";
    while (!device && last + 1 < places.size() && places[last + 1].host == places[first].host) ++last;
    auto ranks = first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    text += fmt::format("  rank {:<8} {} {}\n", ranks, places[first].host, places[first].device);
    first = last + 1;
  }
  return text;
}

std::string attention_line(const Config& config, at::Device device) {
  auto& model = config.model;
  AttentionSizes sizes{config.train.micro_batch_size, config.train.seq_len, model.num_attention_heads,
                       model.num_key_value_heads, model.head_dim};
  return fmt::format("attention    {}{}\n", attention_backend(sizes, scalar_type(config.precision.param), device),
                     config.run.deterministic ? ", deterministic" : "");
}

}  // namespace

std::string startup_text(World& world, const StartupFacts& facts) {
  auto& plan = facts.plan;
  auto& mesh = plan.mesh;
  auto& bytes = plan.bytes;
  auto text = fmt::format("{}\n", version_text());
  text +=
      fmt::format("mesh         {} rank{} = {}, {}; {} threads a rank\n", mesh.ranks(), mesh.ranks() == 1 ? "" : "s",
                  dense_text(mesh), to_string(plan.config.parallel.strategy), at::get_num_threads());
  text += rank_lines(world.places());
  if (plan.config.model.moe) text += fmt::format("experts      {}\n", expert_text(mesh));
  text += fmt::format("model        {} parameters{} in {} units, hash {:016x}\n", plan.parameters,
                      plan.config.model.moe ? fmt::format(" ({} active)", plan.active_parameters) : "",
                      plan.units.size(), facts.model_hash);
  if (auto device = world.device(); !device.is_cpu()) text += attention_line(plan.config, device);
  text += fmt::format("data         {}\n", facts.corpus);
  text += fmt::format(
      "per rank     main weights {}, parameters {}, gradients {}, optimizer {}, unsharded {}, activations {}; total "
      "{}\n",
      human_bytes(bytes.main_weights), human_bytes(bytes.parameters), human_bytes(bytes.main_grads),
      human_bytes(bytes.optimizer), human_bytes(bytes.unsharded_peak), human_bytes(bytes.activations),
      human_bytes(bytes.total()));
  return text + "config\n" + facts.resolved_config;
}

using Json = nlohmann::ordered_json;

Json startup_json(World& world, const StartupFacts& facts) {
  auto ranks = nlohmann::ordered_json::array();
  for (auto& place : world.places()) ranks.push_back({{"host", place.host}, {"device", place.device}});
  auto& mesh = facts.plan.mesh;
  Json header{{"versions", version_text()},
              {"ranks", mesh.ranks()},
              {"mesh", mesh_json(mesh)},
              {"strategy", to_string(facts.plan.config.parallel.strategy)},
              {"places", std::move(ranks)},
              {"threads", at::get_num_threads()},
              {"parameters", facts.plan.parameters},
              {"active_parameters", facts.plan.active_parameters},
              {"config_hash", fmt::format("{:016x}", hash_text(facts.resolved_config))},
              {"model_hash", fmt::format("{:016x}", facts.model_hash)},
              {"steps_done", facts.steps_done},
              {"startup_comm_bytes", traffic_json(facts.start_traffic)}};
  auto& fault = facts.plan.config.regression.fault;
  if (fault != "none") header["fault"] = fault;
  if (auto& file = facts.plan.config.regression.replay_routing) header["replay_routing"] = *file;
  return header;
}

}  // namespace meshard
