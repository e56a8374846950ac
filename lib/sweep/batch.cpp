#include "sweep/batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/error.h"
#include "sweep/process.h"

namespace meshard {

namespace {

std::string trimmed(const std::string& text) {
  auto begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

std::string said(const CommandResult& result) {
  return trimmed(result.err + "\n" + result.out);
}

void add_words(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

void add_indices(std::vector<int>& indices, const std::vector<int>& more) {
  indices.insert(indices.end(), more.begin(), more.end());
}

std::vector<std::vector<int>> consecutive(const std::vector<int>& indices) {
  std::vector<std::vector<int>> runs;
  for (auto index : indices) {
    if (runs.empty() || index != runs.back().back() + 1) runs.emplace_back();
    runs.back().push_back(index);
  }
  return runs;
}

[[noreturn]] void refuse_unasked(const std::string& command, const CommandResult& result) {
  throw ConfigError(
      fmt::format("cannot ask which points are still in the batch system: {} ended with {}: {}; try again when it "
                  "answers, or remove the lines of jobs that are gone from the sweep's jobs.txt",
                  command, result.exit, said(result)));
}

/// "1234 5" per array task that is pending, running or completing; "1234 N/A" of other jobs.
void add_slurm(std::map<int, std::string>& found, const std::vector<SweepJob>& jobs) {
  std::map<std::string, std::vector<int>> ids;
  for (auto& job : jobs) add_indices(ids[job.id], job.indices);
  auto result = run_command({"squeue", "--noheader", "--array", "--format=%F %K"});
  if (result.exit != 0) refuse_unasked("squeue", result);
  std::istringstream lines(result.out);
  std::string id, index;
  while (lines >> id >> index) {
    bool is_task = std::ranges::all_of(index, [](unsigned char c) { return std::isdigit(c); });
    if (!ids.contains(id)) continue;
    for (auto point : is_task ? std::vector{std::stoi(index)} : ids[id]) found[point] = "slurm " + id;
  }
}

/// Whether a job, an array ("") and its subjobs ("3") are over, as `qstat -t` tells. The state stands before the queue,
/// in the last column but one: C, F and X are over.
std::map<std::string, bool> pbs_jobs_over(const std::string& qstat, const std::string& id) {
  auto number = id.substr(0, id.find_first_of("[."));
  std::map<std::string, bool> over;
  std::istringstream lines(qstat);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream text(line);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    if (words.size() < 3 || words.front().substr(0, words.front().find_first_of("[.")) != number) continue;
    auto& name = words.front();
    auto open = name.find('['), close = name.find(']');
    bool in_brackets = open != std::string::npos && close != std::string::npos;
    auto& state = words[words.size() - 2];
    over[in_brackets ? name.substr(open + 1, close - open - 1) : ""] = state == "C" || state == "F" || state == "X";
  }
  return over;
}

void add_pbs(std::map<int, std::string>& found, const SweepJob& job) {
  constexpr int kUnknownJob = 153, kFinishedJob = 35;
  auto result = run_command({"qstat", "-t", job.id});
  bool gone = result.exit == kUnknownJob || result.exit == kFinishedJob;
  if (result.exit != 0 && !gone) refuse_unasked("qstat", result);
  auto over = pbs_jobs_over(result.out, job.id);
  if (gone || over.empty() || over[""]) return;
  for (auto index : job.indices) {
    if (!over[std::to_string(index)]) found[index] = "pbs " + job.id;
  }
}

/// What sbatch is to hand on of its environment; empty: all of it, which is what it does untold.
std::string slurm_exports(const BatchSettings& settings) {
  std::string exported = "ALL";
  auto& options = settings.site.options;
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (options[i].starts_with("--export=")) exported = options[i].substr(options[i].find('=') + 1);
    if (options[i] == "--export" && i + 1 < options.size()) exported = options[i + 1];
  }
  bool all = ("," + exported + ",").find(",ALL,") != std::string::npos;
  if (all || settings.given.empty()) return {};
  auto names = fmt::format("{}", fmt::join(settings.given, ","));
  return exported == "NONE" || exported == "NIL" ? names : exported + "," + names;
}

}  // namespace

BatchCommand slurm_command(const BatchSettings& settings, const BatchShape& shape, const std::vector<int>& indices) {
  auto& site = settings.site;
  std::vector<std::string> words = {"sbatch", "--parsable"};
  if (!site.account.empty()) words.push_back("--account=" + site.account);
  if (!site.partition.empty()) words.push_back("--partition=" + site.partition);
  if (site.gpus_per_node > 0) words.push_back(fmt::format("--gpus-per-node={}", site.gpus_per_node));
  if (!site.stop_before_s.empty()) words.push_back("--signal=B:USR1@" + site.stop_before_s);
  if (shape.threads > 0) words.push_back(fmt::format("--cpus-per-task={}", shape.threads));
  add_words(words, site.options);
  if (auto exports = slurm_exports(settings); !exports.empty()) words.push_back("--export=" + exports);
  auto limit = settings.at_a_time ? fmt::format("%{}", *settings.at_a_time) : "";
  words.push_back(fmt::format("--array={}{}", index_ranges(indices), limit));
  words.push_back(fmt::format("--ntasks={}", shape.ranks));
  add_words(words, {(settings.scripts / "slurm/array.sbatch").string(), settings.folder.string()});
  return {words, indices};
}

std::vector<BatchCommand> pbs_commands(const BatchSettings& settings, const BatchShape& shape,
                                       const std::vector<int>& indices) {
  auto& site = settings.site;
  auto threads = std::max(1, shape.threads);
  std::vector<std::string> words = {"qsub"};
  if (!site.account.empty()) add_words(words, {"-A", site.account});
  if (!site.partition.empty()) add_words(words, {"-q", site.partition});
  add_words(words, site.options);
  add_words(words, {"-l", fmt::format("select={}:ncpus={}:mpiprocs=1:ompthreads={}{}", shape.ranks, threads, threads,
                                      site.gpus_per_node > 0 ? ":ngpus=1" : "")});
  std::vector<BatchCommand> commands;
  for (auto& run : consecutive(indices)) {
    auto& command = commands.emplace_back(BatchCommand{words, run}).command;
    auto variables = "SWEEP=" + settings.folder.string();
    if (run.size() > 1) {
      add_words(command, {"-J", fmt::format("{}-{}", run.front(), run.back())});
    } else {
      variables += fmt::format(",INDEX={}", run.front());
    }
    for (auto& name : settings.given) variables += "," + name;
    add_words(command, {"-v", variables, (settings.scripts / "pbs/array.pbs").string()});
  }
  return commands;
}

std::vector<std::vector<std::string>> site_words(const std::filesystem::path& scripts,
                                                 const std::vector<std::string>& names) {
  constexpr char kEndOfSetting = '\x1e';
  auto file = (scripts / "site.env").string();
  std::vector<std::string> command = {"bash", "-c",
                                      R"(. "$0" >&2 || exit; set -f
                                         for name; do printf '%s\n' ${!name-}; printf '\036\n'; done)",
                                      file};
  add_words(command, names);
  auto result = run_command(command);
  if (result.exit != 0) throw ConfigError(fmt::format("cannot read {}: {}", file, said(result)));
  std::vector<std::vector<std::string>> all(1);
  std::istringstream lines(result.out);
  for (std::string word; std::getline(lines, word);) {
    if (word == std::string(1, kEndOfSetting)) {
      all.emplace_back();
    } else if (!word.empty()) {
      all.back().push_back(word);
    }
  }
  all.pop_back();
  return all;
}

