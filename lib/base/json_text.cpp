#include "base/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/memory.h"

namespace meshard {

namespace {

constexpr std::size_t kMemoryPerByte = 8;
constexpr std::size_t kFreeMemory = std::size_t{16} << 20;
constexpr std::size_t kLongestString = std::size_t{8} << 20;    // the parser holds some copies of one
constexpr std::size_t kLongestReason = 160, kLongestName = 60;  // in messages

/// What is wrong, and where: an offset into the text, or npos.
struct JsonFault {
  std::string reason;
  std::size_t at = std::string_view::npos;
};

[[noreturn]] void fail(std::string_view text, const std::string& name, const JsonFault& fault) {
  if (fault.at == std::string_view::npos) throw IoError(fmt::format("{}: {}", name, fault.reason));
  auto before = text.substr(0, std::min(fault.at, text.size()));
  auto line = std::ranges::count(before, '\n') + 1;
  auto column = before.size() - (before.rfind('\n') + 1) + 1;
  throw IoError(fmt::format("{}: line {}, column {}: {}", name, line, column, fault.reason));
}

/// What the parser would pass over in silence: it takes a NUL for the end, and skips a byte order mark.
std::optional<JsonFault> no_text(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) {
    return JsonFault{"a byte order mark (EF BB BF); expected UTF-8 without one", 0};
  }
  auto at = text.find('\0');
  if (at == std::string_view::npos) return {};
  return JsonFault{fmt::format("a NUL byte at offset {}; expected text in UTF-8 without any", at), at};
}

/// Depth and the length of strings, before anything is built of them. Of text that is no JSON it may say nothing.
std::optional<JsonFault> beyond_limits(std::string_view text, const JsonLimits& limits) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    char c = text[at];
    if (c == '[' || c == '{') {
      if (++depth > limits.depth) return JsonFault{fmt::format("nested more than {} deep", limits.depth), at};
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == '"') {
      auto begin = at++;
      for (; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
      if (at - begin > kLongestString) {
        return JsonFault{fmt::format("a text of more than {} bytes", kLongestString), begin};
      }
    }
  }
  return {};
}

/// Bytes that malloc takes for so many.
std::size_t allocated(std::size_t bytes) {
  return std::max<std::size_t>(32, (bytes + 8 + 15) / 16 * 16);
}

std::size_t text_memory(const std::string& text) {
  return text.capacity() <= std::string().capacity() ? 0 : allocated(text.capacity() + 1);
}

/// Makes the tree, counting the memory it takes. Depth is checked before.
template <class Json>
class Builder {
 public:
  explicit Builder(std::size_t budget) : budget_(budget) {}

  std::optional<JsonFault> fault;
  Json root;

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) {
    return charge(allocated(sizeof value) + text_memory(value)) && add(std::move(value));
  }
  bool binary(Json::binary_t&) { return false; }

  bool key(std::string& name) {
    open_.back().key = std::move(name);
    return true;
  }
  bool start_object(std::size_t) { return charge(allocated(sizeof(Object))) && open(Json::object()); }
  bool start_array(std::size_t) { return charge(allocated(sizeof(Array))) && open(Json::array()); }
  bool end_array() { return close(); }
  bool end_object() { return !find_twin() && close(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...; last read: '...'"
    std::string_view reason = error.what();
    reason.remove_prefix(std::min(reason.find("] ") + 2, reason.size()));
    if (reason.starts_with("parse error")) reason.remove_prefix(std::min(reason.find(": ") + 2, reason.size()));
    fault = JsonFault{std::string(reason.substr(0, kLongestReason)), position == 0 ? 0 : position - 1};
    return false;
  }

 private:
  using Object = Json::object_t;
  using Array = Json::array_t;
  static constexpr bool kOrdered = requires { typename Object::Container; };
  struct Open {
    Json container;
    std::string key;
  };

  bool charge(std::size_t bytes, std::size_t freed = 0) {
    held_ += bytes;
    if (held_ > budget_) fault = JsonFault{"its values would take more memory than a file of its size may"};
    held_ -= freed;
    return !fault;
  }

  /// Before one more is put at its end.
  template <class List>
  bool charge_growth(const List& list) {
    if (list.size() < list.capacity()) return true;
    auto bytes = list.capacity() * sizeof list[0];
    return charge(allocated(std::max(sizeof list[0], 2 * bytes)), bytes == 0 ? 0 : allocated(bytes));
  }

  bool open(Json container) {
    open_.push_back({std::move(container), {}});
    return true;
  }

  bool close() {
    auto value = std::move(open_.back().container);
    open_.pop_back();
    return add(std::move(value));
  }

  template <class Value>
  bool add(Value&& value) {
    if (open_.empty()) {
      root = std::forward<Value>(value);
      return true;
    }
    auto& container = open_.back().container;
    if (container.is_array()) {
      auto& array = *container.template get_ptr<Array*>();
      if (!charge_growth(array)) return false;
      array.emplace_back(std::forward<Value>(value));
      return true;
    }
    return add_member(*container.template get_ptr<Object*>(), std::move(open_.back().key), std::forward<Value>(value));
  }

  template <class Value>
  bool add_member(Object& object, std::string key, Value&& value) {
    auto memory = text_memory(key);
    if constexpr (kOrdered) {
      typename Object::Container& members = object;  // its own emplace() looks through all of them each time
      if (!charge(memory) || !charge_growth(members)) return false;
      members.emplace_back(std::move(key), std::forward<Value>(value));
      return true;
    } else {
      constexpr std::size_t kTreeNode = 32;
      if (!charge(memory + allocated(kTreeNode + sizeof(std::string) + sizeof(Json)))) return false;
      auto [member, is_new] = object.try_emplace(std::move(key), std::forward<Value>(value));
      if (!is_new) fault = twice(member->first);
      return is_new;
    }
  }

  static JsonFault twice(std::string_view key) {
    return {fmt::format("the key `{}` stands twice in one object; expected it once", key.substr(0, kLongestName))};
  }

  /// Of ordered objects; the others know at once.
  bool find_twin() {
    if constexpr (kOrdered) {
      auto& object = *open_.back().container.template get_ptr<Object*>();
      auto scratch = allocated(object.size() * sizeof(std::string_view));
      if (!charge(scratch, scratch)) return true;
      std::vector<std::string_view> keys;
      keys.reserve(object.size());
      for (auto& [key, _] : object) keys.push_back(key);
      std::ranges::sort(keys);
      if (auto twin = std::ranges::adjacent_find(keys); twin != keys.end()) fault = twice(*twin);
    }
    return fault.has_value();
  }

  std::size_t budget_, held_ = 0;
  std::vector<Open> open_;
};

