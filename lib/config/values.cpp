#include "config/values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdlib>
#include <regex>
#include <utility>

namespace meshard {
namespace {

// No count of a run is larger, and the product of two stays exact.
constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();

// std::regex recurses for each character, so a text that no one writes by hand would overflow the stack.
constexpr std::size_t kLongestMatch = 1000;

bool matches(const std::string& text, const std::regex& pattern) {
  return text.size() <= kLongestMatch && std::regex_match(text, pattern);
}

bool is_integer(const std::string& text) {
  static const std::regex integer("-?(0|[1-9][0-9]*)");
  return matches(text, integer);
}

bool is_real(const std::string& text) {
  static const std::regex real(R"(-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?)");
  return matches(text, real);
}

// What some YAML reader takes for a number, but not everyone for the same one.
bool is_odd_number(const std::string& text) {
  static const std::regex prefixed(R"([-+]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|\.(inf|Inf|INF|nan|NaN|NAN)))");
  static const std::regex grouped(R"([-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?)");
  static const std::regex other(R"(\+\.[0-9]+([eE][-+]?[0-9]+)?|[-+]?[0-9]{1,3}(,[0-9]{3})+|[0-9]+(:[0-5]?[0-9])+)");
  return matches(text, prefixed) || matches(text, grouped) || matches(text, other);
}

bool is_bool_word(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "true" || text == "false" || text == "yes" || text == "no" || text == "on" || text == "off";
}

bool reads_as_text(const std::string& text) {
  return !is_null_word(text) && !is_bool_word(text) && !is_real(text) && !is_odd_number(text);
}

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::Null:
      return "null";
    case YamlNode::Kind::List:
      return "a list";
    case YamlNode::Kind::Map:
      return "a map";
    case YamlNode::Kind::Scalar:
      break;
  }
  return fmt::format(fmt::runtime(node.quoted ? "the text \"{}\"" : "`{}`"), shortened(node.text));
}

std::string with_limits(const std::string& type, const Limits& limits) {
  auto range = limits.text();
  auto expected =
      range.empty() ? type : fmt::format("{} {}{}", type, range[0] == '[' || range[0] == '(' ? "in " : "", range);
  return limits.zero_word.empty() ? expected : fmt::format("{} or {}", expected, limits.zero_word);
}

std::string wrong_type(const YamlNode& node, const std::string& expected) {
  if (node.kind == YamlNode::Kind::Scalar && !node.quoted && is_odd_number(node.text) && !is_real(node.text)) {
    return fmt::format("{} is a number that YAML readers take differently; expected {}, in plain decimal",
                       describe(node), expected);
  }
  if (node.kind == YamlNode::Kind::Null) return "has no value; expected " + expected;
  return fmt::format("{} is not what this key takes; expected {}", describe(node), expected);
}

bool is_plain_scalar(const YamlNode& node) {
  return node.kind == YamlNode::Kind::Scalar && !node.quoted;
}

Problem out_of_range(const YamlNode& node, const std::string& expected) {
  return fmt::format("{} is out of range; expected {}", shortened(node.text), expected);
}

template <std::integral T>
Problem read_whole(const YamlNode& node, const Limits& limits, T& out) {
  auto expected = with_limits("an integer", limits);
  if (!limits.zero_word.empty() && node.kind == YamlNode::Kind::Scalar && node.text == limits.zero_word) {
    out = 0;
    return {};
  }
  if (!is_plain_scalar(node) || !is_integer(node.text)) return wrong_type(node, expected);
  constexpr auto kMost = std::is_same_v<T, std::int64_t> ? T{kLargest} : std::numeric_limits<T>::max();
  T value = 0;
  auto* end = node.text.data() + node.text.size();
  auto [parsed, error] = std::from_chars(node.text.data(), end, value);
  if ((error == std::errc::result_out_of_range && node.text[0] != '-') || std::cmp_greater(value, kMost)) {
    auto most = std::isfinite(limits.high) ? "" : fmt::format(", at most {}", kMost);
    return fmt::format("{} is too large; expected {}{}", shortened(node.text), expected, most);
  }
  if (error != std::errc{} || parsed != end || !limits.contain(static_cast<double>(value))) {
    return out_of_range(node, expected);
  }
  out = value;
  return {};
}

