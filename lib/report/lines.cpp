#include "report/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/json_text.h"
#include "report/cursor.h"

namespace meshard {

namespace {

constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

/// What one line says.
struct LineValues {
  std::int64_t step = -1;
  double tokens = kAbsent, bits_per_byte = kAbsent, eval_loss = kAbsent, eval_bits_per_byte = kAbsent;
  std::array<double, kCurveNames.size()> curves;
  bool is_eval = false, is_header = false, is_end = false, nonfinite = false;

  LineValues() { curves.fill(kAbsent); }
  double& operator[](Curve curve) { return curves[static_cast<std::size_t>(curve)]; }
};

/// The worst of all layers: fmin and fmax pass over NaN.
void add_layer(JsonCursor& cursor, LineValues& line) {
  cursor.members([&](std::string_view key) {
    auto fold = [&](Curve curve, auto with) { line[curve] = with(line[curve], cursor.number()); };
    auto least = [](double a, double b) { return std::fmin(a, b); };
    auto most = [](double a, double b) { return std::fmax(a, b); };
    auto sum = [](double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a + b; };
    if (key == "max_vio") {
      fold(Curve::MaxVio, most);
    } else if (key == "bias_min") {
      fold(Curve::BiasMin, least);
    } else if (key == "bias_max") {
      fold(Curve::BiasMax, most);
    } else if (key == "dead") {
      fold(Curve::Dead, sum);
    } else if (key == "dropped") {
      fold(Curve::Dropped, sum);
    } else {
      cursor.skip();
    }
  });
}

void read_moe(JsonCursor& cursor, LineValues& line) {
  cursor.members([&](std::string_view key) {
    if (key == "layers") {
      cursor.elements([&] { add_layer(cursor, line); });
    } else if (key == "aux_loss") {
      line[Curve::AuxLoss] = cursor.number();
    } else if (key == "z_loss") {
      line[Curve::ZLoss] = cursor.number();
    } else {
      cursor.skip();
    }
  });
}

void read_member(JsonCursor& cursor, std::string_view key, LineValues& line) {
  auto plain = std::ranges::find(kCurveNames, key);
  if (key == "step") {
    line.step = cursor.integer();
  } else if (key == "step_ms") {
    cursor.members(
        [&](std::string_view part) { part == "median" ? void(line[Curve::StepMs] = cursor.number()) : cursor.skip(); });
  } else if (plain != kCurveNames.end()) {
    auto& value = line.curves[static_cast<std::size_t>(plain - kCurveNames.begin())];
    value = cursor.number();
    line.nonfinite |= std::isnan(value) && (key == "loss" || key == "grad_norm");
  } else if (key == "tokens") {
    line.tokens = cursor.number();
  } else if (key == "bits_per_byte") {
    line.bits_per_byte = cursor.number();
  } else if (key == "moe") {
    read_moe(cursor, line);
  } else if (key == "nonfinite") {
    cursor.elements([&] { line.nonfinite = true, cursor.skip(); });
  } else if (key == "eval_loss") {
    line.is_eval = true;
    line.eval_loss = cursor.number();
  } else if (key == "eval_bits_per_byte") {
    line.eval_bits_per_byte = cursor.number();
  } else {
    line.is_header |= key == "header";
    line.is_end |= key == "end";
    cursor.skip();
  }
}

/// What was rolled back, and is done again from `step` on, is forgotten.
std::size_t first_not_before(std::vector<std::int64_t>& steps, std::int64_t step) {
  return static_cast<std::size_t>(std::ranges::lower_bound(steps, step) - steps.begin());
}

void append_eval(EvalLines& evals, const LineValues& line) {
  auto kept = first_not_before(evals.steps, line.step);
  for (auto* column : {&evals.losses, &evals.bits_per_byte}) column->resize(kept);
  evals.steps.resize(kept);
  evals.steps.push_back(line.step);
  evals.losses.push_back(line.eval_loss);
  evals.bits_per_byte.push_back(line.eval_bits_per_byte);
}

void append_step(StepLines& lines, const LineValues& line, std::int64_t offset) {
  if (!lines.steps.empty() && line.step <= lines.steps.back()) {
    auto kept = first_not_before(lines.steps, line.step);
    for (auto& column : lines.curves) column.resize(kept);
    for (auto* column : {&lines.tokens, &lines.bits_per_byte}) column->resize(kept);
    lines.steps.resize(kept);
    lines.nonfinite.resize(kept);
    lines.offsets.resize(kept);
  }
  for (std::size_t i = 0; i < line.curves.size(); ++i) lines.curves[i].push_back(line.curves[i]);
  lines.steps.push_back(line.step);
  lines.tokens.push_back(line.tokens);
  lines.bits_per_byte.push_back(line.bits_per_byte);
  lines.nonfinite.push_back(line.nonfinite);
  lines.offsets.push_back(offset);
}

/// Whether it was a line of a run.
bool take_run_line(RunLines& run, std::string_view text, std::int64_t offset) {
  LineValues line;
  JsonCursor cursor(text);
  cursor.members([&](std::string_view key) { read_member(cursor, key, line); });
  if (!cursor.done()) return false;
  if (line.is_header) {
    auto header = read_json_if_sound<nlohmann::json>(text);
    if (!header || !header->is_object() || !(*header)["header"].is_object()) return false;
    run.headers.push_back(std::move((*header)["header"]));
  } else if (line.step >= 0) {
    line.is_eval ? append_eval(run.evals, line) : append_step(run.steps, line, offset);
  } else {
    return line.is_end;
  }
  return true;
}

}  // namespace

RunLines read_run_lines(const std::filesystem::path& metrics) {
  std::error_code failed;
  if (std::filesystem::exists(metrics, failed) && !std::filesystem::is_regular_file(metrics, failed)) {
    throw IoError(fmt::format("cannot read {}: no regular file", metrics.string()));  // a pipe would wait
  }
  std::vector<char> buffer(1 << 20);
  std::ifstream file;
  file.rdbuf()->pubsetbuf(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  file.open(metrics, std::ios::binary);
  if (!file) throw IoError(fmt::format("cannot read {}: {}", metrics.string(), std::strerror(errno)));
  RunLines run;
  std::int64_t offset = 0;
  int number = 0;
  for (std::string text; std::getline(file, text); offset += std::ssize(text) + 1) {
    ++number;
    if (take_run_line(run, text, offset)) continue;
    if (file.eof()) {
      run.torn = true;
    } else {
      run.unknown.push_back(number);
    }
  }
  if (file.bad()) throw IoError(fmt::format("cannot read {}:{}: no memory, or the disk", metrics.string(), number + 1));
  return run;
}

}  // namespace meshard
