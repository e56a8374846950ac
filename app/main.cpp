// The command line. Catches what the commands throw; with World::abandon and the watchdog the only place that ends the
// process.

#include <malloc.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "app/command_line.h"
#include "app/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/world/launcher.h"
#include "train/run.h"

namespace {

// Step after step allocates the same large blocks. glibc would give each back to the kernel and fault it in again, page
// by page: a tenth of a small step.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
}

int command_line(int argc, char** argv) {
  using namespace meshard;
  // What is wrong before MPI is up is wrong on every rank: one says it.
  const bool speaks = launch_of_environment().rank == 0;

  CLI::App app("Trains transformer language models on clusters, sharded over MPI or NCCL.", "meshard");
  app.set_version_flag("--version", [] { return version_text(); });
  app.require_subcommand(1);
  app.footer(
      "Examples:\n  meshard plan configs/quickstart.yaml --ranks 4\n"
      "  mpirun -n 4 meshard train configs/quickstart.yaml\n"
      "  meshard compare runs/before runs/after\n"
      "  meshard train --help");
  Command run;
  add_train(app, run);
  add_plan(app, run);
  add_inspect(app, run);
  add_export(app, run);
  add_eval(app, run);
  add_compare(app, run);
  add_preflight(app, run);
  add_report(app, run);
  add_sweep(app, run);
  if (auto problem = argument_that_is_no_text(argc, argv)) {
    if (speaks) Log::error(*problem);
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // help and version too
    std::ostringstream out, complaint;
    int code = app.exit(error, out, complaint);
    if (speaks) Log::output(out.str());
    if (code == 0) return kExitDone;
    auto meant = probably_meant(app, argc, argv);
    if (speaks) Log::error(complaint.str().substr(0, complaint.str().find_last_not_of('\n') + 1));
    if (speaks && !meant.empty()) Log::error(meant);
    return kExitUsage;
  }

  try {
    return run();
  } catch (const Error& error) {
    if (speaks) Log::error(error.what());
    return error.code();
  } catch (const std::exception& error) {
    Log::error(message_of(error));
    return kExitFailure;
  }
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  int code = command_line(argc, argv);
  // By now MPI is down and every file closed. LibTorch would take its tables of operators apart, entry by entry: a
  // third of the time that a short command takes.
  std::fflush(nullptr);
  std::_Exit(code);
}
