#pragma once
// What the launcher (mpirun, srun) says in the environment, before MPI is initialised.

#include <optional>
#include <string>

namespace meshard {

struct Launch {
  int rank = 0;             ///< of this process; 0 if it was not launched
  std::optional<int> size;  ///< of the world, if the launcher says so; 1 if the process was not launched
};

/// Local. Reads OMPI_COMM_WORLD_RANK and _SIZE (mpirun), PMIX_RANK or SLURM_PROCID with SLURM_STEP_NUM_TASKS (srun),
/// PMI_RANK and PMI_SIZE (launchers of other MPIs). For what must be known before MPI_Init: which process prints an
/// error that all of them have.
Launch launch_of_environment();

/// The batch job that this process runs in.
struct BatchJob {
  std::string id;               ///< "slurm 1234", "slurm 1234_5" of an array, "pbs 12.server"; empty: none
  std::string chain;            ///< the first job of its chain of successors; its own id where it has none
  std::optional<int> restarts;  ///< how often it was restarted; PBS does not say, but never restarts an interactive job
};

/// Local. SLURM_JOB_ID (of an array SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID) and SLURM_RESTART_COUNT, or PBS_JOBID
/// and PBS_ENVIRONMENT; MESHARD_CHAIN, which a job that submits its successor gives it.
BatchJob batch_job_of_environment();

/// Local. The guard to be called BEFORE MPI_Init: some builds of Open MPI abort inside it. Throws ConfigError with the
/// right command if this is one of several processes that will not find each other, each a world of its own: srun
/// without PMIx, or the launcher of another MPI.
void check_launcher_environment();

/// Local. The guard AFTER MPI_Init: throws ConfigError with the right command if the launcher started several processes
/// but the world has only this one (an mpirun or a PMIx that the Open MPI of this program does not understand).
void check_launched_world(int world_size);

}  // namespace meshard
