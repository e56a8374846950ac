#pragma once
// Points of a sweep as array jobs of Slurm and PBS.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runs/sweep_folder.h"

namespace meshard {

/// What an array job is submitted with.
struct BatchSettings {
  std::filesystem::path scripts;          ///< the folder jobs/
  std::filesystem::path folder;           ///< the sweep's
  std::vector<std::string> site_options;  ///< of jobs/site.env, for sbatch or qsub
  std::optional<int> at_a_time;           ///< points, Slurm only
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

/// Local. `sbatch --array=INDICES --ntasks=RANKS jobs/slurm/array.sbatch FOLDER`.
BatchCommand slurm_command(const BatchSettings& settings, const BatchShape& shape, const std::vector<int>& indices);

/// Local. `qsub -J FIRST-LAST -l select=... -v SWEEP=FOLDER jobs/pbs/array.pbs`, one per run of consecutive indices: -J
/// takes nothing else. A single index is FIRST-(FIRST+1):2, as FIRST must be below LAST.
std::vector<BatchCommand> pbs_commands(const BatchSettings& settings, const BatchShape& shape,
                                       const std::vector<int>& indices);

/// Local. Options of jobs/site.env, split into words as the shell does: MESHARD_SLURM_OPTIONS or MESHARD_PBS_OPTIONS.
/// Throws ConfigError if the file cannot be read.
std::vector<std::string> site_options(const std::filesystem::path& scripts, const std::string& name);

/// Local. Submits, and returns the job as jobs.txt has it. Throws ConfigError with the batch system's own words, and
/// what to look at, if it refuses.
SweepJob submit(const std::string& system, const BatchCommand& command);

/// Local. The indices that these array jobs have yet to run or are running, with the job's name ("slurm 1234"). Asks
/// squeue or qstat; of PBS an array counts as a whole. Throws ConfigError if the batch system does not answer: points
/// might be run twice.
std::map<int, std::string> points_in_array_jobs(const std::vector<SweepJob>& jobs);

}  // namespace meshard
