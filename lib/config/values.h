#pragma once
// How a value of each type is written in YAML: strict reading, and writing that reads back to the same bits.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/words.h"
#include "config/yaml_tree.h"

namespace meshard {

/// What a key accepts besides its type.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;                        ///< low itself is not allowed
  bool high_open = false;                       ///< high itself is not allowed
  std::string_view zero_word = {};              ///< written for the integer 0, e.g. `auto`
  std::string_view yes = "true", no = "false";  ///< how a bool is written
  std::vector<std::string_view> words = {};     ///< if not empty, the only texts allowed

  bool contain(double value) const;
  std::string text() const;  ///< ">= 1", "[0, 1)"; empty if there are none
};

/// Local. What YAML reads as null where it stands alone: nothing, `~`, `null`.
bool is_null_word(std::string_view text);

/// What is wrong with a value, or nothing.
using Problem = std::optional<std::string>;

/// Local. Strict: the type must be the key's own (`"8"` is not a number, 8 not a text), numbers plain decimal (no 010,
/// 0x10, 1_000, .inf; integers up to 2^31 - 1, so that a product of two is exact), bools `true` or `false`. `out` is
/// set only if the outcome is empty.
Problem read_value(const YamlNode& node, const Limits& limits, bool& out);
Problem read_value(const YamlNode& node, const Limits& limits, std::int64_t& out);
Problem read_value(const YamlNode& node, const Limits& limits, int& out);
Problem read_value(const YamlNode& node, const Limits& limits, std::uint64_t& out);
Problem read_value(const YamlNode& node, const Limits& limits, double& out);
Problem read_value(const YamlNode& node, const Limits& limits, std::string& out);
Problem read_value(const YamlNode& node, const Limits& limits, std::vector<std::string>& out);
Problem read_value(const YamlNode& node, const Limits& limits, Dtype& out);
/// Local. A list of exactly two numbers.
Problem read_pair(const YamlNode& node, const Limits& limits, double& first, double& second);
/// Local. One of `words`, else the problem, with the nearest word.
Problem read_word(const YamlNode& node, const std::vector<std::string_view>& words, std::string& out);

std::string write_value(bool value, const Limits& limits);
std::string write_value(std::int64_t value, const Limits& limits);
std::string write_value(int value, const Limits& limits);
std::string write_value(std::uint64_t value, const Limits& limits);
/// Local. The shortest decimal that reads back to the same double, always with a point (YAML 1.1 needs it).
std::string write_value(double value, const Limits& limits);
/// Local. Quoted where YAML would read something else.
std::string write_value(const std::string& value, const Limits& limits);
std::string write_value(const std::vector<std::string>& value, const Limits& limits);

std::string type_name(bool, const Limits& limits);
std::string type_name(std::int64_t, const Limits& limits);
std::string type_name(int, const Limits& limits);
std::string type_name(std::uint64_t, const Limits& limits);
std::string type_name(double, const Limits& limits);
std::string type_name(const std::string&, const Limits& limits);
std::string type_name(const std::vector<std::string>&, const Limits& limits);

/// Local. One of the enum's words.
template <WordEnum E>
Problem read_enum(const YamlNode& node, E& out) {
  std::string text;
  if (auto problem = read_word(node, all_words(E{}), text)) return problem;
  for (auto& [word, meaning] : words_of(E{})) {
    if (word == text) out = meaning;
  }
  return {};
}

template <WordEnum E>
Problem read_value(const YamlNode& node, const Limits&, E& out) {
  return read_enum(node, out);
}

/// Local. Whether a key of this type takes any text, so that on a command line all that follows its `=` is the value.
template <class T>
bool takes_text(const T&, const Limits& limits) {
  return (std::is_same_v<T, std::string> || std::is_same_v<T, std::optional<std::string>>)&&limits.words.empty();
}

template <WordEnum E>
std::string write_value(E value, const Limits&) {
  return std::string(word_of(value));
}

template <WordEnum E>
std::string type_name(E, const Limits&) {
  return "word";
}

template <class T>
Problem read_value(const YamlNode& node, const Limits& limits, std::optional<T>& out) {
  if (node.kind == YamlNode::Kind::Null) {
    out.reset();
    return {};
  }
  T value{};
  if (auto problem = read_value(node, limits, value)) return *problem + " or null";
  out = value;
  return {};
}

template <class T>
std::string write_value(const std::optional<T>& value, const Limits& limits) {
  return value ? write_value(*value, limits) : "null";
}

template <class T>
std::string type_name(const std::optional<T>&, const Limits& limits) {
  return type_name(T{}, limits) + " or null";
}

}  // namespace meshard