template <class Json>
Json parse(std::string_view text, const JsonLimits& limits, std::optional<JsonFault>& fault) {
  if (text.size() > limits.text) {
    fault = JsonFault{fmt::format("{} bytes are more than the {} that it may have", text.size(), limits.text)};
    return {};
  }
  fault = no_text(text);
  if (!fault) fault = beyond_limits(text, limits);
  if (fault) return {};
  Builder<Json> builder(kMemoryPerByte * text.size() + kFreeMemory);
  try {
    Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const std::bad_alloc&) {
    builder.fault = JsonFault{"there is not enough memory for its values"};
  }
  fault = builder.fault;
  return fault ? Json() : std::move(builder.root);
}

}  // namespace

template <class Json>
Json read_json(std::string_view text, const std::string& name, const JsonLimits& limits) {
  std::optional<JsonFault> fault;
  auto value = parse<Json>(text, limits, fault);
  if (fault) fail(text, name, *fault);
  return value;
}

template <class Json>
std::optional<Json> read_json_if_sound(std::string_view text, const JsonLimits& limits) {
  std::optional<JsonFault> fault;
  auto value = parse<Json>(text, limits, fault);
  return fault ? std::nullopt : std::optional(std::move(value));
}

template <class Json>
Json read_json_file(const std::filesystem::path& file, const JsonLimits& limits) {
  auto name = file.string();
  std::error_code failed;
  auto kind = std::filesystem::status(file, failed).type();
  if (kind != std::filesystem::file_type::regular && std::filesystem::exists(file, failed)) {
    throw IoError(fmt::format("cannot read {}: no regular file", name));
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw IoError(fmt::format("cannot read {}: {}", name, std::strerror(errno)));
  return within_memory(name, [&] {
    std::string text;
    // One byte more than may be, to know that it is more.
    text.resize(std::min<std::size_t>(std::filesystem::file_size(file, failed), limits.text + 1));
    stream.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(stream.gcount()));
    return read_json<Json>(text, name, limits);
  });
}

template <class Json>
std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

template nlohmann::json read_json(std::string_view, const std::string&, const JsonLimits&);
template std::optional<nlohmann::json> read_json_if_sound(std::string_view, const JsonLimits&);
template nlohmann::json read_json_file(const std::filesystem::path&, const JsonLimits&);
template std::string json_text(const nlohmann::json&, int);

template nlohmann::ordered_json read_json(std::string_view, const std::string&, const JsonLimits&);
template std::optional<nlohmann::ordered_json> read_json_if_sound(std::string_view, const JsonLimits&);
template nlohmann::ordered_json read_json_file(const std::filesystem::path&, const JsonLimits&);
template std::string json_text(const nlohmann::ordered_json&, int);

}  // namespace meshard
