#pragma once
// Python's pickles as data: nothing is ever executed. Reads protocols 2 to 5, writes protocol 2. FORMAT.md section 3.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard::pickle {

struct Value;
using Items = std::vector<Value>;
using Pairs = std::vector<std::pair<Value, Value>>;

/// One Python value. What a pickle shares (memo) is shared here, texts too: copying a Value is cheap, and its contents
/// do not change.
struct Value {
  enum class Kind : std::uint8_t {
    None,
    Bool,
    Int,
    Float,
    Text,
    Bytes,
    Size,  ///< a torch.Size: sizes(). An index has several for each of its chunks
    List,  ///< items; so Tuple and Set
    Tuple,
    Set,
    Dict,        ///< pairs, in order
    Global,      ///< text() = module, name() = name
    Object,      ///< a callable that was or would be called: items = {callable, arguments, state}, state None if it was
                 ///< never built; pairs: what an OrderedDict holds
    Persistent,  ///< items = {id}: a storage of a torch archive
  };
  struct Texts;
  struct Node;

  Kind kind = Kind::None;
  bool by_newobj = false;  ///< Object: made by NEWOBJ rather than REDUCE
  bool wide = false;       ///< Int beyond 64 bits: text() is its LONG encoding, little-endian, integer 0
  union {
    std::int64_t integer = 0;  ///< Bool, Int; Size: how many
    double number;             ///< Float only
  };

  const std::string& text() const;  ///< Text (as its bytes are, UTF-8 or not), Bytes; Global: module. Else empty
  const std::string& name() const;  ///< Global. Else empty
  std::span<const std::int64_t> sizes() const;  ///< Size. Else empty
  const Items& items() const;                   ///< empty for kinds without
  const Pairs& pairs() const;                   ///< empty for kinds without
  Node* node() const;                           ///< null for kinds without items and pairs

  static Value none();
  static Value boolean(bool value);
  static Value integer_of(std::int64_t value);
  static Value integer_of_bytes(std::string_view little_endian);  ///< two's complement, as LONG1 has it
  static Value real(double value);
  static Value string(std::string value);
  static Value bytes(std::string value);
  static Value size(std::span<const std::int64_t> sizes);
  static Value list(Items items);
  static Value tuple(Items items);
  static Value set(Items items);
  static Value dict(Pairs pairs);
  static Value global(std::string module, std::string name);
  /// callable(*arguments), by REDUCE
  static Value call(Value callable, Items arguments);
  /// cls.__new__(cls, *arguments), by NEWOBJ, then BUILD with `state` unless that is None
  static Value object(Value cls, Items arguments, Value state);
  static Value persistent(Value id);

  bool is_global(std::string_view module, std::string_view name) const;
  /// Local. The value of a text key of a Dict, the last one as in Python; null if there is none.
  const Value* find(std::string_view key) const;

  std::shared_ptr<void> content;  ///< behind text(), name(): Texts; sizes(): numbers; items(), pairs(): Node
};

struct Value::Texts {
  std::string text;
  std::string name;
};

struct Value::Node {
  Items items;
  Pairs pairs;
  // The reader's:
  std::uint32_t whole = 0;  ///< what copies of all below would take, in units of 16 bytes; saturates
  std::uint8_t depth = 0;   ///< levels of containers below
  bool held = false;        ///< something holds it, so it is complete
};

/// Memory is `memory_per_byte` of the pickle's bytes, and `free_memory`. An index of chunks of matrices takes about 16.
struct Limits {
  int depth = 64;  ///< of nested containers, at most 255
  std::size_t memory_per_byte = 32;
  std::size_t free_memory = std::size_t{64} << 20;
};

/// Local. Parses a whole pickle. `allowed` decides on every global by module and name. Throws IoError, naming `what`
/// and the byte offset: an opcode that is not in pickle_opcodes.h, a global that is not allowed (named), a container
/// that holds itself, anything truncated, malformed or beyond the limits, bytes after the end. The limit of memory
/// holds for the value as it is, and twice of it for one in which nothing is shared: walking it is safe too.
Value read(std::span<const std::byte> bytes, const std::string& what,
           bool (*allowed)(std::string_view module, std::string_view name), const Limits& limits = {});

/// Local. Protocol 2: PROTO, the value, STOP. Globals and repeated strings are memoised. ArgumentError for Bytes and
/// Set, which protocol 2 has no opcodes for.
std::string write(const Value& value);

}  // namespace meshard::pickle
