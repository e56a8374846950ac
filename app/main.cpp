// The command line. Catches what the commands throw; with World::abandon and the watchdog the only place that ends the
// process.

#include <malloc.h>

#include <climits>

#include "app/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "train/run.h"

namespace {

// Step after step allocates the same large blocks. glibc would give each back to the kernel and fault it in again, page
// by page: a tenth of a small step.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace meshard;
  keep_freed_memory();

  CLI::App app("Trains transformer language models on clusters, sharded over MPI or NCCL.", "meshard");
  app.set_version_flag("--version", [] { return version_text(); });
  app.require_subcommand(1);
  Command run;
  add_train(app, run);
  add_plan(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kExitUsage;
  }

  try {
    return run();
  } catch (const Error& error) {
    Log::error(error.what());
    return error.code();
  } catch (const std::exception& error) {
    Log::error(error.what());
    return kExitFailure;
  }
}
