#include "app/command_line.h"

#include <fmt/format.h>

#include "base/text.h"
#include "config/words.h"

namespace meshard {

namespace {

std::string suggestion(const std::string& written, const std::vector<std::string>& known) {
  auto hint = nearest_word(written, {known.begin(), known.end()});
  return hint ? fmt::format("`{}` is not known; did you mean `{}`?", written, *hint) : "";
}

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (auto* option : command.get_options()) {
    for (auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

std::optional<std::string> argument_that_is_no_text(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    auto first = first_invalid_utf8(argument);
    if (first == argument.size()) continue;
    return fmt::format(
        "argument {}, `{}`: byte 0x{:02x} at column {} is not UTF-8; expected UTF-8, as files of a run hold it", i,
        printable(argument), static_cast<unsigned char>(argument[first]), first + 1);
  }
  return {};
}

std::string probably_meant(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> commands;
  for (auto* command : app.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(command->get_name());
  const std::string first = argc > 1 ? argv[1] : "";
  auto parsed = app.get_subcommands();
  if (parsed.empty()) return first.starts_with('-') ? suggestion(first, options_of(app)) : suggestion(first, commands);
  for (auto& extra : app.remaining(true)) {
    if (extra.starts_with("--")) return suggestion(extra.substr(0, extra.find('=')), options_of(*parsed.front()));
  }
  return "";
}

}  // namespace meshard
