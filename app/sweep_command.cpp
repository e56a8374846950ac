#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "app/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "sweep/batch.h"
#include "sweep/folder.h"
#include "sweep/local.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

struct SweepArguments {
  std::string file, out, launcher = "local", scripts;
  std::optional<int> jobs, ranks;
  std::optional<double> memory_limit;
  bool dry_run = false;
};

std::string counted(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

fs::path find_scripts(const SweepArguments& arguments) {
  std::vector<fs::path> places = {fs::read_symlink("/proc/self/exe").parent_path() / "../jobs", "jobs"};
  if (!arguments.scripts.empty()) places = {arguments.scripts};
  for (auto& place : places) {
    if (fs::exists(place / "launch.sh")) return fs::canonical(place);
  }
  throw ConfigError(
      fmt::format("there is no launch.sh in {}; --scripts names the folder jobs/ of Meshard's sources",
                  arguments.scripts.empty() ? "../jobs beside meshard, nor in jobs here" : arguments.scripts));
}

std::optional<int> ranks_per_point(const SweepArguments& arguments, const std::optional<SweepRecord>& record) {
  if (!record || !record->ranks) return arguments.ranks;
  if (arguments.ranks && arguments.ranks != record->ranks) {
    throw ConfigError(fmt::format("--ranks {}: the sweep in {} was set up with --ranks {}; choose another --out",
                                  *arguments.ranks, arguments.out, *record->ranks));
  }
  return record->ranks;
}

std::string ranks_text(const std::vector<CheckedPoint>& points, bool given) {
  auto [least, most] = std::ranges::minmax(points, {}, &CheckedPoint::ranks);
  auto ranks =
      least.ranks == most.ranks ? fmt::format("{}", most.ranks) : fmt::format("{} to {}", least.ranks, most.ranks);
  return fmt::format("{}; ranks per point: {} ({})", counted(points.size(), "point"), ranks,
                     given ? "--ranks" : "dp_outer x dp_shard of the config; 1 where dp_shard is auto: see --ranks");
}

/// Whether the batch job that a lock of another host names is over. Where nobody answers it may still run.
bool is_over(const FolderLock::Holder& holder, int index) {
  auto job = holder.here ? std::nullopt : job_of_lock(holder.job, index);
  if (!job) return false;
  try {
    return points_in_array_jobs({*job}).empty();
  } catch (const ConfigError&) {
    return false;
  }
}

/// Array jobs are asked for only where one has a point that may have to be started.
std::vector<PointStatus> statuses_of(const std::vector<CheckedPoint>& points, const fs::path& folder) {
  std::vector<PointStatus> statuses;
  for (auto& point : points) {
    auto& status = statuses.emplace_back(point_status(folder / point.point.name));
    bool left = !status.done() && status.holder && is_over(*status.holder, static_cast<int>(statuses.size()) - 1);
    if (left) status.gone = std::exchange(status.holder, std::nullopt);
  }
  auto jobs = submitted_jobs(folder);
  std::erase_if(jobs, [&](const SweepJob& job) {
    return std::ranges::none_of(job.indices, [&](int index) {
      return static_cast<std::size_t>(index) < statuses.size() && statuses[index].open();
    });
  });
  for (auto& [index, job] : points_in_array_jobs(jobs)) {
    if (static_cast<std::size_t>(index) < statuses.size()) statuses[index].array_job = job;
  }
  return statuses;
}

void check_batch_arguments(const SweepArguments& arguments) {
  if (arguments.launcher == "pbs" && arguments.jobs) {
    throw ConfigError("--jobs: an array of PBS has no such limit; leave it out");
  }
  auto folder = fs::absolute(arguments.out).string();
  if (arguments.launcher != "local" && folder.find_first_of(", \t\"'\\") != std::string::npos) {
    throw ConfigError(
        fmt::format("--out {}: batch systems do not pass on a path with commas, spaces or quotes", folder));
  }
}

/// The job scripts begin in the folder that they are submitted from, and look for theirs there.
void check_place(const fs::path& scripts) {
  std::error_code failed;
  if (fs::equivalent(scripts, "jobs", failed)) return;
  throw ConfigError(fmt::format("batch jobs start in the folder that they are submitted from: run this in {}",
                                scripts.parent_path().string()));
}

/// Site settings that the environment has: there they win, and so they have to in the jobs.
std::vector<std::string> settings_given() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable; ++variable) {
    std::string text = *variable, name = text.substr(0, text.find('='));
    bool of_a_job = name == "MESHARD_RESTARTS" || name == "MESHARD_CHAIN";  // not of what it submits
    if ((name.starts_with("MESHARD_") && !of_a_job) || name == "PREFLIGHT") names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

void submit_points(const SweepArguments& arguments, const fs::path& scripts, const SweepFolder& folder,
                   const std::vector<CheckedPoint>& points, const std::vector<PointStatus>& statuses) {
  bool slurm = arguments.launcher == "slurm";
  BatchSettings settings{scripts, fs::absolute(folder.path()), site_settings(scripts), arguments.jobs,
                         settings_given()};
  // sbatch's own default for --export.
  if (const char* exported = std::getenv("SBATCH_EXPORT"); slurm && exported) {
    settings.site.options.insert(settings.site.options.begin(), fmt::format("--export={}", exported));
  }
  std::map<BatchShape, std::vector<int>> shapes;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (statuses[i].open()) shapes[{points[i].ranks, points[i].config.run.threads}].push_back(static_cast<int>(i));
  }
  if (shapes.empty()) Log().print("nothing to submit");
  for (auto& [shape, indices] : shapes) {
    auto commands =
        slurm ? std::vector{slurm_command(settings, shape, indices)} : pbs_commands(settings, shape, indices);
    for (auto& command : commands) {
      auto job = submit(arguments.launcher, command);
      folder.add_job(job);
      Log().print(fmt::format("submitted as {} {}: {} of {} each, indices {}", job.system, job.id,
                              counted(command.indices.size(), "point"),
                              counted(static_cast<std::size_t>(shape.ranks), "rank"), index_ranges(command.indices)));
    }
  }
}

