#include "runs/metrics.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/json_text.h"

namespace meshard {

namespace {

/// Whether it was a line of a run.
bool take_line(RunMetrics& run, const std::string& text) {
  auto parsed = read_json_if_sound<RunMetrics::Json>(text);
  if (!parsed || !parsed->is_object()) return false;
  auto& line = *parsed;
  if (line.contains("header") && line["header"].is_object()) {
    run.headers.push_back(std::move(line["header"]));
  } else if (line.contains("end")) {
    run.end = std::move(line["end"]);
  } else if (line.contains("step") && line["step"].is_number_integer()) {
    auto step = line["step"].get<std::int64_t>();
    (line.contains("eval_loss") ? run.evals : run.steps).insert_or_assign(step, std::move(line));
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string RunMetrics::fault() const {
  for (auto header = headers.rbegin(); header != headers.rend(); ++header) {
    if (header->contains("fault") && header->at("fault").is_string()) return header->at("fault").get<std::string>();
  }
  return "";
}

RunMetrics read_run(const std::filesystem::path& folder) {
  auto path = folder / "metrics.jsonl";
  std::error_code failed;
  if (std::filesystem::exists(path, failed) && !std::filesystem::is_regular_file(path, failed)) {
    throw IoError(
        fmt::format("{} is no regular file; expected a run's folder, such as runs/quickstart", path.string()));
  }
  std::ifstream file(path);
  if (!file) {
    throw IoError(fmt::format("cannot read {}: {}; expected a run's folder, such as runs/quickstart", path.string(),
                              std::strerror(errno)));
  }
  RunMetrics run{.folder = folder};
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (take_line(run, text)) continue;
    run.torn = file.eof();
    if (run.torn) break;
    throw IoError(
        fmt::format("{}:{}: neither a header, a step, an evaluation nor an end: `{}`; the file is damaged, "
                    "remove the line or compare an earlier copy",
                    path.string(), number, text.substr(0, 60)));
  }
  if (file.bad()) throw IoError(fmt::format("cannot read {}:{}: no memory, or the disk", path.string(), number + 1));
  if (run.steps.empty()) {
    throw IoError(fmt::format("{}:{}: no step in it; the run ended before its first logged step (logging.interval)",
                              path.string(), number));
  }
  return run;
}

std::string mesh_of_header(const RunMetrics::Json& header) {
  auto number = [](const RunMetrics::Json& object, const char* key) -> std::optional<std::int64_t> {
    auto found = object.find(key);
    return found != object.end() && found->is_number_integer() ? std::optional(found->get<std::int64_t>())
                                                               : std::nullopt;
  };
  auto ranks = header.is_object() ? number(header, "ranks") : std::nullopt;
  if (!ranks) return "";
  auto text = fmt::format("{} rank{}", *ranks, *ranks == 1 ? "" : "s");
  auto mesh = header.find("mesh");
  if (mesh == header.end() || !mesh->is_object()) return text;
  auto strategy = header.find("strategy");
  return text + fmt::format(" = dp_outer {} x dp_shard {}, expert {}, {}", number(*mesh, "dp_outer").value_or(1),
                            number(*mesh, "dp_shard").value_or(1), number(*mesh, "expert").value_or(1),
                            strategy != header.end() && strategy->is_string() ? strategy->get<std::string>()
                                                                              : "no strategy");
}

}  // namespace meshard
