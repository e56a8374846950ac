#pragma once
// One function per subcommand: adds it, with its options and examples, to the command line. `run` receives what to do
// once the line is parsed, returning the exit code.

#include <CLI/CLI.hpp>
#include <functional>

namespace meshard {

using Command = std::function<int()>;

/// Local.
void add_train(CLI::App& app, Command& run);
/// Local.
void add_eval(CLI::App& app, Command& run);
/// Local.
void add_export(CLI::App& app, Command& run);
/// Local.
void add_inspect(CLI::App& app, Command& run);
/// Local.
void add_plan(CLI::App& app, Command& run);
/// Local.
void add_compare(CLI::App& app, Command& run);
/// Local.
void add_preflight(CLI::App& app, Command& run);
/// Local.
void add_report(CLI::App& app, Command& run);
/// Local.
void add_sweep(CLI::App& app, Command& run);

}  // namespace meshard
