#include <bit>
#include <limits>

#include "base/error.h"
#include "dcp/pickle_stream.h"

namespace meshard::pickle {

using Kind = Value::Kind;

Stream::Stream() {
  op(kProto);
  little<std::uint8_t>(2);
}

std::string Stream::finish() {
  op(kStop);
  return std::move(out_);
}

void Stream::op_with_index(Op short_op, Op long_op, std::uint32_t index) {
  if (index < 256) {
    op(short_op);
    little(static_cast<std::uint8_t>(index));
  } else {
    op(long_op);
    little(index);
  }
}

bool Stream::recall(Memo& memo, std::string_view key) {
  auto known = memo.find(key);
  if (known == memo.end()) return false;
  op_with_index(kBinGet, kLongBinGet, known->second);
  return true;
}

void Stream::remember(Memo& memo, std::string_view key) {
  auto next = static_cast<std::uint32_t>(texts_.size() + globals_.size());
  memo.emplace(key, next);
  op_with_index(kBinPut, kLongBinPut, next);
}

void Stream::text(std::string_view text) {
  if (recall(texts_, text)) return;
  if (text.size() > std::numeric_limits<std::uint32_t>::max()) throw ArgumentError("a text of over 4 GiB in a pickle");
  op(kBinUnicode);
  little(static_cast<std::uint32_t>(text.size()));
  out_ += text;
  remember(texts_, text);
}

void Stream::global(std::string_view module, std::string_view name) {
  auto lines = std::string(module).append("\n").append(name).append("\n");
  if (recall(globals_, lines)) return;
  op(kGlobal);
  out_ += lines;
  remember(globals_, lines);
}

void Stream::integer(std::int64_t i) {
  if (i >= 0 && i < 1 << 8) {
    op(kBinInt1);
    little(static_cast<std::uint8_t>(i));
  } else if (i >= 0 && i < 1 << 16) {
    op(kBinInt2);
    little(static_cast<std::uint16_t>(i));
  } else if (i == static_cast<std::int32_t>(i)) {
    op(kBinInt);
    little(static_cast<std::int32_t>(i));
  } else {
    wide_integer({reinterpret_cast<const char*>(&i), sizeof(i)});
  }
}

void Stream::wide_integer(std::string_view little_endian) {
  if (little_endian.size() > 255) throw ArgumentError("an int of more than 255 bytes cannot be written to a pickle");
  op(kLong1);
  little(static_cast<std::uint8_t>(little_endian.size()));
  out_ += little_endian;
}

void Stream::real(double number) {
  op(kBinFloat);
  auto bits = std::bit_cast<std::uint64_t>(number);
  for (int shift = 56; shift >= 0; shift -= 8) out_.push_back(static_cast<char>(bits >> shift));
}

void Stream::tuple(const Items& items) {
  static constexpr Op kShort[] = {kEmptyTuple, kTuple1, kTuple2, kTuple3};
  bool is_short = items.size() < std::size(kShort);
  if (!is_short) op(kMark);
  for (auto& item : items) value(item);
  op(is_short ? kShort[items.size()] : kTuple);
}

void Stream::size(std::span<const std::int64_t> sizes) {
  Items items;
  for (auto size : sizes) items.push_back(Value::integer_of(size));
  global("torch", "Size");
  tuple(items);
  op(kTuple1);
  op(kReduce);
}

void Stream::pairs(const Pairs& pairs) {
  for (auto& [key, held] : pairs) {
    value(key);
    value(held);
  }
}

void Stream::object_value(const Value& object) {
  auto& state = object.items()[2];
  value(object.items()[0]);
  value(object.items()[1]);
  op(object.by_newobj ? kNewObj : kReduce);
  if (!object.pairs().empty()) marked([&] { pairs(object.pairs()); }, kSetItems);
  if (state.kind == Kind::None) return;
  value(state);
  op(kBuild);
}

void Stream::value(const Value& value) {
  switch (value.kind) {
    case Kind::None:
      return op(kNone);
    case Kind::Bool:
      return op(value.integer ? kNewTrue : kNewFalse);
    case Kind::Int:
      return value.wide ? wide_integer(value.text()) : integer(value.integer);
    case Kind::Float:
      return real(value.number);
    case Kind::Text:
      return text(value.text());
    case Kind::Size:
      return size(value.sizes());
    case Kind::List:
      return list([&] {
        for (auto& item : value.items()) this->value(item);
      });
    case Kind::Tuple:
      return tuple(value.items());
    case Kind::Global:
      return global(value.text(), value.name());
    case Kind::Object:
      return object_value(value);
    case Kind::Dict:
      return dict([&] { pairs(value.pairs()); });
    case Kind::Persistent:
      for (auto& item : value.items()) this->value(item);
      return op(kBinPersId);
    case Kind::Bytes:
    case Kind::Set:
      throw ArgumentError("bytes and sets cannot be written to a pickle of protocol 2");
  }
  throw LogicError("unknown kind of Python value");
}

std::string write(const Value& value) {
  Stream stream;
  stream.value(value);
  return stream.finish();
}

}  // namespace meshard::pickle
