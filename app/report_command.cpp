#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ctime>
#include <memory>

#include "app/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "report/report.h"

namespace meshard {

namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string csv, html;
};

int terminal_width() {
  constexpr int kWidthOfFiles = 120;
  winsize size{};
  bool known = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kWidthOfFiles;
}

void write_report_file(const std::string& file, const std::string& text) {
  if (file.empty()) return;
  try {
    write_whole_file(file, text);
  } catch (const IoError& error) {
    throw ConfigError(error.what());
  }
}

int report(const ReportArguments& arguments) {
  auto report = make_report({arguments.runs.begin(), arguments.runs.end()}, MESHARD_VERSION);
  Log::output(report_table(report, terminal_width()));
  write_report_file(arguments.csv, report_csv(report));
  auto now = std::time(nullptr);
  auto made = fmt::format("{:%Y-%m-%d %H:%M}: {}", fmt::localtime(now), fmt::join(arguments.runs, " "));
  if (!arguments.html.empty()) write_report_file(arguments.html, report_html(report, made));
  return kExitDone;
}

}  // namespace

void add_report(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<ReportArguments>();
  auto* command =
      app.add_subcommand("report", "Runs and sweeps side by side: a table, and a page with their curves. No MPI.");
  command->add_option("runs", arguments->runs, "Folders of runs, of sweeps, or of several of either")
      ->required()
      ->type_name("RUN_OR_SWEEP");
  command->add_option("--csv", arguments->csv, "Also write a CSV file: a line a run, every number in full")
      ->type_name("FILE");
  command->add_option("--html", arguments->html, "Also write one self-contained page: curves, expert maps, the table")
      ->type_name("FILE");
  command->footer(
      "Examples:\n  meshard report runs\n"
      "  meshard report sweeps/lr --html lr.html --csv lr.csv\n"
      "  meshard report runs/before runs/after --html report.html");
  command->callback([arguments, &run] { run = [arguments] { return report(*arguments); }; });
}

}  // namespace meshard
