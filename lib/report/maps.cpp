#include "report/maps.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace meshard {

namespace {

using MapJson = nlohmann::json;

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

/// One line's values of one layer.
struct LayerSample {
  std::int64_t layer = -1;
  std::vector<double> load, bias;
  double max_vio = kNoValue;
  bool fits(const LayerSample& other) const {
    return layer == other.layer && load.size() == other.load.size() && bias.size() == other.bias.size();
  }
};

struct LineSample {
  std::int64_t step = 0;
  std::vector<LayerSample> layers;
  bool fits(const LineSample& other) const {
    return std::ranges::equal(layers, other.layers, [](auto& a, auto& b) { return a.fits(b); });
  }
};

double number_or_none(const MapJson& value) {
  return value.is_number() ? value.get<double>() : kNoValue;
}

std::vector<double> numbers_at(const MapJson& layer, const char* key) {
  std::vector<double> numbers;
  if (!layer.contains(key) || !layer[key].is_array()) return numbers;
  for (auto& value : layer[key]) numbers.push_back(number_or_none(value));
  return numbers;
}

LayerSample layer_sample(const MapJson& json) {
  LayerSample sample;
  if (!json.is_object() || !json.contains("layer") || !json["layer"].is_number_integer()) return sample;
  sample.layer = json["layer"];
  if (json.contains("max_vio")) sample.max_vio = number_or_none(json["max_vio"]);
  sample.bias = numbers_at(json, "bias");
  sample.load = numbers_at(json, "counts");
  double total = 0.0;
  for (auto count : sample.load) total += count;
  for (auto& count : sample.load) count *= total > 0.0 ? static_cast<double>(sample.load.size()) / total : 0.0;
  return sample;
}

LineSample sample_at(std::ifstream& file, std::int64_t offset) {
  std::string text;
  file.seekg(offset);
  std::getline(file, text);
  auto json = read_json_if_sound<MapJson>(text).value_or(MapJson());
  LineSample sample;
  if (!json.is_object() || !json.contains("moe") || !json["moe"].is_object()) return sample;
  if (!json.contains("step") || !json["step"].is_number_integer()) return sample;
  sample.step = json["step"];
  if (!json["moe"].contains("layers")) return sample;
  for (auto& layer : json["moe"]["layers"]) sample.layers.push_back(layer_sample(layer));
  return sample;
}

/// values[row of `rows`, sample]. Level 0 is of what `is_special`; the others lie evenly from the least to the
/// greatest.
template <typename Value, typename Special>
HeatMap heat_map(std::size_t rows, const std::vector<LineSample>& samples, Value value, Special is_special) {
  HeatMap map{.low = std::numeric_limits<double>::infinity(), .high = -std::numeric_limits<double>::infinity()};
  for (std::size_t row = 0; row < rows; ++row) {
    for (auto& sample : samples) {
      double x = value(sample, row);
      if (is_special(x)) continue;
      map.low = std::min(map.low, x);
      map.high = std::max(map.high, x);
    }
  }
  auto range = map.high - map.low;
  for (std::size_t row = 0; row < rows; ++row) {
    for (auto& sample : samples) {
      double x = value(sample, row);
      auto level = range > 0.0 ? std::lround(254.0 * (x - map.low) / range) : 0;
      map.levels.push_back(static_cast<std::uint8_t>(is_special(x) ? 0 : 1 + level));
    }
  }
  if (!(map.low <= map.high)) map.low = map.high = 0.0;
  return map;
}

bool is_no_number(double value) {
  return !std::isfinite(value);
}

}  // namespace

std::size_t cells_per_step(const std::filesystem::path& metrics, std::span<const std::int64_t> line_offsets) {
  if (line_offsets.empty()) return 0;
  std::ifstream file(metrics, std::ios::binary);
  std::size_t cells = 0;
  for (auto& layer : sample_at(file, line_offsets.back()).layers) cells += layer.load.size() + layer.bias.size() + 1;
  return cells;
}

ExpertMaps read_expert_maps(const std::filesystem::path& metrics, std::span<const std::int64_t> line_offsets,
                            std::size_t columns) {
  std::ifstream file(metrics, std::ios::binary);
  columns = std::min(columns, line_offsets.size());
  std::vector<LineSample> samples;
  for (std::size_t column = 1; column <= columns; ++column) {
    samples.push_back(sample_at(file, line_offsets[column * line_offsets.size() / columns - 1]));
  }
  ExpertMaps maps;
  if (samples.empty() || samples.back().layers.empty()) return maps;
  std::erase_if(samples, [last = samples.back()](auto& sample) { return !sample.fits(last); });
  for (auto& sample : samples) maps.steps.push_back(sample.step);

  auto& layers = samples.back().layers;
  maps.max_vio = heat_map(
      layers.size(), samples, [](auto& line, auto row) { return line.layers[row].max_vio; }, is_no_number);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto load = [i](auto& line, auto row) { return line.layers[i].load[row]; };
    auto bias = [i](auto& line, auto row) { return line.layers[i].bias[row]; };
    maps.layers.push_back({layers[i].layer,
                           heat_map(layers[i].load.size(), samples, load, [](double value) { return !(value > 0.0); }),
                           heat_map(layers[i].bias.size(), samples, bias, is_no_number)});
  }
  return maps;
}

}  // namespace meshard
