#include "train/run_folder.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "base/whole_file.h"
#include "checkpoint/store.h"
#include "comm/world/launcher.h"

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

// The job that made a folder, at its latest start there; none if nobody says.
BatchJob read_job(const fs::path& file) {
  nlohmann::json json;
  try {
    json = read_json_file<nlohmann::json>(file);
  } catch (const IoError&) {
    return {};
  }
  if (!json.is_object()) return {};
  auto text = [&](const char* name) {
    return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : "";
  };
  BatchJob job{text("job"), text("chain"), {}};
  if (json.contains("restarts") && json["restarts"].is_number_integer()) job.restarts = json["restarts"].get<int>();
  return job;
}

void write_job(const fs::path& file, const BatchJob& job) {
  nlohmann::ordered_json json{{"job", printable(job.id)}, {"chain", printable(job.chain)}};
  if (job.restarts) json["restarts"] = *job.restarts;
  write_whole_file(file, json_text(json) + "\n");
}

bool same_chain(const BatchJob& maker, const BatchJob& now) {
  return !now.id.empty() && (maker.id == printable(now.id) || maker.chain == printable(now.chain));
}

// The batch system gave `now` the command of an earlier start, rather than its script another command.
bool is_earlier_start(const BatchJob& maker, const BatchJob& now) {
  bool same_start = maker.id == printable(now.id) && now.restarts && maker.restarts == now.restarts;
  return same_chain(maker, now) && !same_start;
}

}  // namespace

bool RunFolder::has_checkpoint_of_this_job(const fs::path& path) {
  CheckpointStore store(posix_file_system(), path / "checkpoints");
  return is_earlier_start(read_job(path / "job.json"), batch_job_of_environment()) && !store.complete().empty();
}

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
  goes_on_ = world.share_text(goes_on_ ? "yes" : "") == "yes";
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
  auto maker = read_job(this->job());
  goes_on_ = used && is_earlier_start(maker, job) && (overwrite || resume == Resume::From);
  bool anew = !used || (overwrite && !goes_on_);
  if (anew) fs::remove(this->job());  // before what it speaks of
  if (used && anew) {
    for (auto& file : {metrics(), log(), config(), stop()}) fs::remove(file);
    for (auto& folder : {dump(), checkpoints()}) fs::remove_all(folder);
  } else if (used && resume != Resume::Auto && !goes_on_) {
    bool saved = !CheckpointStore(posix_file_system(), checkpoints()).complete().empty();
    throw ConfigError(
        fmt::format("the run folder {} holds an earlier run{}: choose another run.name or --run-dir, {}--overwrite to "
                    "start it anew",
                    path_.string(), saved ? "" : " without a checkpoint",
                    saved ? "pass --resume auto to continue it, or " : "or pass "));
  }
  used_ = used && !anew;
  if (!job.id.empty() && (anew || same_chain(maker, job))) write_job(this->job(), job);
  fs::create_directories(dump());
}

int RunFolder::cut_metrics_after(std::int64_t step) {
  return fs::is_regular_file(metrics()) ? cut_steps_after(metrics(), step) : 0;
}

}  // namespace meshard
