#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/folder_lock.h"
#include "runs/state.h"

using namespace meshard;
namespace fs = std::filesystem;

namespace {

const FolderLock::Words kWords{"run folder", "choose another run.name"};

struct StateFolder {
  fs::path folder = fs::temp_directory_path() / ("meshard-state-" + std::to_string(getpid()));
  StateFolder() { fs::create_directory(folder); }
  ~StateFolder() { fs::remove_all(folder); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  /// The lock of another process; this one's start time is not "1".
  void write_lock(const std::string& host, int pid, const std::string& start) const {
    write("lock", nlohmann::json{{"host", host}, {"pid", pid}, {"start", start}}.dump());
  }
  std::string phase(const std::string& metrics) const {
    write("metrics.jsonl", metrics);
    return to_string(run_state(folder).phase);
  }
  std::string refusal(const std::string& metrics) const {
    try {
      return phase(metrics);
    } catch (const IoError& error) {
      return error.what();
    }
  }
};

std::string this_host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string end_line(int exit) {
  return nlohmann::json{{"end", {{"exit", exit}, {"step", 2}, {"reason", "because"}}}}.dump() + "\n";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kStart = "{\"header\":{\"ranks\":2}}\n";
const std::string kSteps = "{\"step\":1,\"loss\":3.0}\n{\"step\":2,\"loss\":2.0}\n{\"step\":2,\"eval_loss\":2.5}\n";

}  // namespace

// Catches: a run told done, or to be continued, that is not; an old end that counts after a new start.
BOOST_FIXTURE_TEST_CASE(the_last_start_and_its_end_decide, StateFolder) {
  BOOST_TEST(to_string(run_state(folder).phase) == "missing");
  BOOST_TEST(to_string(run_state(folder / "nowhere").phase) == "missing");
  BOOST_TEST(phase("") == "died");
  BOOST_TEST(phase(kStart + kSteps) == "died");
  BOOST_TEST(phase(kStart + kSteps + end_line(0)) == "done");
  BOOST_TEST(phase(kStart + kSteps + end_line(75)) == "preempted");
  for (int exit : {2, 70, 76, 137}) BOOST_TEST(phase(kStart + kSteps + end_line(exit)) == "failed");
  BOOST_TEST(phase(kStart + kSteps + end_line(75) + kStart) == "died");
  BOOST_TEST(phase(kStart + end_line(75) + kStart + kSteps + end_line(0)) == "done");
  BOOST_TEST(phase(kStart + end_line(0) + kStart + end_line(70)) == "failed");
}

// Catches: requeues that are miscounted, a step or a reason of an earlier line.
BOOST_FIXTURE_TEST_CASE(starts_steps_and_the_end_are_read, StateFolder) {
  write("metrics.jsonl", kStart + kSteps + end_line(75) + kStart + "{\"step\":3,\"loss\":1.0}\n");
  auto state = run_state(folder);
  BOOST_TEST(state.starts == 2);
  BOOST_TEST(state.step == 3);
  BOOST_TEST(state.exit.value() == 75);
  BOOST_TEST(state.reason == "because");
  // Keys in another order, as another tool may write them.
  write("metrics.jsonl", " {\"loss\":1.0,\"step\":7}\n{\"v\":1,\"header\":{}}\n");
  state = run_state(folder);
  BOOST_TEST(state.starts == 1);
  BOOST_TEST(state.step == 7);
  BOOST_TEST(!state.exit.has_value());
}

// Catches: a running run started a second time; one whose node is unknown taken for dead; a dead one waited for.
BOOST_FIXTURE_TEST_CASE(the_lock_tells_running_from_died, StateFolder) {
  {
    FolderLock lock(folder, kWords, std::chrono::milliseconds(0));
    BOOST_TEST(phase(kStart + kSteps) == "running");
    BOOST_TEST(phase(kStart + kSteps + end_line(75)) == "preempted");
  }
  BOOST_TEST(phase(kStart + kSteps) == "died");
  write_lock("another-host", 1, "1");
  BOOST_TEST(phase(kStart) == "running");
  write_lock(this_host(), getpid(), "1");  // the pid lives, but began later
  BOOST_TEST(phase(kStart) == "died");
  write_lock(this_host(), 1 << 23, "1");  // no such process
  BOOST_TEST(phase(kStart) == "died");
  write("lock", "");
  BOOST_TEST(phase(kStart) == "running");
  fs::last_write_time(folder / "lock", fs::file_time_type::clock::now() - std::chrono::seconds(60));
  BOOST_TEST(phase(kStart) == "died");
}

// Catches: half a line that counts: an end that was not written, a step number cut short.
BOOST_FIXTURE_TEST_CASE(a_torn_last_line_counts_as_not_written, StateFolder) {
  auto last = end_line(0);
  last.pop_back();
  for (std::size_t size = 1; size < last.size(); ++size) {
    BOOST_TEST(phase(kStart + kSteps + last.substr(0, size)) == "died");
  }
  BOOST_TEST(phase(kStart + kSteps + last) == "done");
  write("metrics.jsonl", kStart + kSteps + "{\"step\":3");
  BOOST_TEST(run_state(folder).step == 2);
  write("metrics.jsonl", kSteps + "{\"header\":{");
  BOOST_TEST(run_state(folder).starts == 0);
}

// Catches: a file of something else read as a run, a damaged one without its place.
BOOST_FIXTURE_TEST_CASE(what_is_no_run_is_refused, StateFolder) {
  for (const char* line : {"\n", "hello\n", "[1]\n", "{\"step\":x}\n", "{\"end\":{}}\n"}) {
    BOOST_TEST(has(refusal(kStart + line + kSteps), "metrics.jsonl:2: no line of a run"));
  }
  fs::remove(folder / "metrics.jsonl");
  fs::create_directory(folder / "metrics.jsonl");
  BOOST_CHECK_EXCEPTION(run_state(folder), IoError,
                        [](const IoError& error) { return has(error.what(), "no regular file"); });
}

// Catches: a line that a later version adds, or another's spacing, which makes a run unreadable.
BOOST_FIXTURE_TEST_CASE(unknown_lines_are_passed_over, StateFolder) {
  write("metrics.jsonl", kStart + "{\"loss\":1.0}\n" + kSteps + "{\"step\": 7, \"loss\": 1.0}\n");
  BOOST_TEST(run_state(folder).step == 7);
}

// Catches: a lock with other contents than ours, which ends whoever looks at it.
BOOST_FIXTURE_TEST_CASE(odd_locks_name_nobody, StateFolder) {
  for (const char* lock :
       {"", "{", "[1]", "{\"host\": 1, \"pid\": \"x\"}", "{\"host\": \"a\", \"start\": 3, \"pid\": 1}"}) {
    write("lock", lock);
    fs::last_write_time(folder / "lock", fs::file_time_type::clock::now() - std::chrono::minutes(1));
    BOOST_TEST(!FolderLock::holder(folder));
  }
}

// Catches: a job that its own dead node keeps out when it is restarted on another, or that takes a live job's folder.
BOOST_FIXTURE_TEST_CASE(a_restarted_job_takes_its_own_lock, StateFolder) {
  auto takes = [&](const std::string& owner, const FolderLock::Job& job) {
    write("lock", R"({"host": "a-node-that-died", "start": "1", "pid": 1)" + owner + "}");
    try {
      FolderLock lock(folder, {"run folder", "wait"}, std::chrono::milliseconds(0), job);
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  };
  const std::string first = R"(, "job": "slurm 7", "restarts": 0)";
  BOOST_TEST(takes(first, {"slurm 7", 1}));
  BOOST_TEST(!takes(first, {"slurm 7", 0}));
  BOOST_TEST(!takes(first, {"slurm 8", 1}));
  BOOST_TEST(!takes(first, {}));
  BOOST_TEST(!takes("", {"slurm 7", 1}));
  BOOST_TEST(takes(R"(, "job": "pbs 7.server")", {"pbs 7.server", {}}));
}

// Catches: a state that takes as long as reading all metrics; a report asks for fifty.
BOOST_FIXTURE_TEST_CASE(a_long_run_is_read_at_once, StateFolder) {
  std::string metrics = kStart, padding(1000, 'x');
  for (int step = 1; step <= 10000; ++step) {
    metrics += "{\"step\":" + std::to_string(step) + ",\"loss\":1.0,\"note\":\"" + padding + "\"}\n";
  }
  write("metrics.jsonl", metrics + end_line(0));
  auto begin = std::chrono::steady_clock::now();
  auto state = run_state(folder);
  auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  BOOST_TEST(state.step == 10000);
  BOOST_TEST_MESSAGE("10,000 lines: " << seconds * 1e3 << " ms");
  BOOST_TEST(seconds < 1.0);  // 10 ms on an idle machine; parsing every line takes many times that
}

// Catches: a lock that two hold, that outlives its owner, or whose owner is not named.
BOOST_FIXTURE_TEST_CASE(a_folder_has_one_owner, StateFolder) {
  using std::chrono::milliseconds;
  auto take = [&](int patience) -> std::string {
    try {
      FolderLock lock(folder, kWords, milliseconds(patience));
      return "taken";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  auto here = "process " + std::to_string(getpid()) + " on " + this_host();
  {
    FolderLock lock(folder, kWords, milliseconds(0));
    BOOST_TEST(FolderLock::holder(folder).value().text == here);
    BOOST_TEST(FolderLock::holder(folder).value().here);
    auto refusal = take(0);
    for (auto& part : {"the run folder " + folder.string() + " is locked by " + here, kWords.remedy,
                       "remove " + (folder / "lock").string()}) {
      BOOST_TEST(has(refusal, part));
    }
  }
  BOOST_TEST(!FolderLock::holder(folder).has_value());
  BOOST_TEST(take(0) == "taken");
  write_lock(this_host(), getpid(), "1");
  BOOST_TEST(take(0) == "taken");
  write("lock", "{\"ho");
  BOOST_TEST(take(50) == "taken");
  write_lock("another-host", 7, "1");
  BOOST_TEST(!FolderLock::holder(folder).value().here);
  BOOST_TEST(has(take(0), "process 7 on another-host"));
  BOOST_TEST(has(take(0), "process 7 on another-host"));  // nor is it removed
  auto waiting = std::thread([&] {
    std::this_thread::sleep_for(milliseconds(100));
    fs::remove(folder / "lock");
  });
  BOOST_TEST(take(5000) == "taken");
  waiting.join();
}

// Catches: two processes that find a dead owner at the same moment and both take the folder.
BOOST_FIXTURE_TEST_CASE(a_dead_owner_has_one_heir, StateFolder) {
  for (int round = 0; round < 20; ++round) {
    write_lock(this_host(), 1 << 23, "1");
    std::vector<std::thread> heirs;
    std::atomic<int> owners = 0, tried = 0;
    for (int i = 0; i < 4; ++i) {
      heirs.emplace_back([&] {
        try {
          FolderLock lock(folder, kWords, std::chrono::milliseconds(0));
          ++owners, ++tried;
          while (tried < 4) std::this_thread::yield();
        } catch (const ConfigError&) {
          ++tried;
        }
      });
    }
    for (auto& heir : heirs) heir.join();
    BOOST_TEST(owners == 1);
  }
}
