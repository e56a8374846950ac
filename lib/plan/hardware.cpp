#include "plan/hardware.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "config/values.h"

namespace meshard {

namespace {

/// One key: where it stands, how it is read and written. A key of an optional section makes the section.
struct HardwareKey {
  std::string section, name;
  bool required = true;
  std::function<Problem(Hardware&, const YamlNode&)> read;
  std::function<std::optional<std::string>(const Hardware&)> write;
};

const Limits kPositive{.low = 0.0, .low_open = true}, kNotNegative{.low = 0.0}, kCount{.low = 1.0},
    kShare{.low = 0.0, .high = 1.0, .low_open = true};

template <class Field>
HardwareKey key(std::string section, std::string name, const Limits& limits, Field field) {
  return {std::move(section), std::move(name), true,
          [=](Hardware& hardware, const YamlNode& node) { return read_value(node, limits, field(hardware)); },
          [=](const Hardware& hardware) -> std::optional<std::string> { return write_value(field(hardware), limits); }};
}

/// `member`: a field of the struct in the optional `part` of Hardware.
template <class Part, class Value>
HardwareKey key_in(std::optional<Part> Hardware::*part, std::string section, std::string name, const Limits& limits,
                   Value Part::*member) {
  return {std::move(section), std::move(name), true,
          [=](Hardware& hardware, const YamlNode& node) {
            auto& made = hardware.*part;
            if (!made) made.emplace();
            return read_value(node, limits, (*made).*member);
          },
          [=](const Hardware& hardware) -> std::optional<std::string> {
            auto& there = hardware.*part;
            return there ? std::optional(write_value((*there).*member, limits)) : std::nullopt;
          }};
}

HardwareKey schema() {
  return {"", "schema", true,
          [](Hardware&, const YamlNode& node) -> Problem {
            std::int64_t version = 0;
            return read_value(node, Limits{.low = 1, .high = 1}, version);
          },
          [](const Hardware&) -> std::optional<std::string> { return "1"; }};
}

HardwareKey peak() {
  auto row = key("rank", "peak_tflops", kPositive, [](auto& h) -> auto& { return h.peak_tflops; });
  row.required = false;
  row.write = [](const Hardware& h) {
    return h.peak_tflops ? std::optional(write_value(*h.peak_tflops, kPositive)) : std::nullopt;
  };
  return row;
}

const std::vector<HardwareKey>& hardware_keys() {
  static const std::vector<HardwareKey> keys = {
      schema(),
      key("", "name", {}, [](auto& h) -> auto& { return h.name; }),
      key("", "ranks_per_node", kCount, [](auto& h) -> auto& { return h.ranks_per_node; }),
      key("rank", "fp32_tflops", kPositive, [](auto& h) -> auto& { return h.fp32_tflops; }),
      key("rank", "bf16_tflops", kPositive, [](auto& h) -> auto& { return h.bf16_tflops; }),
      peak(),
      key("rank", "attention_share", kShare, [](auto& h) -> auto& { return h.attention_share; }),
      key("rank", "memory_gb_per_s", kPositive, [](auto& h) -> auto& { return h.memory_gb_per_s; }),
      key("rank", "memory_gb", kPositive, [](auto& h) -> auto& { return h.memory_gb; }),
      key("rank", "kernel_us", kNotNegative, [](auto& h) -> auto& { return h.kernel_us; }),
      key("rank", "collective_us", kNotNegative, [](auto& h) -> auto& { return h.collective_us; }),
      key_in(&Hardware::node, "node", "gb_per_s", kPositive, &Link::gb_per_s),
      key_in(&Hardware::node, "node", "latency_us", kNotNegative, &Link::latency_us),
      key_in(&Hardware::network, "network", "gb_per_s", kPositive, &Link::gb_per_s),
      key_in(&Hardware::network, "network", "latency_us", kNotNegative, &Link::latency_us),
      key_in(&Hardware::core, "core", "gather_gb_per_s", kPositive, &CoreRates::gather_gb_per_s),
      key_in(&Hardware::core, "core", "reduce_gb_per_s", kPositive, &CoreRates::reduce_gb_per_s),
  };
  return keys;
}

bool is_optional_section(const std::string& section) {
  return section == "node" || section == "network" || section == "core";
}

std::string path_of(const HardwareKey& row) {
  return row.section.empty() ? row.name : row.section + "." + row.name;
}

void refuse_unknown(const YamlNode& level, const std::string& section, Report& report) {
  std::vector<std::string_view> known;
  for (auto& row : hardware_keys()) {
    auto& name = row.section == section ? row.name : row.section;
    if ((section.empty() || row.section == section) && std::ranges::find(known, name) == known.end()) {
      known.push_back(name);
    }
  }
  for (auto& child : level.children) {
    if (std::ranges::find(known, child.key) != known.end()) continue;
    auto hint = nearest_word(child.key, known);
    report.add(child.key_place, section.empty() ? child.key : section + "." + child.key,
               hint ? fmt::format("unknown key; did you mean `{}`?", *hint)
                    : fmt::format("unknown key; expected {}", fmt::join(known, ", ")));
  }
}

/// The map of a section, or nullptr: not written, or no map, which is reported.
YamlNode* section_node(YamlNode& root, const std::string& section, Report& report) {
  if (section.empty()) return &root;
  auto* node = root.find(section);
  if (node == nullptr || node->kind == YamlNode::Kind::Map) return node;
  if (report.clean({section})) report.add(node->place, section, "is a section; expected keys below it, `key: value`");
  return nullptr;
}

void check_speeds(const Hardware& hardware, const YamlNode& root, Report& report) {
  if (!hardware.network || hardware.node || hardware.ranks_per_node == 1) return;
  report.add(root.place, "node",
             "missing; expected gb_per_s and latency_us of ranks of one node, as there are several");
}

}  // namespace

Hardware parse_hardware(const std::string& text, const std::string& name) {
  Report report(name);
  auto root = parse_yaml(text, report);
  if (root.kind != YamlNode::Kind::Map) {
    if (report.clean({""})) report.add(root.place, "", "expected `schema: 1` and what hardware there is");
    report.throw_if_any();
  }
  Hardware hardware;
  hardware.peak_tflops.reset();
  hardware.node.reset();
  hardware.network.reset();
  std::vector<std::string> checked;
  for (auto& row : hardware_keys()) {
    auto* section = section_node(root, row.section, report);
    if (section != nullptr && std::ranges::find(checked, row.section) == checked.end()) {
      checked.push_back(row.section);
      refuse_unknown(*section, row.section, report);
    }
    auto* node = section != nullptr ? section->find(row.name) : nullptr;
    if (node != nullptr) {
      if (auto problem = row.read(hardware, *node)) report.add(node->place, path_of(row), *problem);
    } else if (row.required && report.clean({path_of(row)}) &&
               (section != nullptr || !is_optional_section(row.section))) {
      report.add(section != nullptr ? section->place : root.place, path_of(row), "missing; expected a value");
    }
  }
  check_speeds(hardware, root, report);
  report.throw_if_any();
  return hardware;
}

Hardware load_hardware(const std::filesystem::path& file) {
  return parse_hardware(read_yaml_file(file), file.string());
}

std::string hardware_yaml(const Hardware& hardware, const std::string& remark) {
  std::string yaml, open;
  std::istringstream lines(remark);
  for (std::string line; std::getline(lines, line);) yaml += "# " + line + "\n";
  for (auto& row : hardware_keys()) {
    auto value = row.write(hardware);
    if (!value) continue;
    if (row.section != open) yaml += row.section + ":\n";
    open = row.section;
    yaml += (open.empty() ? "" : "  ") + row.name + ": " + *value + "\n";
  }
  return yaml;
}

double three_digits(double value) {
  return std::stod(fmt::format("{:.3g}", value));
}

}  // namespace meshard
