#pragma once
// A pickle of protocol 2 emitted piece by piece, for what is too large to be built as a Value first. Local.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "dcp/pickle.h"
#include "dcp/pickle_opcodes.h"

namespace meshard::pickle {

class Stream {
 public:
  Stream();

  /// Texts and globals are memoised: the second time costs two to five bytes.
  void value(const Value& value);
  void text(std::string_view text);
  void integer(std::int64_t value);
  void global(std::string_view module, std::string_view name);
  void op(Op op) { out_.push_back(static_cast<char>(op)); }

  /// A container of what `fill` emits (of a dict: key, value, key, value).
  template <class Fill>
  void dict(const Fill& fill) {
    op(kEmptyDict);
    marked(fill, kSetItems);
  }
  template <class Fill>
  void list(const Fill& fill) {
    op(kEmptyList);
    marked(fill, kAppends);
  }
  /// cls.__new__(cls), then BUILD with the dict that `fill` emits.
  template <class Fill>
  void object(const Value& cls, const Fill& fill) {
    value(cls);
    op(kEmptyTuple);
    op(kNewObj);
    dict(fill);
    op(kBuild);
  }
  void tuple(const Items& items);
  void size(std::span<const std::int64_t> sizes);

  /// The whole pickle; nothing can follow.
  std::string finish();

 private:
  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using Memo = std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>>;

  /// Between a MARK and `end`; neither if `fill` emits nothing.
  template <class Fill>
  void marked(const Fill& fill, Op end) {
    op(kMark);
    auto begin = out_.size();
    fill();
    if (out_.size() == begin) return out_.pop_back();
    op(end);
  }
  template <class Int>
  void little(Int value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  bool recall(Memo& memo, std::string_view key);
  void remember(Memo& memo, std::string_view key);
  void op_with_index(Op short_op, Op long_op, std::uint32_t index);
  void wide_integer(std::string_view little_endian);
  void real(double number);
  void object_value(const Value& value);
  void pairs(const Pairs& pairs);

  std::string out_;
  Memo texts_;
  Memo globals_;  ///< by module and name, a line each
};

}  // namespace meshard::pickle
