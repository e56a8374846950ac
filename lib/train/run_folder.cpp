#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

constexpr auto kLockPatience = std::chrono::seconds(10);

// Field 22 of /proc/PID/stat, in clock ticks since boot: tells a process from a later one of the same pid.
std::string process_start(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return "";
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) rest >> field;
  return field;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

struct Owner {
  std::string host, start;
  pid_t pid = 0;

  bool dead() const { return host == host_name() && process_start(pid) != start; }
  std::string text() const { return fmt::format("process {} on {}", pid, host); }
};

// An empty or torn lock belongs to a process that died, or is just being written; age decides which.
std::optional<Owner> read_owner(const fs::path& lock) {
  auto json = nlohmann::json::parse(std::ifstream(lock), nullptr, false);
  if (json.is_discarded() || !json.is_object()) return {};
  return Owner{json.value("host", ""), json.value("start", ""), json.value("pid", 0)};
}

bool create_lock(const fs::path& lock) {
  int fd = open(lock.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (fd < 0 && errno == EEXIST) return false;
  if (fd < 0) throw ConfigError(fmt::format("cannot write {}: {}", lock.string(), std::strerror(errno)));
  nlohmann::json owner{{"host", host_name()}, {"pid", getpid()}, {"start", process_start(getpid())}};
  auto text = owner.dump() + "\n";
  auto written = write(fd, text.data(), text.size());
  close(fd);
  if (written == static_cast<ssize_t>(text.size())) return true;
  fs::remove(lock);
  throw ConfigError(fmt::format("cannot write {}: the disk is full", lock.string()));
}

// Leaves out lines of steps that will be done again, so that each step stands once; a torn line too.
// Returns how many.
int cut_steps_after(const fs::path& metrics, std::int64_t step) {
  std::ifstream old(metrics);
  std::string kept;
  int cut = 0;
  for (std::string line; std::getline(old, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    bool keep = json.is_object() && json.value("step", std::int64_t{0}) <= step;
    if (keep) {
      kept += line + "\n";
    } else {
      ++cut;
    }
  }
  RunFolder::write_file(metrics, kept);
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
    if (!problem.empty()) release_lock();
  }
  problem = world.share_text(problem);
  if (!problem.empty()) throw ConfigError(problem);
}

RunFolder::~RunFolder() {
  release_lock();
}

void RunFolder::release_lock() {
  std::error_code ignored;
  if (owns_lock_) fs::remove(path_ / "lock", ignored);
  owns_lock_ = false;
}

void RunFolder::prepare(Resume resume, bool overwrite) {
  if (path_.empty()) throw ConfigError("the run folder has an empty name; give --run-dir a folder");
  std::error_code failed;
  fs::create_directories(path_, failed);
  if (failed) {
    throw ConfigError(fmt::format("cannot make the run folder {}: {}; choose another run.dir or --run-dir",
                                  path_.string(), failed.message()));
  }
  take_lock();
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

void RunFolder::take_lock() {
  auto lock = path_ / "lock";
  auto give_up = std::chrono::steady_clock::now() + kLockPatience;
  while (!create_lock(lock)) {
    auto owner = read_owner(lock);
    bool late = std::chrono::steady_clock::now() > give_up;
    if (owner ? owner->dead() : late) {
      fs::remove(lock);
    } else if (late) {
      throw ConfigError(
          fmt::format("the run folder {} is locked by {}: wait for it to end, or choose another run.name; "
                      "if that process is gone, remove {}",
                      path_.string(), owner->text(), lock.string()));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }
  owns_lock_ = true;
}

void RunFolder::write_file(const fs::path& file, const std::string& text) {
  auto partial = file;
  partial += ".partial";
  std::ofstream stream(partial);
  stream << text;
  stream.close();
  std::error_code failed;
  if (!stream) failed = std::error_code(errno, std::generic_category());
  if (!failed) fs::rename(partial, file, failed);
  if (!failed) return;
  std::error_code ignored;
  fs::remove(partial, ignored);
  throw IoError(fmt::format("cannot write {}: {}", file.string(), failed.message()));
}

}  // namespace meshard
