#include <bit>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/pickle.h"
#include "checkpoint/pickle_opcodes.h"

namespace meshard::pickle {
namespace {

using Kind = Value::Kind;
using Memo = std::unordered_map<std::string, std::uint32_t>;

class Writer {
 public:
  std::string run(const Value& value) {
    op(kProto);
    little<std::uint8_t>(2);
    write(value);
    op(kStop);
    return std::move(out_);
  }

 private:
  void write(const Value& value);
  void integer(const Value& value);
  void real(double number);
  void text(const Value& value);
  void global(const Value& value);
  void tuple(const Items& items);
  void list(const Items& items);
  void set_items(const Pairs& pairs);
  void object(const Value& value);

  void op(Op op) { out_.push_back(static_cast<char>(op)); }
  template <typename Int>
  void little(Int value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void op_with_index(Op short_op, Op long_op, std::uint32_t index);
  void all(const Items& items) {
    for (auto& item : items) write(item);
  }
  template <typename Emit>
  void once(const Value& value, Memo& memo, Emit emit);

  std::string out_;
  Memo texts_;
  Memo globals_;                                           ///< by module and name, a line each
  std::unordered_map<const void*, std::uint32_t> places_;  ///< by where a value lies: most are shared
};

void Writer::op_with_index(Op short_op, Op long_op, std::uint32_t index) {
  if (index < 256) {
    op(short_op);
    little(static_cast<std::uint8_t>(index));
  } else {
    op(long_op);
    little(index);
  }
}

/// The first time what emit(key) writes, then the number that the first time put into the memo.
template <typename Emit>
void Writer::once(const Value& value, Memo& memo, Emit emit) {
  auto [place, is_new] = places_.try_emplace(value.content.get(), 0);
  if (!is_new) return op_with_index(kBinGet, kLongBinGet, place->second);
  auto key = value.kind == Kind::Global ? value.text() + '\n' + value.name() + '\n' : value.text();
  auto next = static_cast<std::uint32_t>(texts_.size() + globals_.size());
  auto [known, is_first] = memo.try_emplace(std::move(key), next);
  place->second = known->second;
  if (!is_first) return op_with_index(kBinGet, kLongBinGet, known->second);
  emit(known->first);
  op_with_index(kBinPut, kLongBinPut, next);
}

void Writer::integer(const Value& value) {
  auto i = value.integer;
  if (!value.wide && i >= 0 && i < 1 << 8) {
    op(kBinInt1);
    little(static_cast<std::uint8_t>(i));
  } else if (!value.wide && i >= 0 && i < 1 << 16) {
    op(kBinInt2);
    little(static_cast<std::uint16_t>(i));
  } else if (!value.wide && i == static_cast<std::int32_t>(i)) {
    op(kBinInt);
    little(static_cast<std::int32_t>(i));
  } else {
    auto bytes = value.wide ? value.text() : std::string(reinterpret_cast<const char*>(&i), sizeof(i));
    if (bytes.size() > 255) throw ArgumentError("an int of more than 255 bytes cannot be written to a pickle");
    op(kLong1);
    little(static_cast<std::uint8_t>(bytes.size()));
    out_ += bytes;
  }
}

void Writer::real(double number) {
  op(kBinFloat);
  auto bits = std::bit_cast<std::uint64_t>(number);
  for (int shift = 56; shift >= 0; shift -= 8) out_.push_back(static_cast<char>(bits >> shift));
}

void Writer::text(const Value& value) {
  once(value, texts_, [&](const std::string& text) {
    if (text.size() > std::numeric_limits<std::uint32_t>::max())
      throw ArgumentError("a text of over 4 GiB in a pickle");
    op(kBinUnicode);
    little(static_cast<std::uint32_t>(text.size()));
    out_ += text;
  });
}

void Writer::global(const Value& value) {
  once(value, globals_, [&](const std::string& lines) {
    op(kGlobal);
    out_ += lines;
  });
}

void Writer::tuple(const Items& items) {
  static constexpr Op kShort[] = {kEmptyTuple, kTuple1, kTuple2, kTuple3};
  bool is_short = items.size() < std::size(kShort);
  if (!is_short) op(kMark);
  all(items);
  op(is_short ? kShort[items.size()] : kTuple);
}

void Writer::list(const Items& items) {
  op(kEmptyList);
  if (items.empty()) return;
  op(kMark);
  all(items);
  op(kAppends);
}

void Writer::set_items(const Pairs& pairs) {
  if (pairs.empty()) return;
  op(kMark);
  for (auto& [key, value] : pairs) {
    write(key);
    write(value);
  }
  op(kSetItems);
}

void Writer::object(const Value& value) {
  auto& state = value.items()[2];
  write(value.items()[0]);
  write(value.items()[1]);
  op(value.by_newobj ? kNewObj : kReduce);
  set_items(value.pairs());
  if (state.kind == Kind::None) return;
  write(state);
  op(kBuild);
}

void Writer::write(const Value& value) {
  switch (value.kind) {
    case Kind::None:
      return op(kNone);
    case Kind::Bool:
      return op(value.integer ? kNewTrue : kNewFalse);
    case Kind::Int:
      return integer(value);
    case Kind::Float:
      return real(value.number);
    case Kind::Text:
      return text(value);
    case Kind::List:
      return list(value.items());
    case Kind::Tuple:
      return tuple(value.items());
    case Kind::Global:
      return global(value);
    case Kind::Object:
      return object(value);
    case Kind::Dict:
      op(kEmptyDict);
      return set_items(value.pairs());
    case Kind::Persistent:
      all(value.items());
      return op(kBinPersId);
    case Kind::Bytes:
    case Kind::Set:
      throw ArgumentError("bytes and sets cannot be written to a pickle of protocol 2");
  }
}

}  // namespace

std::string write(const Value& value) {
  return Writer().run(value);
}

}  // namespace meshard::pickle
