#pragma once
// One process at a time works in a folder: its file `lock` says which one (host, pid, start time).

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace meshard {

class FolderLock {
 public:
  /// How a refusal names the folder, and what the user may do besides waiting.
  struct Words {
    std::string folder;  ///< "run folder"
    std::string remedy;  ///< "choose another run.name"
  };

  /// The batch job that this process belongs to. The node of a job may die with the lock taken; its restart on another
  /// node knows that nobody is left.
  struct Job {
    std::string id;               ///< "slurm 1234"; empty: none
    std::optional<int> restarts;  ///< how often it was restarted, where the batch system says so
  };

  /// Local. Takes the lock of an existing folder: waits up to `patience` for its owner to leave, takes over that of a
  /// dead process of this host or of an earlier start of `job` on another host at once, and one that names nobody (its
  /// writer died, or is about to write) after `patience`. Throws ConfigError naming the folder and the owner, or why
  /// the lock cannot be written.
  FolderLock(const std::filesystem::path& folder, const Words& words, std::chrono::milliseconds patience,
             const Job& job = {});
  /// Local. Gives the lock up.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  struct Holder {
    std::string text;   ///< "process 12 on node3"
    bool here = false;  ///< on this host, so known to be alive
    std::string job;    ///< its batch job, as Job::id
  };

  /// Local. Who works in `folder`; nothing if nobody does, or a process that is known to be dead. Of processes on other
  /// hosts nothing is known: they count as alive.
  static std::optional<Holder> holder(const std::filesystem::path& folder);

  /// Local. Removes the lock of a holder that is known to be gone, as its batch job is over. Does nothing if somebody
  /// else has taken it meanwhile. Returns whether it was removed.
  static bool remove(const std::filesystem::path& folder, const Holder& gone);

 private:
  std::filesystem::path file_;
};

}  // namespace meshard