SiteSettings site_settings(const std::filesystem::path& scripts) {
  auto words = site_words(scripts, {"MESHARD_ACCOUNT", "MESHARD_PARTITION", "MESHARD_GPUS_PER_NODE",
                                    "MESHARD_STOP_BEFORE_S", "MESHARD_SUBMIT_OPTIONS"});
  auto one = [&](std::size_t i) { return words[i].empty() ? std::string() : words[i].front(); };
  SiteSettings site{one(0), one(1), 0, one(3), words[4]};
  auto gpus = one(2);
  auto [end, error] = std::from_chars(gpus.data(), gpus.data() + gpus.size(), site.gpus_per_node);
  if (!gpus.empty() && (error != std::errc{} || end != gpus.data() + gpus.size())) {
    throw ConfigError(fmt::format("MESHARD_GPUS_PER_NODE is '{}', not a whole number (jobs/site.env)", gpus));
  }
  return site;
}

SweepJob submit(const std::string& system, const BatchCommand& batch) {
  auto result = run_command(batch.command);
  auto& program = batch.command.front();
  if (result.exit == 127) {
    throw ConfigError(fmt::format("there is no {} here; use the login node of a cluster with {}, or --launcher local",
                                  program, system));
  }
  auto out = trimmed(result.out);
  auto id = out.substr(out.find_last_of('\n') + 1);
  id = id.substr(0, id.find(';'));  // sbatch adds the name of the cluster
  if (result.exit != 0 || id.empty() || id.find(' ') != std::string::npos) {
    throw ConfigError(
        fmt::format("{} refused points {} (exit {}): {}; account, queue or partition are set in "
                    "jobs/site.env",
                    program, index_ranges(batch.indices), result.exit, said(result)));
  }
  return {system, id, batch.indices};
}

std::optional<SweepJob> job_of_lock(const std::string& id, int index) {
  auto blank = id.find(' ');
  auto system = id.substr(0, blank);
  if (blank == std::string::npos || blank + 1 == id.size() || (system != "slurm" && system != "pbs")) return {};
  auto job = id.substr(blank + 1);
  if (system == "slurm") job = job.substr(0, job.find('_'));  // which task it is, the index says
  return SweepJob{system, job, {index}};
}

std::map<int, std::string> points_in_array_jobs(const std::vector<SweepJob>& jobs) {
  std::map<int, std::string> found;
  std::vector<SweepJob> of_slurm;
  for (auto& job : jobs) {
    if (job.system == "slurm") {
      of_slurm.push_back(job);
    } else {
      add_pbs(found, job);
    }
  }
  if (!of_slurm.empty()) add_slurm(found, of_slurm);
  return found;
}

}  // namespace meshard
