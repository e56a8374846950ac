#pragma once
// Reads one line of JSON forwards, without a tree: a report looks at a dozen numbers of each of half a million lines,
// which a full parser reads at a tenth of this speed.

#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

namespace meshard {

/// Every reader consumes one value. What is skipped is checked loosely (strings end, brackets close, words are JSON's);
/// a line that was cut off anywhere is never `done`.
class JsonCursor {
 public:
  /// Local. `text` must outlive the cursor.
  explicit JsonCursor(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  /// Local. All was JSON, and nothing follows.
  bool done() { return ok_ && peek() == '\0' && at_ == end_; }

  /// Local. Calls on_member(key) at each value of the object here, which must consume it. Of any other value: skips it.
  template <typename OnMember>
  void members(OnMember on_member) {
    if (peek() != '{') return skip();
    ++at_;
    if (take('}')) return;
    do {
      auto key = string();
      expect(':');
      if (ok_) on_member(key);
    } while (take(','));
    expect('}');
  }

  /// Local. Calls on_element() at each value of the array here, which must consume it. Of any other value: skips it.
  template <typename OnElement>
  void elements(OnElement on_element) {
    if (peek() != '[') return skip();
    ++at_;
    if (take(']')) return;
    do {
      if (ok_) on_element();
    } while (take(','));
    expect(']');
  }

  /// Local. NaN of what is no number, which is skipped.
  double number() {
    double value = std::numeric_limits<double>::quiet_NaN();
    if (!starts_number()) return skip(), value;
    auto [stop, failed] = std::from_chars(at_, end_, value);
    ok_ &= failed != std::errc::invalid_argument;
    at_ = stop;
    return value;
  }

  /// Local. -1 of what is no whole number, which is skipped.
  std::int64_t integer() {
    auto begin = (peek(), at_);
    skip();
    std::int64_t value = -1;
    auto [stop, failed] = std::from_chars(begin, at_, value);
    return failed == std::errc{} && stop == at_ ? value : -1;
  }

  void skip() {
    int depth = 0;
    do {
      switch (char next = peek()) {
        case '{':
        case '[':
          ++depth, ++at_;
          break;
        case '}':
        case ']':
          --depth, ++at_;
          ok_ &= depth >= 0;
          break;
        case '"':
          string();
          break;
        default:
          depth > 0 && (next == ',' || next == ':') ? void(++at_) : word();
      }
    } while (ok_ && depth > 0);
  }

 private:
  /// The next character that is no space; 0 at the end and after a failure.
  char peek() {
    if (!ok_) return '\0';
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
    return at_ == end_ ? '\0' : *at_;
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) { ok_ = ok_ && take(wanted); }

  /// As it stands in the file, escapes included.
  std::string_view string() {
    expect('"');
    auto begin = at_;
    while (ok_ && at_ != end_ && *at_ != '"') at_ += *at_ == '\\' && at_ + 1 != end_ ? 2 : 1;
    auto text = std::string_view(begin, at_);
    expect('"');
    return text;
  }

  bool starts_number() {
    char next = peek();
    return next == '-' || (next >= '0' && next <= '9');
  }
  static bool in_number(char c) {
    return (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || (c | 32) == 'e';
  }

  void word() {
    if (starts_number()) {
      while (at_ != end_ && in_number(*at_)) ++at_;
      return;
    }
    for (std::string_view known : {"null", "true", "false"}) {
      if (std::string_view(at_, end_).starts_with(known)) {
        at_ += known.size();
        return;
      }
    }
    ok_ = false;
  }

  const char* at_;
  const char* end_;
  bool ok_ = true;
};

}  // namespace meshard
