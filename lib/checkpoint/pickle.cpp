#include "checkpoint/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "checkpoint/pickle_reader.h"

namespace meshard::pickle {
namespace {

using Kind = Value::Kind;

/// Names out of a hostile file end up on a terminal.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, 100));
  std::ranges::replace_if(
      out, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return out;
}

}  // namespace

void Reader::fail(const std::string& reason) const {
  throw IoError(fmt::format("{}: not a usable pickle, at byte {}: {}", what_, op_at_, reason));
}

std::string_view Reader::take(std::uint64_t count) {
  if (count > bytes_.size() - at_) {
    fail(fmt::format("{} bytes wanted, {} left; the file is truncated or damaged", count, bytes_.size() - at_));
  }
  auto taken = bytes_.substr(at_, count);
  at_ += count;
  return taken;
}

std::string_view Reader::line() {
  auto end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) fail("a name without an end");
  auto text = take(end - at_);
  ++at_;
  return text;
}

double Reader::big_double() {
  std::uint64_t bits = 0;
  for (unsigned char byte : take(sizeof(bits))) bits = bits << 8 | byte;
  return std::bit_cast<double>(bits);
}

void Reader::push(Value value) {
  if (++made_ > limits_.values) fail(fmt::format("more than {} values", limits_.values));
  stack_.push_back(std::move(value));
}

Value& Reader::top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("a value is missing");
  return stack_.back();
}

Value Reader::pop() {
  auto value = std::move(top());
  stack_.pop_back();
  return value;
}

std::size_t Reader::pop_mark() {
  if (marks_.empty()) fail("a mark is missing");
  auto begin = marks_.back();
  marks_.pop_back();
  return begin;
}

void Reader::pop_or_mark() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
  } else {
    pop();
  }
}

/// A container that something holds is complete. So none can come to hold itself, however the memo is used, and depths
/// are known as containers are filled: nothing that walks or destroys a value recurses deeper than the limit.
void Reader::hold(Value::Node& parent, const Value& child) const {
  auto* node = child.node();
  if (node) node->held = true;
  if (parent.held) fail("a container changes after its use, or holds itself");
  if (node) parent.depth = std::max(parent.depth, node->depth + 1);
  if (parent.depth >= limits_.depth) fail(fmt::format("containers nested more than {} deep", limits_.depth));
}

/// The children become the value's items.
void Reader::push_new(Value value, std::span<Value> children) {
  auto& node = *value.node();
  node.items.reserve(children.size());
  for (auto& child : children) {
    hold(node, child);
    node.items.push_back(std::move(child));
  }
  stack_.resize(stack_.size() - children.size());
  push(std::move(value));
}

void Reader::tuple_from(std::size_t begin) {
  push_new(Value::tuple({}), std::span(stack_).subspan(begin));
}

void Reader::append(std::size_t begin, Kind kind) {
  auto children = std::span(stack_).subspan(begin);
  std::vector<Value> values(std::make_move_iterator(children.begin()), std::make_move_iterator(children.end()));
  stack_.resize(begin);
  auto& target = top();
  if (target.kind != kind) fail("items for something that is not a list or a set");
  auto& node = *target.node();
  for (auto& value : values) hold(node, value);
  node.items.insert(node.items.end(), std::make_move_iterator(values.begin()), std::make_move_iterator(values.end()));
}

void Reader::set_items(std::size_t begin) {
  if ((stack_.size() - begin) % 2 != 0) fail("a key without a value");
  Pairs pairs;
  pairs.reserve((stack_.size() - begin) / 2);
  for (auto i = begin; i < stack_.size(); i += 2) pairs.emplace_back(std::move(stack_[i]), std::move(stack_[i + 1]));
  stack_.resize(begin);
  auto& target = top();
  bool ordered = target.kind == Kind::Object && target.items()[0].is_global("collections", "OrderedDict");
  if (target.kind != Kind::Dict && !ordered) fail("items for something that is not a dict");
  auto& node = *target.node();
  for (auto& [key, value] : pairs) {
    if (key.kind == Kind::List || key.kind == Kind::Dict) fail("a key that is a list or a dict");
    hold(node, key);
    hold(node, value);
  }
  node.pairs.insert(node.pairs.end(), std::make_move_iterator(pairs.begin()), std::make_move_iterator(pairs.end()));
}

void Reader::construct(bool by_newobj) {
  auto arguments = pop();
  auto callable = pop();
  if (callable.kind != Kind::Global || arguments.kind != Kind::Tuple)
    fail("a call that is not a global's with a tuple");
  auto node = std::make_shared<Value::Node>();
  hold(*node, arguments);
  node->items = {std::move(callable), std::move(arguments), Value::none()};
  Value value;
  value.kind = Kind::Object;
  value.by_newobj = by_newobj;
  value.content = std::move(node);
  push(std::move(value));
}

void Reader::build() {
  auto state = pop();
  auto& target = top();
  if (state.kind != Kind::Dict && state.kind != Kind::Tuple) fail("a state that is neither a dict nor a tuple");
  if (target.kind != Kind::Object || target.items()[2].kind != Kind::None)
    fail("a state for something that takes none");
  hold(*target.node(), state);
  target.node()->items[2] = std::move(state);
}

void Reader::persistent() {
  auto id = pop();
  auto value = Value::persistent({});
  hold(*value.node(), id);
  value.node()->items[0] = std::move(id);
  push(std::move(value));
}

void Reader::global(std::string module, std::string name) {
  if (!allowed_(module, name)) fail(fmt::format("`{}.{}` has no place here", printable(module), printable(name)));
  push(Value::global(std::move(module), std::move(name)));
}

void Reader::stack_global() {
  auto name = pop();
  auto module = pop();
  if (name.kind != Kind::Text || module.kind != Kind::Text) fail("the name of a global is not text");
  global(module.text(), name.text());
}

void Reader::put(std::size_t index) {
  if (index >= bytes_.size()) fail(fmt::format("memo entry {} in a file of {} bytes", index, bytes_.size()));
  if (index >= memo_.size()) {
    memo_.resize(index + 1);
    in_memo_.resize(index + 1);
  }
  memo_[index] = top();
  in_memo_[index] = true;
}

void Reader::get(std::size_t index) {
  if (index >= memo_.size() || !in_memo_[index]) fail(fmt::format("memo entry {} was never made", index));
  push(memo_[index]);
}

Value read(std::span<const std::byte> bytes, const std::string& what,
           bool (*allowed)(std::string_view module, std::string_view name), const Limits& limits) {
  return Reader(bytes, what, allowed, limits).run();
}

}  // namespace meshard::pickle