Problem not_text(const YamlNode& node, const std::string& expected) {
  if (is_plain_scalar(node)) {
    return fmt::format("{} is not a text in YAML; expected {}; if it is meant, quote it: \"{}\"", describe(node),
                       expected, shortened(node.text));
  }
  return wrong_type(node, expected);
}

bool is_text(const YamlNode& node) {
  return node.kind == YamlNode::Kind::Scalar && (node.quoted || reads_as_text(node.text));
}

}  // namespace

bool is_null_word(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

bool Limits::contain(double value) const {
  return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
}

std::string Limits::text() const {
  bool has_low = std::isfinite(low), has_high = std::isfinite(high);
  if (has_low && has_high) return fmt::format("{}{}, {}{}", low_open ? '(' : '[', low, high, high_open ? ')' : ']');
  if (has_low) return fmt::format("{} {}", low_open ? ">" : ">=", low);
  if (has_high) return fmt::format("{} {}", high_open ? "<" : "<=", high);
  return "";
}

Problem read_value(const YamlNode& node, const Limits& limits, bool& out) {
  bool yes = node.text == limits.yes, no = node.text == limits.no;
  if (!is_plain_scalar(node) || !(yes || no)) {
    return wrong_type(node, fmt::format("{} or {}", limits.yes, limits.no));
  }
  out = yes;
  return {};
}

Problem read_value(const YamlNode& node, const Limits& limits, std::int64_t& out) {
  return read_whole(node, limits, out);
}

Problem read_value(const YamlNode& node, const Limits& limits, int& out) {
  return read_whole(node, limits, out);
}

Problem read_value(const YamlNode& node, const Limits& limits, std::uint64_t& out) {
  return read_whole(node, limits, out);
}

Problem read_value(const YamlNode& node, const Limits& limits, double& out) {
  auto expected = with_limits("a number", limits);
  if (!is_plain_scalar(node) || !is_real(node.text)) return wrong_type(node, expected);
  double value = 0;
  auto* end = node.text.data() + node.text.size();
  auto [parsed, error] = std::from_chars(node.text.data(), end, value);
  auto digits = node.text.substr(0, node.text.find_first_of("eE"));
  const bool zero = digits.find_first_of("123456789") == std::string::npos;
  if (error == std::errc::result_out_of_range || (value == 0 && !zero)) {
    // from_chars does not tell which of the two it is.
    const bool large = std::abs(std::strtod(node.text.c_str(), nullptr)) > 1;
    return fmt::format("{} is {} a 64-bit number can be ({}); expected {}", shortened(node.text),
                       large ? "larger than" : "nearer to 0 than", large ? "1.8e308" : "4.9e-324", expected);
  }
  if (error != std::errc{} || parsed != end || !limits.contain(value)) return out_of_range(node, expected);
  out = value;
  return {};
}

Problem read_value(const YamlNode& node, const Limits& limits, std::string& out) {
  if (!limits.words.empty()) return read_word(node, limits.words, out);
  if (!is_text(node)) return not_text(node, "a text");
  if (node.text.empty()) return "is empty; expected a text";
  // Names, of folders and files for the most part: what scripts read line by line.
  auto control = std::ranges::find_if(node.text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (control != node.text.end()) {
    return *control == '\0' ? std::string("holds the character NUL, which no name can; expected a text")
                            : fmt::format("holds the control character \\x{:02x}; expected a text of one line",
                                          static_cast<unsigned char>(*control));
  }
  out = node.text;
  return {};
}

Problem read_value(const YamlNode& node, const Limits& limits, std::vector<std::string>& out) {
  if (node.kind != YamlNode::Kind::List) return wrong_type(node, "a list of texts, like [a, b]");
  std::vector<std::string> all;
  for (auto& item : node.children) {
    std::string text;
    if (auto problem = read_value(item, limits, text)) {
      return fmt::format("entry {} of the list: {}", all.size() + 1, *problem);
    }
    all.push_back(text);
  }
  out = all;
  return {};
}

Problem read_pair(const YamlNode& node, const Limits& limits, double& first, double& second) {
  auto expected = "a list of two numbers, each in " + limits.text();
  if (node.kind != YamlNode::Kind::List) return wrong_type(node, expected);
  if (node.children.size() != 2) {
    return fmt::format("the list has {} entries; expected {}", node.children.size(), expected);
  }
  double values[2] = {};
  for (int i = 0; i < 2; ++i) {
    auto problem = read_value(node.children[i], limits, values[i]);
    if (problem) return fmt::format("entry {} of the list: {}", i + 1, *problem);
  }
  first = values[0];
  second = values[1];
  return {};
}

Problem read_word(const YamlNode& node, const std::vector<std::string_view>& words, std::string& out) {
  auto expected = (words.size() == 1 ? "" : "one of ") + fmt::format("{}", fmt::join(words, ", "));
  if (node.kind != YamlNode::Kind::Scalar) return wrong_type(node, expected);
  if (std::ranges::find(words, node.text) == words.end()) {
    auto hint = nearest_word(node.text, words);
    return fmt::format("{} is not known; expected {}{}", describe(node), expected,
                       hint ? fmt::format("; did you mean `{}`?", *hint) : "");
  }
  out = node.text;
  return {};
}

Problem read_value(const YamlNode& node, const Limits&, Dtype& out) {
  if (node.text == "fp16" || node.text == "float16" || node.text == "half") {
    return fmt::format("`{}` is not supported: its range needs loss scaling; expected fp32 or bf16", node.text);
  }
  return read_enum(node, out);
}

std::string write_value(bool value, const Limits& limits) {
  return std::string(value ? limits.yes : limits.no);
}

std::string write_value(std::int64_t value, const Limits& limits) {
  return value == 0 && !limits.zero_word.empty() ? std::string(limits.zero_word) : std::to_string(value);
}

std::string write_value(int value, const Limits& limits) {
  return write_value(std::int64_t{value}, limits);
}

std::string write_value(std::uint64_t value, const Limits&) {
  return std::to_string(value);
}

std::string write_value(double value, const Limits&) {
  char digits[64];
  auto size = std::abs(value);
  const bool short_enough = value == 0 || (size >= 1e-4 && size < 1e12);
  auto format = short_enough ? std::chars_format::fixed : std::chars_format::scientific;
  auto text = std::string(digits, std::to_chars(digits, digits + sizeof digits, value, format).ptr);
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

std::string write_value(const std::string& value, const Limits&) {
  static const std::regex plain("[A-Za-z0-9_./][A-Za-z0-9_./-]*");
  if (matches(value, plain) && reads_as_text(value)) return value;
  std::string quoted = "\"";
  for (unsigned char c : value) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += static_cast<char>(c);
    } else if (c < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", c);
    } else {
      quoted += static_cast<char>(c);
    }
  }
  return quoted + '"';
}

std::string write_value(const std::vector<std::string>& value, const Limits& limits) {
  std::vector<std::string> items;
  for (auto& item : value) items.push_back(write_value(item, limits));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string type_name(bool, const Limits& limits) {
  return fmt::format("{} or {}", limits.yes, limits.no);
}
std::string type_name(std::int64_t, const Limits& limits) {
  return limits.zero_word.empty() ? "integer" : fmt::format("integer or {}", limits.zero_word);
}
std::string type_name(int, const Limits& limits) {
  return type_name(std::int64_t{}, limits);
}
std::string type_name(std::uint64_t, const Limits&) {
  return "integer";
}
std::string type_name(double, const Limits&) {
  return "number";
}
std::string type_name(const std::string&, const Limits& limits) {
  return limits.words.empty() ? "text" : "word";
}
std::string type_name(const std::vector<std::string>&, const Limits&) {
  return "list of texts";
}

}  // namespace meshard
