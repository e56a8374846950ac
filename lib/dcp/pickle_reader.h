#pragma once
// The machine that a pickle is a program for, without its calls. Behind pickle.h; nothing else includes it.

#include <cstring>
#include <optional>

#include "dcp/pickle.h"

namespace meshard::pickle {

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& what, bool (*allowed)(std::string_view, std::string_view),
         const Limits& limits)
      : bytes_(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
        what_(what),
        allowed_(allowed),
        limits_(limits),
        budget_(limits.free_memory + limits.memory_per_byte * bytes.size()) {}

  /// Local. Runs the program to its end; errors as read() says.
  Value run();

 private:
  [[noreturn]] void fail(const std::string& reason) const;
  std::string_view take(std::uint64_t count);  ///< a negative count: more than any file has
  template <typename Int>
  Int little() {
    Int value;
    std::memcpy(&value, take(sizeof(Int)).data(), sizeof(Int));
    return value;
  }
  std::string_view line();
  double big_double();

  void charge(std::size_t bytes);
  template <class List>
  void charge_growth(const List& list, std::size_t more);

  void push(Value value);
  void push_texts(Value value);
  void push_node(Value value);
  void push_new(Value value, std::span<Value> children);
  Value& top();
  Value pop();
  std::size_t pop_mark();
  void tuple_from(std::size_t begin);
  void pop_or_mark();

  void hold(Value::Node& parent, const Value& child) const;
  std::size_t whole_of(const Value& value) const;
  void append(std::size_t begin, Value::Kind kind);
  void set_items(std::size_t begin);
  static std::optional<std::vector<std::int64_t>> sizes_of(const Value& callable, const Value& arguments);
  void construct(bool by_newobj);
  void build();
  void persistent();
  void global(std::string module, std::string name);
  void stack_global();
  void put(std::size_t index);
  void get(std::size_t index);

  void step(std::uint8_t op);
  void step_scalar(std::uint8_t op);
  void step_container(std::uint8_t op);

  std::string_view bytes_;
  const std::string& what_;
  bool (*allowed_)(std::string_view, std::string_view);
  Limits limits_;
  std::size_t at_ = 0;             ///< next byte
  std::size_t op_at_ = 0;          ///< of the opcode, for messages
  std::size_t budget_, held_ = 0;  ///< bytes of memory
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;  ///< stack sizes
  std::vector<Value> memo_;
  std::vector<bool> in_memo_;
  Value empty_tuple_ = Value::tuple({});
};

}  // namespace meshard::pickle
