#include "train/metrics.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "comm/world/together.h"

namespace meshard {

using Json = nlohmann::ordered_json;

namespace {

std::string clock_text(double seconds) {
  auto whole = static_cast<long>(seconds);
  auto minutes = fmt::format("{}:{:02}", whole / 60 % 60, whole % 60);
  return whole < 3600 ? minutes : fmt::format("{}:{:0>5}", whole / 3600, minutes);
}

// Without the sign that some NaNs have.
double plain_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

std::string norm_text(double norm) {
  auto plain = plain_nan(norm);
  return plain >= 1e6 ? fmt::format("{:.2e}", plain) : fmt::format("{:.2f}", plain);
}

std::string rate_text(double tokens_per_s) {
  return tokens_per_s < 1e4 ? fmt::format("{:.0f}", tokens_per_s) : fmt::format("{:.1f}k", tokens_per_s / 1e3);
}

}  // namespace

std::vector<Spread> spreads_over_ranks(World& world, const std::vector<double>& values) {
  auto count = std::ssize(values);
  auto mine = at::empty({count}, at::kDouble);
  std::ranges::copy(values, mine.mutable_data_ptr<double>());
  auto all = at::empty({world.size() * count}, at::kDouble);
  world.control().all_gather(all, mine, {"metrics", true}).wait();
  std::vector<Spread> spreads;
  for (std::int64_t i = 0; i < count; ++i) {
    auto of_ranks = all.view({world.size(), count}).select(1, i).contiguous();
    auto* begin = of_ranks.mutable_data_ptr<double>();
    std::sort(begin, begin + world.size());
    auto last = world.size() - 1;
    spreads.push_back({begin[0], (begin[last / 2] + begin[(last + 1) / 2]) / 2, begin[last]});
  }
  return spreads;
}

std::int64_t peak_memory_bytes() {
  std::array<char, 4096> status;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/status", "r"), std::fclose);
  if (!file) return 0;
  std::string_view text(status.data(), std::fread(status.data(), 1, status.size(), file.get()));
  constexpr std::string_view kName = "VmHWM:";
  auto at = text.find(kName);
  return at == std::string_view::npos ? 0 : std::atoll(text.data() + at + kName.size()) * 1024;
}

Json traffic_json(const Ledger& ledger) {
  auto json = Json::object();
  for (auto& [key, traffic] : ledger.entries()) {
    json[key.first][key.second] = {{"count", traffic.count}, {"bytes", traffic.bytes}};
  }
  return json;
}

Metrics::Metrics(World& world, Log& log, const Config& config, const std::filesystem::path& file, bool byte_data,
                 double flops_per_token)
    : world_(world), log_(log), config_(config), byte_data_(byte_data), flops_per_token_(flops_per_token) {
  if (world.rank() == 0) file_.emplace(file);
}

void Metrics::append(const Json& line) {
  if (file_) file_->append(line);
}

void Metrics::append_together(const Json& line) {
  together(world_, [&] { append(line); });
}

void Metrics::header(const Json& header) {
  append_together({{"header", header}});
}

void Metrics::step(const StepRecord& record, const Ledger& traffic, bool progress) {
  // Before the ranks wait for each other: that is no part of the step.
  auto busy = std::min(traffic.busy(steady_seconds()), record.seconds);
  auto spreads = spreads_over_ranks(world_, {record.seconds * 1e3, static_cast<double>(peak_memory_bytes())});
  auto &ms = spreads[0], &memory = spreads[1];
  auto tokens_per_step = static_cast<double>(config_.train.global_batch_size * config_.train.seq_len);
  auto tokens_per_s = tokens_per_step / (ms.max / 1e3);
  auto tflops = tokens_per_s * flops_per_token_ / world_.size() / 1e12;

  Json line{{"step", record.step}, {"tokens", record.tokens}, {"loss", record.loss}};
  if (byte_data_) line["bits_per_byte"] = record.loss / std::log(2.0);
  line["grad_norm"] = record.grad_norm;
  line["lr"] = record.lr;
  line["step_ms"] = {{"min", ms.min}, {"median", ms.median}, {"max", ms.max}};
  line["tokens_per_s"] = tokens_per_s;
  line["tflops"] = tflops;
  line["mfu"] = config_.logging.peak_tflops ? Json(tflops / *config_.logging.peak_tflops) : Json(nullptr);
  line["mem_peak_bytes"] = static_cast<std::int64_t>(memory.max);
  line["data_ms"] = record.data_seconds * 1e3;
  line["comm_ms"] = traffic.exposed() * 1e3;
  line["comm_exposed_ms"] = Json::object();
  for (auto& [axis, seconds] : traffic.exposed_by_axis()) line["comm_exposed_ms"][axis] = seconds * 1e3;
  line["comm_busy_ms"] = busy * 1e3;
  line["comm_bytes"] = traffic_json(traffic);
  line["checkpoint_stall_ms"] = record.stall_seconds * 1e3;
  if (record.balance) line["moe"] = balance_json(*record.balance);
  line["nonfinite"] = record.nonfinite;
  if (record.skipped_in_a_row > 0) line["skipped_in_a_row"] = record.skipped_in_a_row;
  if (config_.regression.fault != "none") line["fault"] = config_.regression.fault;
  for (auto& [unit, norm] : record.unit_norms) line["unit_grad_norm"][unit] = norm;
  append_together(line);

  seconds_per_step_ = seconds_per_step_ == 0.0 ? ms.max / 1e3 : 0.8 * seconds_per_step_ + 0.2 * ms.max / 1e3;
  auto text = step_line(record, ms.max, tokens_per_s);
  progress ? log_.progress(text) : log_.print(text);
  if (record.skipped_in_a_row > 0) {
    log_.print(fmt::format("step {} skipped ({} in a row): not finite: {}", record.step, record.skipped_in_a_row,
                           fmt::join(record.nonfinite, ", ")));
  }
}

Json Metrics::balance_json(const StepBalance& balance) const {
  auto layers = Json::array();
  for (auto& layer : balance.layers) {
    Json line{{"layer", layer.layer},
              {"count_total", layer.count_total},
              {"max_vio", layer.max_vio},
              {"dead", layer.dead},
              {"bias_min", layer.bias_min},
              {"bias_max", layer.bias_max},
              {"bias_finite", layer.bias_finite},
              {"dropped", layer.dropped},
              {"min_gap", layer.min_gap}};
    if (config_.logging.per_layer) {
      line["counts"] = layer.counts;
      line["bias"] = layer.bias;
    }
    layers.push_back(std::move(line));
  }
  return {{"aux_loss", balance.aux_loss}, {"z_loss", balance.z_loss}, {"layers", std::move(layers)}};
}

std::string Metrics::step_line(const StepRecord& record, double step_ms, double tokens_per_s) const {
  auto bpb = byte_data_ ? fmt::format(" | bpb {:.3f}", plain_nan(record.loss) / std::log(2.0)) : "";
  std::string balance;
  if (record.balance) {
    auto worst = std::ranges::max(record.balance->layers, {}, &LayerBalance::max_vio);
    balance = fmt::format(" | max vio {:.2f}", worst.max_vio);
  }
  auto eta = clock_text(seconds_per_step_ * static_cast<double>(config_.train.steps - record.step));
  return fmt::format("step {}/{} | loss {:.4f}{} | norm {}{} | lr {:.1e} | {:.0f} ms | {} tok/s | ETA {}", record.step,
                     config_.train.steps, plain_nan(record.loss), bpb, norm_text(record.grad_norm), balance, record.lr,
                     step_ms, rate_text(tokens_per_s), eta);
}

void Metrics::evaluation(std::int64_t step, double loss) {
  Json line{{"step", step}, {"eval_loss", loss}};
  if (config_.regression.fault != "none") line["fault"] = config_.regression.fault;
  if (byte_data_) line["eval_bits_per_byte"] = loss / std::log(2.0);
  append_together(line);
  log_.print(fmt::format("eval {}/{} | loss {:.4f}{}", step, config_.train.steps, loss,
                         byte_data_ ? fmt::format(" | bpb {:.3f}", loss / std::log(2.0)) : ""));
}

void Metrics::end(int exit_code, std::int64_t step, const std::string& reason) {
  append_together({{"end", {{"exit", exit_code}, {"step", step}, {"reason", reason}}}});
}

}  // namespace meshard
