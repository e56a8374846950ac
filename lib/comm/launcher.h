#pragma once
// What the launcher (mpirun, srun) says in the environment, before MPI is initialised.

#include <optional>

namespace meshard {

struct Launch {
  int rank = 0;             ///< of this process; 0 if it was not launched
  std::optional<int> size;  ///< of the world, if the launcher says so; 1 if the process was not launched
};

/// Local. Reads OMPI_COMM_WORLD_RANK and _SIZE (mpirun), PMIX_RANK and SLURM_STEP_NUM_TASKS (srun --mpi=pmix). For what
/// must be known before MPI_Init: whether a config fits the number of ranks, and which rank prints that it does not.
Launch launch_of_environment();

/// Local. The guard to be called BEFORE MPI_Init: some builds of Open MPI abort inside it. Throws ConfigError with the
/// right command if the environment shows an `srun` step of several tasks without PMI (each task would be a world of
/// its own).
void check_launcher_environment();

}  // namespace meshard
