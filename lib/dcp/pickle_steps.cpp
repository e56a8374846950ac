#include <fmt/format.h>

#include <bit>

#include "dcp/pickle_opcodes.h"
#include "dcp/pickle_reader.h"

namespace meshard::pickle {

// Numbers lie in a pickle as they do in memory.
static_assert(std::endian::native == std::endian::little);

void Reader::step_scalar(std::uint8_t op) {
  auto text = [](std::string_view bytes) { return Value::string(std::string(bytes)); };
  switch (op) {
    case kNone:
      return push(Value::none());
    case kNewTrue:
      return push(Value::boolean(true));
    case kNewFalse:
      return push(Value::boolean(false));
    case kBinInt:
      return push(Value::integer_of(little<std::int32_t>()));
    case kBinInt1:
      return push(Value::integer_of(little<std::uint8_t>()));
    case kBinInt2:
      return push(Value::integer_of(little<std::uint16_t>()));
    case kLong1:
      return push_texts(Value::integer_of_bytes(take(little<std::uint8_t>())));
    case kLong4:
      return push_texts(Value::integer_of_bytes(take(little<std::int32_t>())));
    case kBinFloat:
      return push(Value::real(big_double()));
    case kShortBinUnicode:
      return push_texts(text(take(little<std::uint8_t>())));
    case kBinUnicode:
      return push_texts(text(take(little<std::uint32_t>())));
    case kBinUnicode8:
      return push_texts(text(take(little<std::uint64_t>())));
    case kShortBinBytes:
      return push_texts(Value::bytes(std::string(take(little<std::uint8_t>()))));
    case kBinBytes:
      return push_texts(Value::bytes(std::string(take(little<std::uint32_t>()))));
    default:
      fail(fmt::format("opcode 0x{:02x} has no place here", op));
  }
}

void Reader::step_container(std::uint8_t op) {
  auto last = [&](std::size_t count) {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count) fail("a value is missing");
    return stack_.size() - count;
  };
  switch (op) {
    case kEmptyList:
      return push_node(Value::list({}));
    case kEmptyDict:
      return push_node(Value::dict({}));
    case kEmptySet:
      return push_node(Value::set({}));
    case kEmptyTuple:
      return push(empty_tuple_);
    case kTuple1:
      return tuple_from(last(1));
    case kTuple2:
      return tuple_from(last(2));
    case kTuple3:
      return tuple_from(last(3));
    case kTuple:
      return tuple_from(pop_mark());
    case kFrozenSet:
      return push_new(Value::set({}), std::span(stack_).subspan(pop_mark()));
    case kAppend:
      return append(last(1), Value::Kind::List);
    case kAppends:
      return append(pop_mark(), Value::Kind::List);
    case kAddItems:
      return append(pop_mark(), Value::Kind::Set);
    case kSetItem:
      return set_items(last(2));
    case kSetItems:
      return set_items(pop_mark());
    case kBinPersId:
      return persistent();
    default:
      step_scalar(op);
  }
}

void Reader::step(std::uint8_t op) {
  switch (op) {
    case kMark:
      if (marks_.size() >= static_cast<std::size_t>(limits_.depth)) fail("too many marks");
      return marks_.push_back(stack_.size());
    case kPop:
      return pop_or_mark();
    case kPopMark:
      return stack_.resize(pop_mark());
    case kDup:
      return push(top());
    case kBinGet:
      return get(little<std::uint8_t>());
    case kLongBinGet:
      return get(little<std::uint32_t>());
    case kBinPut:
      return put(little<std::uint8_t>());
    case kLongBinPut:
      return put(little<std::uint32_t>());
    case kMemoize:
      return put(memo_.size());
    case kFrame:
      if (little<std::uint64_t>() > bytes_.size() - at_) fail("a frame that goes beyond the end");
      return;
    case kGlobal: {
      auto module = std::string(line());
      return global(std::move(module), std::string(line()));
    }
    case kStackGlobal:
      return stack_global();
    case kReduce:
      return construct(false);
    case kNewObj:
      return construct(true);
    case kBuild:
      return build();
    default:
      step_container(op);
  }
}

Value Reader::run() {
  if (little<std::uint8_t>() != kProto) fail("no pickle of protocol 2 to 5 begins like this");
  if (auto protocol = little<std::uint8_t>(); protocol < 2 || protocol > 5) {
    fail(fmt::format("protocol {}; this version reads 2 to 5", protocol));
  }
  for (;;) {
    op_at_ = at_;
    auto op = little<std::uint8_t>();
    if (op == kStop) break;
    step(op);
  }
  auto value = pop();
  if (!stack_.empty() || !marks_.empty()) fail("more than one value at the end");
  if (at_ != bytes_.size()) fail(fmt::format("{} bytes follow the end", bytes_.size() - at_));
  return value;
}

}  // namespace meshard::pickle
