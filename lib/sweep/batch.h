#pragma once
// Points of a sweep as array jobs of Slurm and PBS.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sweep/folder.h"

namespace meshard {

/// What a site's batch system has to be told, from jobs/site.env.
struct SiteSettings {
  std::string account, partition;    ///< empty: not told
  int gpus_per_node = 0;             ///< 0: not told
  std::string stop_before_s;         ///< seconds before its end that a job is asked to stop; empty: as its script says
  std::vector<std::string> options;  ///< further ones, for sbatch or qsub
};

/// What array jobs are submitted with.
struct BatchSettings {
  std::filesystem::path scripts;  ///< the folder jobs/
  std::filesystem::path folder;   ///< the sweep's
  SiteSettings site;
  std::optional<int> at_a_time;  ///< points, Slurm only
  std::vector<std::string> given;  ///< names of site settings that this process's environment has, for the jobs
};

/// Points of one size.
struct BatchShape {
  int ranks = 1;
  int threads = 0;  ///< run.threads; 0 = auto: the script's own choice
  auto operator<=>(const BatchShape&) const = default;
};

/// One submission.
struct BatchCommand {
  std::vector<std::string> command;
  std::vector<int> indices;
};

/// Local. `sbatch --array=INDICES --ntasks=RANKS jobs/slurm/array.sbatch FOLDER`. Where the site's options have an
/// --export without ALL, what was given is added to it.
BatchCommand slurm_command(const BatchSettings& settings, const BatchShape& shape, const std::vector<int>& indices);

/// Local. `qsub -J FIRST-LAST -l select=... -v SWEEP=FOLDER jobs/pbs/array.pbs`, one per run of consecutive indices: -J
/// takes nothing else, and no single index, which is a job of its own with -v SWEEP=FOLDER,INDEX=N. A rank is a chunk,
/// with a GPU where nodes have some. What was given stands in -v by name alone: qsub then quotes the values itself.
std::vector<BatchCommand> pbs_commands(const BatchSettings& settings, const BatchShape& shape,
                                       const std::vector<int>& indices);

/// Local. Reads jobs/site.env as the job scripts do; `options` are MESHARD_SUBMIT_OPTIONS, split into words by the
/// shell. Throws ConfigError if it cannot be read.
SiteSettings site_settings(const std::filesystem::path& scripts);

/// Local. The words of each of these settings of jobs/site.env, in their order. Throws as above.
std::vector<std::vector<std::string>> site_words(const std::filesystem::path& scripts,
                                                 const std::vector<std::string>& names);

/// Local. Submits, and returns the job as jobs.txt has it. Throws ConfigError with the batch system's own words, and
/// what to look at, if it refuses.
SweepJob submit(const std::string& system, const BatchCommand& command);

/// Local. The indices that these array jobs have yet to run or are running, with the job's name ("slurm 1234"). Asks
/// squeue or qstat. Throws ConfigError if the batch system does not answer: points might be run twice.
std::map<int, std::string> points_in_array_jobs(const std::vector<SweepJob>& jobs);

/// Local. A point's batch job, from the id that its lock has: "slurm 12_3", "slurm 12", "pbs 5[3].server"; nothing for
/// any other text.
std::optional<SweepJob> job_of_lock(const std::string& id, int index);

}  // namespace meshard
