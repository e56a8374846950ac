#include "dcp/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "dcp/pickle_reader.h"

namespace meshard::pickle {
namespace {

using Kind = Value::Kind;

constexpr std::size_t kLongestName = 100;  // in messages

/// What something shared takes from the allocator, besides itself.
constexpr std::size_t kSharedMemory = 24;
constexpr std::size_t kNodeMemory = sizeof(Value::Node) + kSharedMemory;
constexpr std::size_t kTextsMemory = sizeof(Value::Texts) + kSharedMemory;

constexpr std::size_t kWholeUnit = 16;

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

void Reader::charge(std::size_t bytes) {
  held_ += bytes;
  if (held_ > budget_) fail(fmt::format("its values would take more than {} bytes of memory", budget_));
}

/// Before `more` are put at the end. What the list leaves is another's, and may never be given back: not counted off.
template <class List>
void Reader::charge_growth(const List& list, std::size_t more) {
  if (list.size() + more <= list.capacity()) return;
  charge(std::max(list.size() + more, 2 * list.capacity()) * sizeof(typename List::value_type));
}

void Reader::push(Value value) {
  charge_growth(stack_, 1);
  stack_.push_back(std::move(value));
}

void Reader::push_texts(Value value) {
  if (value.content) charge(kTextsMemory + value.text().size() + value.name().size());
  push(std::move(value));
}

void Reader::push_node(Value value) {
  charge(kNodeMemory);
  push(std::move(value));
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

/// What a copy that shares nothing takes.
std::size_t Reader::whole_of(const Value& value) const {
  if (auto* node = value.node()) return kNodeMemory + kWholeUnit * node->whole;
  return sizeof value + (value.kind == Kind::Global ? 0 : value.text().size()) + value.sizes().size_bytes();
}

/// A container that something holds is complete. So none can come to hold itself, however the memo is used, and depths
/// are known as containers are filled: nothing that walks or destroys a value recurses deeper than the limit.
void Reader::hold(Value::Node& parent, const Value& child) const {
  auto* node = child.node();
  if (node) node->held = true;
  if (parent.held) fail("a container changes after its use, or holds itself");
  if (node) parent.depth = std::max<std::uint8_t>(parent.depth, node->depth + 1);
  if (parent.depth >= limits_.depth) fail(fmt::format("containers nested more than {} deep", limits_.depth));
  auto whole = kWholeUnit * parent.whole + whole_of(child);
  auto units = (whole + kWholeUnit - 1) / kWholeUnit;
  parent.whole = static_cast<std::uint32_t>(std::min<std::size_t>(units, std::numeric_limits<std::uint32_t>::max()));
  if (whole > 2 * budget_) {
    fail(fmt::format("it shares values so often that copies of them would take more than {} bytes", 2 * budget_));
  }
}

/// The children become the value's items.
void Reader::push_new(Value value, std::span<Value> children) {
  auto& node = *value.node();
  charge(children.size() * sizeof(Value));
  node.items.reserve(children.size());
  for (auto& child : children) {
    hold(node, child);
    node.items.push_back(std::move(child));
  }
  stack_.resize(stack_.size() - children.size());
  push_node(std::move(value));
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
  charge_growth(node.items, values.size());
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
  charge_growth(node.pairs, pairs.size());
  node.pairs.insert(node.pairs.end(), std::make_move_iterator(pairs.begin()), std::make_move_iterator(pairs.end()));
}

/// The sizes of a torch.Size that is about to be called.
std::optional<std::vector<std::int64_t>> Reader::sizes_of(const Value& callable, const Value& arguments) {
  bool is_call = callable.is_global("torch", "Size") && arguments.items().size() == 1;
  if (!is_call || arguments.items()[0].kind != Kind::Tuple) return {};
  std::vector<std::int64_t> sizes;
  for (auto& item : arguments.items()[0].items()) {
    if (item.kind != Kind::Int || item.wide) return {};
    sizes.push_back(item.integer);
  }
  return sizes;
}

void Reader::construct(bool by_newobj) {
  auto arguments = pop();
  auto callable = pop();
  if (auto sizes = by_newobj ? std::nullopt : sizes_of(callable, arguments)) {
    // The two tuples that it replaces go, unless the memo has them.
    if (arguments.content.use_count() == 1) held_ -= kNodeMemory + sizeof(Value);
    if (arguments.content.use_count() == 1 && arguments.items()[0].content.use_count() == 1) {
      held_ -= kNodeMemory + sizes->size() * sizeof(Value);
    }
    charge(kSharedMemory + sizes->size() * sizeof(std::int64_t));
    return push(Value::size(*sizes));
  }
  if (callable.kind != Kind::Global || arguments.kind != Kind::Tuple)
    fail("a call that is not a global's with a tuple");
  auto node = std::make_shared<Value::Node>();
  hold(*node, arguments);
  node->items = {std::move(callable), std::move(arguments), Value::none()};
  Value value;
  value.kind = Kind::Object;
  value.by_newobj = by_newobj;
  value.content = std::move(node);
  charge(3 * sizeof(Value));
  push_node(std::move(value));
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
  charge(sizeof(Value));
  push_node(std::move(value));
}

void Reader::global(std::string module, std::string name) {
  if (!allowed_(module, name))
    fail(fmt::format("`{}.{}` has no place here", printable(module.substr(0, kLongestName)),
                     printable(name.substr(0, kLongestName))));
  push_texts(Value::global(std::move(module), std::move(name)));
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
    charge_growth(memo_, index + 1 - memo_.size());
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
  return within_memory(what, [&] { return Reader(bytes, what, allowed, limits).run(); });
}

}  // namespace meshard::pickle
