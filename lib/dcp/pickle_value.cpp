#include <algorithm>

#include "dcp/pickle.h"

namespace meshard::pickle {
namespace {

using Kind = Value::Kind;

Value of_kind(Kind kind, std::shared_ptr<void> content = nullptr) {
  Value value;
  value.kind = kind;
  value.content = std::move(content);
  return value;
}

Value with_texts(Kind kind, std::string text, std::string name = {}) {
  return of_kind(kind, std::make_shared<Value::Texts>(Value::Texts{std::move(text), std::move(name)}));
}

Value with_node(Kind kind, Items items, Pairs pairs = {}) {
  return of_kind(kind, std::make_shared<Value::Node>(Value::Node{std::move(items), std::move(pairs)}));
}

/// Most calls have no arguments: they share one tuple.
Value arguments_tuple(Items arguments) {
  static const Value empty = Value::tuple({});
  return arguments.empty() ? empty : Value::tuple(std::move(arguments));
}

bool has_texts(const Value& value) {
  return value.kind == Kind::Text || value.kind == Kind::Bytes || value.kind == Kind::Global || value.wide;
}

}  // namespace

Value::Node* Value::node() const {
  bool container = kind >= Kind::List && kind != Kind::Global;
  return container ? static_cast<Node*>(content.get()) : nullptr;
}

const std::string& Value::text() const {
  static const std::string empty;
  return has_texts(*this) ? static_cast<const Texts*>(content.get())->text : empty;
}

const std::string& Value::name() const {
  static const std::string empty;
  return kind == Kind::Global ? static_cast<const Texts*>(content.get())->name : empty;
}

std::span<const std::int64_t> Value::sizes() const {
  if (kind != Kind::Size) return {};
  return {static_cast<const std::int64_t*>(content.get()), static_cast<std::size_t>(integer)};
}

const Items& Value::items() const {
  static const Items empty;
  auto* mine = node();
  return mine ? mine->items : empty;
}

const Pairs& Value::pairs() const {
  static const Pairs empty;
  auto* mine = node();
  return mine ? mine->pairs : empty;
}

Value Value::none() {
  return {};
}

Value Value::boolean(bool value) {
  auto made = of_kind(Kind::Bool);
  made.integer = value;
  return made;
}

Value Value::integer_of(std::int64_t value) {
  auto made = of_kind(Kind::Int);
  made.integer = value;
  return made;
}

Value Value::real(double value) {
  auto made = of_kind(Kind::Float);
  made.number = value;
  return made;
}

Value Value::string(std::string value) {
  return with_texts(Kind::Text, std::move(value));
}
Value Value::bytes(std::string value) {
  return with_texts(Kind::Bytes, std::move(value));
}
Value Value::size(std::span<const std::int64_t> sizes) {
  auto numbers = std::make_shared<std::int64_t[]>(sizes.size());
  std::ranges::copy(sizes, numbers.get());
  auto value = of_kind(Kind::Size, std::move(numbers));
  value.integer = std::ssize(sizes);
  return value;
}
Value Value::list(Items items) {
  return with_node(Kind::List, std::move(items));
}
Value Value::tuple(Items items) {
  return with_node(Kind::Tuple, std::move(items));
}
Value Value::set(Items items) {
  return with_node(Kind::Set, std::move(items));
}
Value Value::dict(Pairs pairs) {
  return with_node(Kind::Dict, {}, std::move(pairs));
}
Value Value::persistent(Value id) {
  return with_node(Kind::Persistent, {std::move(id)});
}

Value Value::global(std::string module, std::string name) {
  return with_texts(Kind::Global, std::move(module), std::move(name));
}

Value Value::integer_of_bytes(std::string_view little_endian) {
  auto sign_of = [&](std::size_t i) { return static_cast<signed char>(little_endian[i]) < 0 ? '\xff' : '\0'; };
  auto size = little_endian.size();
  while (size > 1 && little_endian[size - 1] == sign_of(size - 2)) --size;
  if (size > sizeof(integer)) {
    auto value = with_texts(Kind::Int, std::string(little_endian.substr(0, size)));
    value.wide = true;
    return value;
  }
  std::uint64_t bits = size > 0 && sign_of(size - 1) ? ~0ULL : 0;
  for (auto i = size; i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(little_endian[i]);
  return integer_of(static_cast<std::int64_t>(bits));
}

Value Value::call(Value callable, Items arguments) {
  return with_node(Kind::Object, {std::move(callable), arguments_tuple(std::move(arguments)), none()});
}

Value Value::object(Value cls, Items arguments, Value state) {
  auto value = with_node(Kind::Object, {std::move(cls), arguments_tuple(std::move(arguments)), std::move(state)});
  value.by_newobj = true;
  return value;
}

bool Value::is_global(std::string_view module, std::string_view name) const {
  return kind == Kind::Global && text() == module && this->name() == name;
}

const Value* Value::find(std::string_view key) const {
  auto& all = pairs();
  for (auto pair = all.rbegin(); pair != all.rend(); ++pair) {
    if (pair->first.kind == Kind::Text && pair->first.text() == key) return &pair->second;
  }
  return nullptr;
}

}  // namespace meshard::pickle
