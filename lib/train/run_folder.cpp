#include "train/run_folder.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/whole_file.h"
#include "comm/launcher.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

constexpr auto kLockPatience = std::chrono::seconds(10);

// Leaves out lines of steps that will be done again, so that each step stands once; a torn line too.
// Returns how many.
int cut_steps_after(const fs::path& metrics, std::int64_t step) {
  std::ifstream old(metrics);
  std::string kept;
  int cut = 0;
  for (std::string line; std::getline(old, line);) {
    auto json = read_json_if_sound<nlohmann::json>(line);
    bool keep = json && json->is_object() && json->value("step", std::int64_t{0}) <= step;
    if (keep) {
      kept += line + "\n";
    } else {
      ++cut;
    }
  }
  if (old.bad()) throw IoError(fmt::format("cannot read {}: no memory, or the disk", metrics.string()));
  write_whole_file(metrics, kept);
  return cut;
}

}  // namespace

RunFolder::RunFolder(World& world, fs::path path, Resume resume, bool overwrite) : path_(std::move(path)) {
  std::string problem;
  if (world.rank() == 0) {
    try {
      prepare(resume, overwrite);
    } catch (const fs::filesystem_error& error) {
      problem = fmt::format("the run folder {} cannot be used: {}: {}", path_.string(), error.path1().string(),
                            error.code().message());
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (!problem.empty()) lock_.reset();
  }
  problem = world.share_text(problem);
  if (!problem.empty()) throw ConfigError(problem);
}

void RunFolder::prepare(Resume resume, bool overwrite) {
  if (path_.empty()) throw ConfigError("the run folder has an empty name; give --run-dir a folder");
  std::error_code failed;
  fs::create_directories(path_, failed);
  if (failed) {
    throw ConfigError(fmt::format("cannot make the run folder {}: {}; choose another run.dir or --run-dir",
                                  path_.string(), failed.message()));
  }
  auto job = batch_job_of_environment();
  lock_.emplace(path_, FolderLock::Words{"run folder", "choose another run.name"}, kLockPatience,
                FolderLock::Job{job.id, job.restarts});
  bool used = fs::exists(metrics()) || fs::exists(checkpoints());
  if (used && overwrite) {
    for (auto& file : {metrics(), log(), config(), stop()}) fs::remove(file);
    for (auto& folder : {dump(), checkpoints()}) fs::remove_all(folder);
  } else if (used && resume == Resume::None) {
    throw ConfigError(
        fmt::format("the run folder {} holds an earlier run: choose another run.name or --run-dir, "
                    "pass --resume auto to continue it, or --overwrite to start it anew",
                    path_.string()));
  }
  used_ = used && !overwrite;
  fs::create_directories(dump());
}

int RunFolder::cut_metrics_after(std::int64_t step) {
  return fs::is_regular_file(metrics()) ? cut_steps_after(metrics(), step) : 0;
}

}  // namespace meshard
