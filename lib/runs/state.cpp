#include "runs/state.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/folder_lock.h"
#include "base/json_text.h"
#include "base/memory.h"

namespace meshard {

namespace {

using namespace std::string_view_literals;

constexpr auto kHeaderLine = "{\"header\":"sv, kEndLine = "{\"end\":"sv, kStepLine = "{\"step\":"sv;

std::string text_of_file(const std::filesystem::path& path) {
  std::error_code failed;
  if (std::filesystem::exists(path, failed) && !std::filesystem::is_regular_file(path, failed)) {  // a pipe would wait
    throw IoError(fmt::format("cannot read {}: no regular file; expected the metrics of a run", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw IoError(
        fmt::format("cannot read {}: {}; expected the metrics of a run", path.string(), std::strerror(errno)));
  }
  return within_memory(path.string(), [&] {
    std::string text(std::filesystem::file_size(path), '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
    return text;
  });
}

/// Follows the lines of metrics.jsonl; what it cannot tell by a line's first word it parses.
class StateReader {
 public:
  bool ended() const { return ended_; }

  RunState state;

  /// Whether it was a line of a run.
  bool take(std::string_view line, bool whole) {
    if (whole && line.starts_with(kStepLine)) {
      auto digits = line.substr(kStepLine.size());
      if (std::from_chars(digits.data(), digits.data() + digits.size(), state.step).ec == std::errc{}) return true;
    }
    if (whole && line.starts_with(kHeaderLine)) {
      started();
      return true;
    }
    return take_parsed(line);
  }

 private:
  bool take_parsed(std::string_view line) {
    auto parsed = read_json_if_sound<nlohmann::json>(line);
    if (!parsed || !parsed->is_object()) return false;
    auto& json = *parsed;
    if (json.contains("header")) {
      started();
    } else if (json.contains("end") && json["end"].is_object()) {
      auto& end = json["end"];
      if (!end.contains("exit") || !end["exit"].is_number_integer()) return false;
      state.exit = end["exit"].get<int>();
      state.reason = end.contains("reason") && end["reason"].is_string() ? end["reason"].get<std::string>() : "";
      ended_ = true;
    } else if (json.contains("step") && json["step"].is_number_integer()) {
      state.step = json["step"].get<std::int64_t>();
    }
    return true;  // also one that a later version writes
  }

  void started() {
    ++state.starts;
    ended_ = false;
  }

  bool ended_ = false;
};

void read_lines(StateReader& reader, const std::string& text, const std::filesystem::path& path) {
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    auto end = text.find('\n', begin);
    bool whole = end != std::string::npos;
    auto line = std::string_view(text).substr(begin, whole ? end - begin : std::string::npos);
    ++number;
    if (!reader.take(line, whole) && whole) {
      throw IoError(fmt::format("{}:{}: no line of a run: `{}`; the file is damaged, or none of Meshard's",
                                path.string(), number, line.substr(0, 60)));
    }
    begin += line.size() + 1;
  }
}

RunPhase phase_at_end(int exit) {
  if (exit == kExitDone) return RunPhase::Done;
  return exit == kExitRequeue ? RunPhase::Preempted : RunPhase::Failed;
}

}  // namespace

std::string to_string(RunPhase phase) {
  switch (phase) {
    case RunPhase::Missing:
      return "missing";
    case RunPhase::Running:
      return "running";
    case RunPhase::Done:
      return "done";
    case RunPhase::Preempted:
      return "preempted";
    case RunPhase::Failed:
      return "failed";
    case RunPhase::Died:
      return "died";
  }
  throw LogicError("unknown phase of a run");
}

RunState run_state(const std::filesystem::path& folder) {
  auto path = folder / "metrics.jsonl";
  std::error_code failed;
  auto kind = std::filesystem::status(path, failed).type();
  if (kind == std::filesystem::file_type::not_found) return {};
  // Before the file is read: a run that ends in between has written its end line by then.
  bool held = FolderLock::holder(folder).has_value();
  StateReader reader;
  read_lines(reader, text_of_file(path), path);
  auto& state = reader.state;
  state.phase = reader.ended() ? phase_at_end(*state.exit) : held ? RunPhase::Running : RunPhase::Died;
  return state;
}

}  // namespace meshard
