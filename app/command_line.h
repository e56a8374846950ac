#pragma once
// What is said of a command line that cannot be read.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace meshard {

/// Local. The first argument that is not UTF-8, with its place and byte: no file of a run could hold it.
std::optional<std::string> argument_that_is_no_text(int argc, char** argv);

/// Local. The subcommand or option that was probably meant by the first argument that `app` does not know, as a
/// sentence; empty if none is near.
std::string probably_meant(const CLI::App& app, int argc, char** argv);

}  // namespace meshard
