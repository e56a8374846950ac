#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "base/json_text.h"
#include "report/page.h"
#include "report/report.h"
#include "report/settings.h"

namespace meshard {

namespace {

using PageJson = nlohmann::ordered_json;

/// Text of any encoding, and nothing that could end the element that it stands in.
std::string page_text(const PageJson& json) {
  std::string safe;
  for (char c : json_text(json)) {
    c == '<' ? void(safe += "\\u003c") : safe.push_back(c);
  }
  return safe;
}

void add_number(std::string& text, double value) {
  std::isfinite(value) ? void(fmt::format_to(std::back_inserter(text), "{:.5g}", value)) : void(text += "null");
}

std::string number_list(std::span<const double> values) {
  std::string text = "[";
  for (auto value : values) {
    if (text.size() > 1) text += ',';
    add_number(text, value);
  }
  return text + "]";
}

std::string step_list(std::span<const std::int64_t> steps) {
  return fmt::format("[{}]", fmt::join(steps, ","));
}

std::string curve_text(const ThinCurve& curve) {
  if (curve.low.empty()) return fmt::format("[{}]", number_list(curve.mean));
  return fmt::format("[{},{},{}]", number_list(curve.mean), number_list(curve.low), number_list(curve.high));
}

std::string base64(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve(4 * bytes.size() / 3 + 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    auto byte = [&](std::size_t k) { return i + k < bytes.size() ? bytes[i + k] : 0u; };
    auto word = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (std::size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : kDigits[word >> (18 - 6 * k) & 63];
  }
  return text;
}

std::string map_text(const HeatMap& map) {
  std::string text = "[";
  add_number(text, map.low);
  text += ",";
  add_number(text, map.high);
  return text + ",\"" + base64(map.levels) + "\"]";
}

std::string maps_text(const ExpertMaps& maps) {
  std::string text =
      fmt::format("{{\"steps\":{},\"max_vio\":{},\"layers\":[", step_list(maps.steps), map_text(maps.max_vio));
  for (auto& layer : maps.layers) {
    text += fmt::format("{}{{\"layer\":{},\"load\":{},\"bias\":{}}}", &layer == &maps.layers[0] ? "" : ",", layer.layer,
                        map_text(layer.load), map_text(layer.bias));
  }
  return text + "]}";
}

PageJson optional_json(std::optional<double> value) {
  return value && std::isfinite(*value) ? PageJson(*value) : PageJson(nullptr);
}

PageJson facts_json(const RunReport& run) {
  auto& state = run.state;
  auto& numbers = run.numbers;
  PageJson settings = PageJson::object();
  for (auto& [key, value] : run.settings) settings[key] = value;
  return {{"name", run.name},
          {"folder", run.folder.string()},
          {"state", run.state_name},
          {"exit", state.exit ? PageJson(*state.exit) : PageJson(nullptr)},
          {"reason", state.reason},
          {"step", state.step},
          {"steps", run.facts.steps},
          {"starts", state.starts},
          {"best", optional_json(numbers.best_eval_loss)},
          {"best_step", numbers.best_eval_step},
          {"last_eval", optional_json(numbers.final_eval_loss)},
          {"bits_per_byte", optional_json(numbers.bits_per_byte)},
          {"loss", optional_json(numbers.final_loss)},
          {"tokens_per_s", optional_json(numbers.tokens_per_s)},
          {"memory", optional_json(numbers.mem_peak_bytes)},
          {"seconds", optional_json(numbers.step_time_s)},
          {"step_ms", optional_json(numbers.step_ms)},
          {"data_ms", optional_json(numbers.data_ms)},
          {"comm_ms", optional_json(numbers.comm_ms)},
          {"comm_busy_ms", optional_json(numbers.comm_busy_ms)},
          {"stall_ms", optional_json(numbers.stall_ms)},
          {"mesh", run.facts.mesh},
          {"hosts", run.facts.hosts},
          {"version", run.facts.version},
          {"parameters", optional_json(run.facts.parameters)},
          {"active_parameters", optional_json(run.facts.active_parameters)},
          {"settings", settings},
          {"remarks", run.remarks}};
}

/// The facts, then what is too long for a tree.
std::string run_text_of_page(const RunReport& run) {
  auto text = page_text(facts_json(run));
  text.pop_back();
  text += fmt::format(",\"x\":{},\"curves\":{{", step_list(run.steps));
  for (auto& curve : run.curves) {
    text += fmt::format("{}\"{}\":{}", &curve == &run.curves[0] ? "" : ",", curve.name, curve_text(curve));
  }
  text += fmt::format("}},\"eval_x\":{},\"eval\":{}", step_list(run.eval_steps), curve_text(run.eval_loss));
  if (!run.maps.layers.empty()) text += ",\"maps\":" + maps_text(run.maps);
  return text + "}";
}

}  // namespace

std::string report_html(const RunsReport& report, const std::string& made) {
  PageJson settings = report.settings, titles = setting_titles(report.settings);
  auto data = fmt::format("{{\"made\":{},\"settings\":{},\"setting_titles\":{},\"without_maps\":{},\"runs\":[",
                          page_text(made), page_text(settings), page_text(titles), report.runs_without_maps);
  for (auto& run : report.runs) data += (&run == &report.runs[0] ? "\n" : ",\n") + run_text_of_page(run);
  data += "\n]}";
  std::string page(report_page());
  return page.replace(page.find(kPageData), kPageData.size(), data);
}

}  // namespace meshard
