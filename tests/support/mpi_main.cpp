#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_ALTERNATIVE_INIT_API
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <boost/test/results_collector.hpp>
#include <boost/test/results_reporter.hpp>
#include <boost/test/tree/observer.hpp>
#include <boost/test/tree/test_unit.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "support/mpi_test.h"
#ifdef MESHARD_NCCL_STUB
#include "support/nccl_stub.h"
#endif

using namespace meshard;

namespace {

constexpr int kSkipped = 77;  // ctest's SKIP_RETURN_CODE
/// A rank that failed waits this long for the others to end the test case; they may be stuck in a collective with it.
constexpr double kPatienceSeconds = 5.0;
constexpr std::chrono::seconds kHangTimeout{30};

std::optional<World> world;
std::string folder;
std::ostringstream boost_log;
bool any_failed = false;
MPI_Comm verdicts = MPI_COMM_NULL;

/// What Boost said on this rank since the last call, each line with the rank.
void print_log() {
  std::istringstream lines(boost_log.str());
  boost_log.str("");
  std::string text;
  for (std::string line; std::getline(lines, line);) text += fmt::format("[rank {}] {}\n", world->rank(), line);
  if (!text.empty()) std::fputs(text.c_str(), stderr);
}

/// The number of ranks on which the case failed; ends the run if this rank failed and the others do not come.
int failures_everywhere(const std::string& name, bool failed) {
  int mine = failed, sum = 0, done = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, verdicts, &request);
  for (double start = MPI_Wtime(); !done;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (!done) ::usleep(100);
    if (!done && failed && MPI_Wtime() - start > kPatienceSeconds) {
      Log::error(fmt::format("[rank {}] failed {}, and the other ranks do not end it", world->rank(), name));
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  return sum;
}

class Verdict : public boost::unit_test::test_observer {
 public:
  void test_unit_finish(const boost::unit_test::test_unit& unit, unsigned long elapsed_microseconds) override {
    if (unit.p_type != boost::unit_test::TUT_CASE) return;
    bool failed = !boost::unit_test::results_collector.results(unit.p_id).passed();
    if (failed) print_log();
    boost_log.str("");
    int failures = failures_everywhere(unit.p_name, failed);
    any_failed = any_failed || failures > 0;
    if (world->rank() != 0) return;
    auto verdict = failures == 0 ? std::string("ok") : fmt::format("FAILED on {} ranks", failures);
    std::printf("%s: %s (%lu ms)\n", unit.p_name.get().c_str(), verdict.c_str(), elapsed_microseconds / 1000);
    std::fflush(stdout);
  }
};

std::string wanted_backend_name() {
  const char* name = std::getenv("MESHARD_TEST_BACKEND");
  return name ? name : "mpi";
}

Backend wanted_backend() {
  auto name = wanted_backend_name();
  if (name == "mpi") return Backend::Mpi;
  return name.starts_with("nccl") ? Backend::Nccl : Backend::Auto;
}


MpiProgress wanted_progress() {
  const char* name = std::getenv("MESHARD_TEST_PROGRESS");
  return name && std::string(name) == "thread" ? MpiProgress::Thread : MpiProgress::Auto;
}

void make_folder() {
  folder =
      world->share_text((std::filesystem::temp_directory_path() / fmt::format("meshard-test-{}", ::getpid())).string());
  if (world->rank() == 0) std::filesystem::create_directories(folder);
  world->control().barrier();
}

int run(int argc, char** argv) {
  make_folder();
  MPI_Comm_dup(MPI_COMM_WORLD, &verdicts);
  static Verdict verdict;
  auto init = [] {
    boost::unit_test::unit_test_log.set_stream(boost_log);
    boost::unit_test::unit_test_log.set_threshold_level(boost::unit_test::log_all_errors);
    boost::unit_test::results_reporter::set_level(boost::unit_test::NO_REPORT);
    boost::unit_test::framework::register_observer(verdict);
    return true;
  };
  int boost_code = boost::unit_test::unit_test_main(init, argc, argv);
  print_log();
  int failures = failures_everywhere("the test program", boost_code != 0);
  world->control().barrier();
  if (world->rank() == 0) std::filesystem::remove_all(folder);
  MPI_Comm_free(&verdicts);
  return any_failed || failures > 0 ? 1 : 0;
}

}  // namespace

#ifdef MESHARD_NCCL_STUB
nccl_stub::Devices* nccl_stub::test_devices() {
  auto name = wanted_backend_name();
  if (name != "nccl-late" && name != "nccl-early") return nullptr;
  ::setenv("MESHARD_CHECK_ORDER", "1", /*overwrite=*/0);
  static Devices devices(name == "nccl-early" ? std::optional(17u) : std::nullopt);
  return &devices;
}
#endif

World& test_world() {
  return *world;
}
const std::string& test_folder() {
  return folder;
}

int main(int argc, char** argv) {
  try {
    WorldOptions options;
    options.backend = wanted_backend();
    options.progress = wanted_progress();
    options.timeout = kHangTimeout;
#ifdef MESHARD_NCCL_STUB
    options.devices = nccl_stub::test_devices();
#endif
    world.emplace(options);
  } catch (const ConfigError& error) {
    if (launch_of_environment().rank == 0) Log::error(fmt::format("skipped: {}", error.what()));
    return kSkipped;
  }
  int code = run(argc, argv);
  world.reset();
  std::fflush(nullptr);
  std::_Exit(code);  // as the binary ends: what LibTorch would take apart is a third of a short test
}