/// A killed job leaves its lock behind, which the next one would respect.
void remove_left_locks(const std::vector<CheckedPoint>& points, const std::vector<PointStatus>& statuses,
                       const fs::path& folder) {
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto& name = points[i].point.name;
    if (!statuses[i].gone || !FolderLock::remove(folder / name, *statuses[i].gone)) continue;
    Log().print(fmt::format("point {}: {} left its lock, and is over: removed", name, statuses[i].gone->job));
  }
}

/// Points that others have in hand.
void say_left_alone(const std::vector<CheckedPoint>& points, const std::vector<PointStatus>& statuses,
                    const fs::path& folder) {
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto& status = statuses[i];
    if (status.done() || status.open() || (status.holder && status.holder->here)) continue;
    auto& name = points[i].point.name;
    auto stale =
        status.holder ? fmt::format("; if that process is gone, remove {}", (folder / name / "lock").string()) : "";
    Log().print(fmt::format("point {}: left alone, {}{}", name, status.text(), stale));
  }
}

int exit_code(const std::vector<PointStatus>& statuses, bool stopped) {
  auto any = [&](auto what) { return std::ranges::any_of(statuses, what); };
  bool failed = any([](auto& status) { return status.run.phase == RunPhase::Failed; });
  if (failed && !stopped) return kExitFailure;
  return stopped || any([](auto& status) { return !status.done(); }) ? kExitRequeue : kExitDone;
}

void print_summary(const std::vector<CheckedPoint>& points, const std::vector<PointStatus>& statuses,
                   const std::string& folder, bool stopped) {
  Log::output("\n" + summary_table(points, statuses));
  auto done = std::ranges::count_if(statuses, &PointStatus::done);
  Log().print(fmt::format("{}{} of {} points done{}", stopped ? "stopped; " : "", done, points.size(),
                          static_cast<std::size_t>(done) == points.size()
                              ? fmt::format(": see `meshard report {}`", folder)
                              : "; the same command goes on with the others"));
}

int sweep_points(const SweepArguments& arguments) {
  check_batch_arguments(arguments);
  auto sweep = load_sweep(arguments.file);
  auto scripts = arguments.dry_run ? fs::path() : find_scripts(arguments);
  if (!arguments.dry_run && arguments.launcher != "local") check_place(scripts);
  std::optional<SweepFolder> folder;
  if (!arguments.dry_run) folder.emplace(arguments.out);
  auto record = read_sweep_record(arguments.out);
  auto ranks = ranks_per_point(arguments, record);
  if (record) adopt_record(sweep, *record, arguments.out);
  auto points = check_sweep(sweep, {ranks, arguments.memory_limit});
  check_unchanged(points, arguments.out);
  auto statuses = statuses_of(points, arguments.out);
  Log().print(ranks_text(points, ranks.has_value()));
  if (arguments.dry_run) {
    Log::output(points_table(points, statuses));
    return kExitDone;
  }
  folder->write(sweep, points, ranks);
  remove_left_locks(points, statuses, arguments.out);
  say_left_alone(points, statuses, arguments.out);
  if (arguments.launcher != "local") {
    submit_points(arguments, scripts, *folder, points, statuses);
    return kExitDone;
  }
  auto stopped = run_points_here({arguments.out, scripts, arguments.jobs}, points, statuses);
  print_summary(points, statuses, arguments.out, stopped);
  return exit_code(statuses, stopped);
}

}  // namespace

void add_sweep(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<SweepArguments>();
  auto* command = app.add_subcommand(
      "sweep",
      "Runs a base config with every combination of some keys' values. The same command goes on where it ended.");
  command->add_option("sweep", arguments->file, "YAML file: schema, base, and grid, zip, list or seeds")
      ->required()
      ->type_name("SWEEP.yaml");
  command->add_option("--out", arguments->out, "Folder of the sweep; each point gets a run folder in it")
      ->required()
      ->type_name("DIR");
  command->add_option("--launcher", arguments->launcher, "Where points run: here, or as array jobs")
      ->capture_default_str()
      ->type_name("local|slurm|pbs")
      ->check(CLI::IsMember({"local", "slurm", "pbs"}));
  command->add_option("--jobs", arguments->jobs, "Points at a time; default here: cores / (ranks x threads)")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--ranks", arguments->ranks, "Ranks of a point; default: dp_outer x dp_shard, 1 with dp_shard: auto")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--memory-limit", arguments->memory_limit, "Refuse points that need more than this per rank, GB")
      ->type_name("GB")
      ->check(CLI::PositiveNumber);
  command->add_option("--scripts", arguments->scripts, "Meshard's folder jobs/; default: beside the binary's, or here")
      ->type_name("DIR");
  command->add_flag("--dry-run", arguments->dry_run, "Check every point and print the table; nothing is written");
  command->footer(
      "Examples:\n  meshard sweep configs/sweeps/lr_and_seed.yaml --out runs/lr --dry-run\n"
      "  meshard sweep configs/sweeps/lr_and_seed.yaml --out runs/lr --jobs 2\n"
      "  meshard sweep configs/sweeps/lr_and_seed.yaml --out runs/lr --launcher slurm");
  command->callback([arguments, &run] { run = [arguments] { return sweep_points(*arguments); }; });
}

}  // namespace meshard
