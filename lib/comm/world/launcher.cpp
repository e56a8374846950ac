#include "comm/world/launcher.h"

#include <fmt/format.h>
#include <mpi.h>

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

std::string text_in_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

std::optional<int> slurm_tasks() {
  return number_in_environment("SLURM_STEP_NUM_TASKS");
}

std::string right_command(int processes) {
  return fmt::format(
      "Start it with the mpirun of Open MPI {1}.{2},\n"
      "  mpirun -n {0} meshard ...\n"
      "or, where Slurm and Open MPI were built with PMIx,\n"
      "  srun --mpi=pmix -n {0} meshard ...",
      processes, OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION);
}
}  // namespace

Launch launch_of_environment() {
  if (auto rank = number_in_environment("OMPI_COMM_WORLD_RANK")) {
    return {*rank, number_in_environment("OMPI_COMM_WORLD_SIZE")};
  }
  if (auto rank = number_in_environment("PMIX_RANK")) return {*rank, slurm_tasks()};
  if (auto rank = number_in_environment("PMI_RANK")) return {*rank, number_in_environment("PMI_SIZE")};
  // Not SLURM_PROCID alone: the shell of a batch job has it, too.
  if (slurm_tasks().value_or(1) > 1) return {number_in_environment("SLURM_PROCID").value_or(0), slurm_tasks()};
  return {0, 1};
}

BatchJob batch_job_of_environment() {
  auto chain = text_in_environment("MESHARD_CHAIN");
  auto job = [&](const char* system, const std::string& id, std::optional<int> restarts) {
    auto first = chain.empty() ? id : chain;
    return BatchJob{fmt::format("{} {}", system, id), fmt::format("{} {}", system, first), restarts};
  };
  if (auto id = text_in_environment("SLURM_JOB_ID"); !id.empty()) {
    auto task = text_in_environment("SLURM_ARRAY_TASK_ID");
    if (!task.empty()) id = fmt::format("{}_{}", text_in_environment("SLURM_ARRAY_JOB_ID"), task);
    return job("slurm", id, number_in_environment("SLURM_RESTART_COUNT").value_or(0));
  }
  if (auto id = text_in_environment("PBS_JOBID"); !id.empty()) {
    bool interactive = text_in_environment("PBS_ENVIRONMENT") == "PBS_INTERACTIVE";
    return job("pbs", id, interactive ? std::optional(0) : std::nullopt);
  }
  return {};
}

void check_launcher_environment() {
  if (std::getenv("OMPI_COMM_WORLD_RANK") || std::getenv("PMIX_RANK")) return;
  int processes = launch_of_environment().size.value_or(1);
  if (processes <= 1) return;
  throw ConfigError(fmt::format("{} started {} processes without PMIx: each would be a run of its own. {}",
                                slurm_tasks() ? "srun" : "the launcher of another MPI", processes,
                                right_command(processes)));
}

void check_launched_world(int world_size) {
  int processes = launch_of_environment().size.value_or(1);
  if (world_size > 1 || processes <= 1) return;
  throw ConfigError(fmt::format(
      "{} processes were started, but MPI_COMM_WORLD has only this one: each would be a run of its own. What started "
      "them is not of this program's Open MPI. {}",
      processes, right_command(processes)));
}

}  // namespace meshard
