#include "config/yaml_faults.h"

#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>

#include <algorithm>

#include "base/text.h"

namespace meshard {
namespace {

constexpr std::string_view kBlanks = " \t";

TextFault at(std::string_view text, std::size_t offset, std::string what) {
  auto before = text.substr(0, offset);
  auto line = static_cast<int>(std::ranges::count(before, '\n'));
  auto begin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return {line + 1, static_cast<int>(offset - begin) + 1, std::move(what)};
}

bool is_foreign(char c) {
  auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7f;
}

// The tab that indents the line where a parser stopped, or the one before. Within brackets and quotes tabs are legal.
std::optional<TextFault> indenting_tab(std::string_view text, int stopped) {
  std::size_t begin = 0;
  for (int line = 1; line <= stopped && begin < text.size(); ++line) {
    auto end = std::min(text.find('\n', begin), text.size());
    auto blanks = std::min(text.find_first_not_of(kBlanks, begin), end);
    auto tab = text.find('\t', begin);
    if (line + 1 >= stopped && tab < blanks && blanks < end) {
      return at(text, tab, "a tab indents this line; YAML takes only spaces there");
    }
    begin = end + 1;
  }
  return {};
}

}  // namespace

std::optional<TextFault> foreign_byte(std::string_view text) {
  auto invalid = first_invalid_utf8(text);
  auto control = static_cast<std::size_t>(std::ranges::find_if(text, is_foreign) - text.begin());
  auto first = std::min(invalid, control);
  if (first == text.size()) return {};
  auto byte = static_cast<unsigned char>(text[first]);
  if (invalid < control)
    return at(text, first, fmt::format("byte 0x{:02x} is not UTF-8; write the text in UTF-8", byte));
  return at(text, first,
            fmt::format("byte 0x{:02x}{} is a control character, which YAML does not take; take it out", byte,
                        byte == 0 ? " (NUL)" : ""));
}

TextFault explain(const YAML::Exception& error, std::string_view text) {
  const bool somewhere = !error.mark.is_null();
  TextFault fault{somewhere ? error.mark.line + 1 : 1, somewhere ? error.mark.column + 1 : 1, ""};
  if (dynamic_cast<const YAML::DeepRecursion*>(&error) != nullptr) {
    fault.what = "nested hundreds of levels deep; a config has at most 4";
    return fault;
  }
  if (auto tab = indenting_tab(text, fault.line)) return *tab;
  fault.what = fmt::format("not valid YAML: {}", error.msg);
  if (error.msg.find("anchor is not defined") != std::string::npos) {
    fault.what += "; a text that begins with `*` needs quotes, like \"*.txt\"";
  }
  return fault;
}

bool has_comment(std::string_view value) {
  char quote = 0, before = '[';  // the last character that was no blank: a quote opens only where a value may begin
  for (std::size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    if (quote != 0) {
      const bool doubled = quote == '\'' && value.substr(i).starts_with("''");
      if (doubled || (quote == '"' && c == '\\')) {
        ++i;  // an escape: what follows does not end the text
      } else if (c == quote) {
        quote = 0;
      }
    } else if (c == '#' && (i == 0 || kBlanks.find(value[i - 1]) != std::string_view::npos || value[i - 1] == '\n')) {
      return true;
    } else if ((c == '"' || c == '\'') && std::string_view("[{,:-\n").find(before) != std::string_view::npos) {
      quote = c;
    }
    if (kBlanks.find(c) == std::string_view::npos) before = c;
  }
  return false;
}

}  // namespace meshard
