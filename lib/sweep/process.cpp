#include "sweep/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace meshard {

namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
std::array<struct sigaction, kStopSignals.size()> old_actions;
std::atomic<int> last_signal = 0;

void note_signal(int number) {
  last_signal = number;
}

struct FileDescriptor {
  int fd = -1;
  FileDescriptor(int opened, const std::string& what) : fd(opened) {
    if (fd < 0) throw IoError(fmt::format("cannot open {}: {}", what, std::strerror(errno)));
  }
  ~FileDescriptor() { close(fd); }
  FileDescriptor(const FileDescriptor&) = delete;
};

/// Between fork and exec: nothing here may allocate.
[[noreturn]] void become(char* const* words, int in, int out, int err, pid_t parent, bool own_group) {
  if (own_group) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(kExitFailure);
  }
  for (auto number : kStopSignals) signal(number, SIG_DFL);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvp(words[0], words);
  dprintf(STDERR_FILENO, "cannot start %s: %s\n", words[0], std::strerror(errno));
  _exit(127);
}

pid_t fork_command(const std::vector<std::string>& command, int out, int err, bool own_group) {
  FileDescriptor in(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
  std::vector<char*> words;
  for (auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would take the exit code from us
  auto parent = getpid();
  auto pid = fork();
  if (pid == 0) become(words.data(), in.fd, out, err, parent, own_group);
  if (pid < 0) throw IoError(fmt::format("cannot start {}: {}", command.front(), std::strerror(errno)));
  return pid;
}

std::string text_from(std::FILE* file) {
  std::string text;
  std::rewind(file);
  std::array<char, 4096> block;
  while (auto size = std::fread(block.data(), 1, block.size(), file)) text.append(block.data(), size);
  return text;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& command) {
  auto temporary = [] { return std::unique_ptr<std::FILE, int (*)(std::FILE*)>(std::tmpfile(), std::fclose); };
  auto out = temporary(), err = temporary();
  if (!out || !err) throw IoError(fmt::format("cannot make a temporary file: {}", std::strerror(errno)));
  auto pid = fork_command(command, fileno(out.get()), fileno(err.get()), false);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return {exit_code_of(status), text_from(out.get()), text_from(err.get())};
}

pid_t start_command(const std::vector<std::string>& command, const std::filesystem::path& log) {
  FileDescriptor out(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), log.string());
  return fork_command(command, out.fd, out.fd, true);
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

StopSignals::StopSignals() {
  last_signal = 0;
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], nullptr, &old_actions[i]);
    bool may_be_ignored = kStopSignals[i] == SIGHUP || kStopSignals[i] == SIGINT;
    if (may_be_ignored && old_actions[i].sa_handler == SIG_IGN) continue;
    sigaction(kStopSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &old_actions[i], nullptr);
}

int StopSignals::take() {
  return last_signal.exchange(0);
}

}  // namespace meshard
