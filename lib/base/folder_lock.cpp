#include "base/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

constexpr auto kTimeToWrite = std::chrono::seconds(10);

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
  return printable(name);  // as the lock, which is JSON, can hold it
}

struct Owner {
  std::string host, start;
  pid_t pid = 0;
  FolderLock::Job job;

  bool dead() const { return host == host_name() && process_start(pid) != start; }
  bool is_earlier_start_of(const FolderLock::Job& now) const {
    bool same = host != host_name() && !job.id.empty() && job.id == now.id;
    return same && (!now.restarts || job.restarts.value_or(0) < *now.restarts);
  }
  std::string text() const { return fmt::format("process {} on {}", pid, host); }
};

// An empty or torn lock belongs to a process that died, or is just being written; age decides which.
std::optional<Owner> read_owner(const fs::path& lock) {
  try {
    auto json = read_json_file<nlohmann::json>(lock);
    Owner owner{json.at("host"), json.at("start"), json.at("pid"), {json.value("job", ""), {}}};
    if (json.contains("restarts")) owner.job.restarts = json["restarts"].get<int>();
    return owner;
  } catch (const IoError&) {
    return {};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

bool create_lock(const fs::path& lock, const FolderLock::Job& job) {
  int fd = open(lock.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0 && errno == EEXIST) return false;
  if (fd < 0) throw ConfigError(fmt::format("cannot write {}: {}", lock.string(), std::strerror(errno)));
  nlohmann::json owner{{"host", host_name()}, {"pid", getpid()}, {"start", process_start(getpid())}};
  if (!job.id.empty()) owner["job"] = job.id;
  if (job.restarts) owner["restarts"] = *job.restarts;
  auto text = json_text(owner) + "\n";
  auto written = write(fd, text.data(), text.size());
  close(fd);
  if (written == static_cast<ssize_t>(text.size())) return true;
  fs::remove(lock);
  throw ConfigError(fmt::format("cannot write {}: the disk is full", lock.string()));
}

/// Only one process of this host at a time looks at the lock and removes it: a second one that had read the dead
/// owner's name would remove the lock of the first. Only this host's processes find an owner dead.
class Turn {
 public:
  explicit Turn(const fs::path& folder) : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ >= 0) flock(fd_, LOCK_EX);
  }
  ~Turn() {
    if (fd_ >= 0) close(fd_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  int fd_;
};

}  // namespace

FolderLock::FolderLock(const fs::path& folder, const Words& words, std::chrono::milliseconds patience, const Job& job)
    : file_(folder / "lock") {
  auto give_up = std::chrono::steady_clock::now() + patience;
  while (true) {
    {
      Turn turn(folder);
      if (create_lock(file_, job)) return;
      auto owner = read_owner(file_);
      bool late = std::chrono::steady_clock::now() > give_up;
      if (owner ? owner->dead() || owner->is_earlier_start_of(job) : late) {
        fs::remove(file_);
        continue;
      }
      if (late) {
        throw ConfigError(
            fmt::format("the {} {} is locked by {}: wait for it to end, or {}; if that process is gone, remove {}",
                        words.folder, folder.string(), owner->text(), words.remedy, file_.string()));
      }
    }
    std::this_thread::sleep_for(std::min(patience, std::chrono::milliseconds(200)));
  }
}

FolderLock::~FolderLock() {
  std::error_code ignored;
  fs::remove(file_, ignored);
}

std::optional<FolderLock::Holder> FolderLock::holder(const fs::path& folder) {
  auto lock = folder / "lock";
  std::error_code failed;
  auto written = fs::last_write_time(lock, failed);
  if (failed) return {};
  if (auto owner = read_owner(lock)) {
    return owner->dead() ? std::nullopt
                         : std::optional(Holder{owner->text(), owner->host == host_name(), owner->job.id});
  }
  if (fs::file_time_type::clock::now() - written > kTimeToWrite) return {};
  return Holder{"a process that is about to write its name", true, ""};
}

bool FolderLock::remove(const fs::path& folder, const Holder& gone) {
  Turn turn(folder);
  auto owner = read_owner(folder / "lock");
  std::error_code failed;
  return owner && owner->text() == gone.text && owner->job.id == gone.job && fs::remove(folder / "lock", failed);
}

}  // namespace meshard
