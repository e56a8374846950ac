#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "checkpoint/compare.h"

namespace meshard {

namespace {

using pickle::Value;
using Kind = Value::Kind;

bool is_sequence(const Value& value) {
  return value.kind == Kind::List || value.kind == Kind::Tuple;
}

bool is_number(const Value& value) {
  return (value.kind == Kind::Bool || value.kind == Kind::Int || value.kind == Kind::Float) && !value.wide;
}

bool same_number(const Value& a, const Value& b, const CheckpointCompareOptions& options) {
  if (a.kind != Kind::Float && b.kind != Kind::Float) return a.integer == b.integer;
  auto of = [](const Value& value) {
    return value.kind == Kind::Float ? value.number : static_cast<double>(value.integer);
  };
  auto x = of(a), y = of(b);
  if (options.exact) return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  return x == y || std::abs(x - y) <= options.rtol * std::max(std::abs(x), std::abs(y));
}

std::string joined_texts(const pickle::Items& items);

/// As Python prints it.
std::string python_text(const Value& value) {
  switch (value.kind) {
    case Kind::None:
      return "None";
    case Kind::Bool:
      return value.integer ? "True" : "False";
    case Kind::Int:
      return value.wide ? "an int of more than 64 bits" : fmt::format("{}", value.integer);
    case Kind::Float:
      return fmt::format("{}", value.number);
    case Kind::Text:
      return fmt::format("'{}'", value.text());
    case Kind::Bytes:
      return fmt::format("{} bytes", value.text().size());
    case Kind::List:
      return fmt::format("[{}]", joined_texts(value.items()));
    case Kind::Tuple:
      return fmt::format("({})", joined_texts(value.items()));
    case Kind::Set:
      return fmt::format("{{{}}}", joined_texts(value.items()));
    case Kind::Dict:
      return fmt::format("a dict of {}", value.pairs().size());
    case Kind::Global:
      return value.text() + "." + value.name();
    case Kind::Size:
    case Kind::Object:
    case Kind::Persistent:
      return value.items().empty() ? "an object" : python_text(value.items()[0]) + "(...)";
  }
  throw LogicError("unknown kind of Python value");
}

std::string joined_texts(const pickle::Items& items) {
  std::string text;
  for (auto& item : items) text += (text.empty() ? "" : ", ") + python_text(item);
  return text;
}

/// Items [begin, end) of two containers, each under `key`[its index].
template <class Member>
std::optional<ValueDifference> first_in(const std::string& key, std::size_t count, Member member,
                                        const CheckpointCompareOptions& options) {
  for (std::size_t i = 0; i < count; ++i) {
    auto [name, a, b] = member(i);
    if (auto difference = value_difference(fmt::format("{}[{}]", key, name), *a, *b, options)) return difference;
  }
  return {};
}

}  // namespace

std::optional<ValueDifference> value_difference(const std::string& key, const Value& a, const Value& b,
                                                const CheckpointCompareOptions& options) {
  auto differs = [&] { return ValueDifference{key, python_text(a), python_text(b)}; };
  if (is_number(a) && is_number(b)) {
    return same_number(a, b, options) ? std::nullopt : std::optional(differs());
  }
  bool alike = a.kind == b.kind || (is_sequence(a) && is_sequence(b));
  if (!alike || a.wide != b.wide || a.text() != b.text() || a.name() != b.name()) return differs();
  auto &items_a = a.items(), &items_b = b.items();
  auto &pairs_a = a.pairs(), &pairs_b = b.pairs();
  if (items_a.size() != items_b.size() || pairs_a.size() != pairs_b.size()) {
    return ValueDifference{key, fmt::format("{} items", items_a.size() + pairs_a.size()),
                           fmt::format("{} items", items_b.size() + pairs_b.size())};
  }
  for (std::size_t i = 0; i < pairs_a.size(); ++i) {
    if (auto difference = value_difference(key + ", key", pairs_a[i].first, pairs_b[i].first, options))
      return difference;
  }
  auto item = [&](std::size_t i) { return std::tuple{fmt::format("{}", i), &items_a[i], &items_b[i]}; };
  auto pair = [&](std::size_t i) {
    return std::tuple{python_text(pairs_a[i].first), &pairs_a[i].second, &pairs_b[i].second};
  };
  auto difference = first_in(key, items_a.size(), item, options);
  return difference ? difference : first_in(key, pairs_a.size(), pair, options);
}

}  // namespace meshard
