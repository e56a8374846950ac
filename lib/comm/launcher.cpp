#include "comm/launcher.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"

namespace meshard {

namespace {
std::optional<int> number_in_environment(const char* name) {
  const char* text = std::getenv(name);
  if (!text) return std::nullopt;
  char* end = nullptr;
  long number = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || number < 0) return std::nullopt;
  return static_cast<int>(number);
}
}  // namespace

Launch launch_of_environment() {
  if (auto rank = number_in_environment("OMPI_COMM_WORLD_RANK")) {
    return {*rank, number_in_environment("OMPI_COMM_WORLD_SIZE")};
  }
  if (auto rank = number_in_environment("PMIX_RANK")) return {*rank, number_in_environment("SLURM_STEP_NUM_TASKS")};
  return {0, 1};
}

void check_launcher_environment() {
  int tasks = number_in_environment("SLURM_STEP_NUM_TASKS").value_or(1);
  if (tasks <= 1 || std::getenv("PMIX_RANK") || std::getenv("OMPI_COMM_WORLD_RANK")) return;
  throw ConfigError(
      fmt::format("this srun step has {0} tasks but no PMI: each task would be a run of its own. Start it with\n"
                  "  mpirun -n {0} meshard ...\n"
                  "or, where Slurm and Open MPI were built with PMIx,\n"
                  "  srun --mpi=pmix -n {0} meshard ...",
                  tasks));
}

}  // namespace meshard
