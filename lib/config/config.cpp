#include "config/config.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "config/checks.h"
#include "config/hugging_face.h"
#include "config/keys.h"
#include "config/overrides.h"

namespace meshard {
namespace {

using Written = std::map<std::string, YamlNode>;

// Gathers the keys that were written below `section`; what is no key goes into the report.
void collect(const YamlNode& section, const std::string& path, Written& written, Report& report) {
  for (auto& child : section.children) {
    auto child_path = path.empty() ? child.key : path + "." + child.key;
    const bool key = find_key(child_path) != nullptr, inner = is_section(child_path);
    if (!key && !inner) {
      // Looking for what was meant costs more than all the rest.
      report.add(child.key_place, child_path, report.full() ? "unknown key" : unknown_key(child_path));
      continue;
    }
    // A section stands where its name does: what it lacks is reported there.
    report.note(child_path, inner ? child.key_place : child.place);
    if (key) written.emplace(child_path, child);
    if (!inner) continue;
    if (child.kind == YamlNode::Kind::Scalar || child.kind == YamlNode::Kind::List) {
      report.add(child.place, child_path, "is a section; expected keys below it, like `key: value`");
    } else {
      collect(child, child_path, written, report);
    }
  }
}

// Whether the keys that were not written are known to be absent, or to have their defaults.
bool add_hugging_face(YamlNode& root, Report& report) {
  auto* model = root.find("model");
  auto* from = model == nullptr ? nullptr : model->find("from_hf");
  if (from == nullptr) return true;
  std::string file;
  if (read_value(*from, {}, file)) return false;  // reported when the key itself is read
  auto section = read_hugging_face(file, "model.from_hf", from->place, report);
  if (section) merge_missing(*model, *section, 1);
  return section.has_value();
}

// Reads the keys whose path begins with `begin`.
void read_keys(Config& config, const std::string& begin, const Written& written, bool model_known, Report& report) {
  for (auto& row : key_table()) {
    auto& path = row.doc.key;
    if (!path.starts_with(begin)) continue;
    if (path.starts_with("model.moe.") && !config.model.moe) continue;
    if (auto found = written.find(path); found != written.end()) {
      if (!report.clean({path})) continue;
      if (auto problem = row.read(config, found->second)) report.add(found->second.place, path, *problem);
    } else if (!model_known && path.starts_with("model.")) {
      report.spoil(path);
    } else if (row.required && report.clean({path})) {
      report.at(path, fmt::format("missing; expected {}{}{}: {}", row.doc.type, row.doc.range.empty() ? "" : " ",
                                  row.doc.range, row.doc.text));
    }
  }
}

void note_data_files(Config& config, const Written& written, const Report& report) {
  auto found = written.find("data.files");
  if (found == written.end() || !report.clean({"data.files"})) return;
  for (auto& item : found->second.children) {
    config.data.files_written_at.before.push_back(report.before_key(item.place));
  }
}

}  // namespace

Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides,
                    int ranks) {
  if (ranks < 1) throw ArgumentError(fmt::format("a config is for at least 1 rank, not {}", ranks));
  Report report(name);
  auto root = parse_yaml(text, report);
  if (root.kind != YamlNode::Kind::Map) {
    const bool empty = root.kind == YamlNode::Kind::Null && report.clean({""});
    if (empty) report.add(root.place, "", "the file is empty; expected `schema: 1` and sections of keys");
    if (root.kind != YamlNode::Kind::Null) report.add(root.place, "", "expected `schema: 1` and sections of keys");
    report.throw_if_any();
  }
  report.note("", root.place);
  for (auto& assignment : overrides) apply_override(root, assignment, report);
  const bool model_known = add_hugging_face(root, report);
  Written written;
  collect(root, "", written, report);
  Config config;
  read_keys(config, "", written, model_known, report);
  note_data_files(config, written, report);
  check_model(config, report);
  check_run(config, ranks, report);
  report.throw_if_any();
  return config;
}

Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides, int ranks) {
  return parse_config(read_yaml_file(file), file.string(), overrides, ranks);
}

std::string resolved_yaml(const Config& config) {
  std::string yaml;
  std::vector<std::string> open;  // sections around the last line
  for (auto& row : key_table()) {
    auto value = row.write(config);
    if (!value) continue;
    std::vector<std::string> parts;
    std::istringstream path(row.doc.key);
    for (std::string part; std::getline(path, part, '.');) parts.push_back(part);
    for (std::size_t depth = 0; depth < parts.size(); ++depth) {
      const bool last = depth + 1 == parts.size();
      if (!last && depth < open.size() && open[depth] == parts[depth]) continue;
      open.resize(std::min(open.size(), depth));
      yaml += std::string(2 * depth, ' ') + parts[depth] + (last ? ": " + *value : ":") + "\n";
      if (!last) open.push_back(parts[depth]);
    }
  }
  return yaml;
}

std::vector<ConfigChange> config_changes(const Config& from, const Config& to) {
  static const std::set<std::string_view> steers_training = {"model.from_hf",
                                                             "model.initializer_range",
                                                             "model.max_position_embeddings",
                                                             "model.moe.expert_bias.update_rate",
                                                             "model.moe.expert_bias.recenter",
                                                             "model.moe.expert_bias.initial",
                                                             "model.moe.aux_loss.type",
                                                             "model.moe.aux_loss.coeff",
                                                             "model.moe.z_loss_coeff",
                                                             "model.moe.capacity_factor"};
  std::vector<ConfigChange> changes;
  for (auto& row : key_table()) {
    if (!row.write) continue;
    auto a = row.write(from), b = row.write(to);
    if (a == b) continue;
    auto& key = row.doc.key;
    if (key == "run.name" || key == "run.dir") continue;  // where a run lies: its folder may have moved
    changes.push_back(
        {key, a.value_or("absent"), b.value_or("absent"), key.starts_with("model.") && !steers_training.contains(key)});
  }
  return changes;
}

std::vector<ConfigChange> changes_from_hugging_face(const std::filesystem::path& file, const Config& config) {
  Report report(file.string());
  const Place whole_file{.line = 0};
  report.note("", whole_file);
  auto theirs = config;
  theirs.model = {};
  if (auto section = read_hugging_face(file.string(), "", whole_file, report)) {
    section->key = "model";
    YamlNode root;
    root.kind = YamlNode::Kind::Map;
    root.children.push_back(std::move(*section));
    Written written;
    collect(root, "", written, report);
    read_keys(theirs, "model.", written, true, report);
    check_model(theirs, report);
  }
  report.throw_if_any();
  if (theirs.model.moe && config.model.moe) {
    theirs.model.moe->expert_bias = config.model.moe->expert_bias;
    theirs.model.moe->aux_loss = config.model.moe->aux_loss;
    theirs.model.moe->z_loss_coeff = config.model.moe->z_loss_coeff;
  }
  return config_changes(theirs, config);
}

const std::vector<KeyDoc>& config_keys() {
  static auto docs = [] {
    std::vector<KeyDoc> all;
    for (auto& row : key_table()) all.push_back(row.doc);
    return all;
  }();
  return docs;
}

std::string_view to_string(Dtype dtype) {
  return word_of(dtype);
}

}  // namespace meshard
