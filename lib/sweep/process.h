#pragma once
// Other programs: started, waited for, stopped.

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// How a command ended.
struct CommandResult {
  int exit = 0;          ///< its exit code, 128 + n after signal n, 127 if there is no such program
  std::string out, err;  ///< what it printed
};

/// Local. Runs a command to its end, without a shell; standard input is empty. Throws IoError if no process can be
/// made.
CommandResult run_command(const std::vector<std::string>& command);

/// Local. Starts a command in a process group of its own (Ctrl-C does not reach it), standard input empty, output
/// appended to `log`. Should this process die, it gets TERM. Returns its pid. Throws IoError if the log cannot be
/// written or no process can be made; a program that is not there ends with 127 and says so in the log.
pid_t start_command(const std::vector<std::string>& command, const std::filesystem::path& log);

/// Local. An exit code of what waitpid() says: 128 + n after signal n.
int exit_code_of(int wait_status);

/// While it lives, INT, TERM, HUP, USR1 and USR2 are requests to stop instead of ends (but HUP and INT not where this
/// process was started with them ignored). One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Local. The latest signal since the last call, or 0.
  static int take();
};

}  // namespace meshard
