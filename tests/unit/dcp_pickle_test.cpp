#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "dcp/metadata.h"
#include "dcp/pickle.h"
#include "support/peak_memory.h"

using namespace meshard;
using namespace meshard::pickle;
using namespace std::string_literals;
using Kind = Value::Kind;

namespace {

bool allow_collections(std::string_view module, std::string_view name) {
  return module == "collections" || name == "f";
}

Value parse(const std::string& bytes, const Limits& limits = {}) {
  return read(std::as_bytes(std::span(bytes)), "file", allow_collections, limits);
}

/// The value of a program of opcodes, between PROTO 4 and STOP.
Value run(const std::string& program) {
  return parse("\x80\x04"s + program + ".");
}

std::string reason_of(const std::string& bytes, const Limits& limits = {}) {
  try {
    parse(bytes, limits);
  } catch (const IoError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::string& program) {
  return reason_of("\x80\x04"s + program + ".");
}

bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  BOOST_TEST_MESSAGE("missing `" << part << "` in: " << text);
  return false;
}

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

/// Python's repr, near enough.
std::string show(const Value& value) {
  auto joined = [](const Items& items) {
    std::string all;
    for (auto& item : items) all += show(item) + ",";
    return all;
  };
  std::string pairs;
  for (auto& [key, mapped] : value.pairs()) pairs += show(key) + ":" + show(mapped) + ",";
  switch (value.kind) {
    case Kind::None:
      return "None";
    case Kind::Bool:
      return value.integer ? "True" : "False";
    case Kind::Int:
      return value.wide ? "wide" : std::to_string(value.integer);
    case Kind::Float:
      return std::to_string(value.number);
    case Kind::Text:
      return "'" + value.text() + "'";
    case Kind::Bytes:
      return "b'" + value.text() + "'";
    case Kind::Size:
      return "sizes";
    case Kind::List:
      return "[" + joined(value.items()) + "]";
    case Kind::Tuple:
      return "(" + joined(value.items()) + ")";
    case Kind::Set:
      return "{" + joined(value.items()) + "}";
    case Kind::Dict:
      return "{" + pairs + "}";
    case Kind::Global:
      return value.text() + "." + value.name();
    case Kind::Persistent:
      return "storage" + show(value.items()[0]);
    case Kind::Object:
      break;
  }
  auto& parts = value.items();
  return (value.by_newobj ? "new " : "") + show(parts[0]) + show(parts[1]) +
         (parts[2].kind == Kind::None ? "" : "<-" + show(parts[2])) + (pairs.empty() ? "" : "{" + pairs + "}");
}

std::string little(std::uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

const std::string kFunction = "c__main__\nf\n";

}  // namespace

// Catches: an opcode that is missing, or takes its operands in the wrong order or width.
BOOST_AUTO_TEST_CASE(every_opcode_does_its_work) {
  std::pair<std::string, std::string> cases[] = {
      {"N", "None"},
      {"\x88", "True"},
      {"\x89", "False"},
      {"J\xfe\xff\xff\xff", "-2"},
      {"K\xff", "255"},
      {"M\x01\x02"s, "513"},
      {"G\xbf\xf8\0\0\0\0\0\0"s, "-1.500000"},
      {"\x8c\x02hi", "'hi'"},
      {"X\x02\0\0\0hi"s, "'hi'"},
      {"\x8d\x02\0\0\0\0\0\0\0hi"s, "'hi'"},
      {"C\x02hi", "b'hi'"},
      {"B\x02\0\0\0hi"s, "b'hi'"},
      {"]", "[]"},
      {"]K\x01"s + "a", "[1,]"},
      {"](K\x01K\x02" + "e"s, "[1,2,]"},
      {")", "()"},
      {"(t", "()"},
      {"K\x01\x85", "(1,)"},
      {"K\x01K\x02\x86", "(1,2,)"},
      {"K\x01K\x02K\x03\x87", "(1,2,3,)"},
      {"(K\x01K\x02K\x03K\x04t", "(1,2,3,4,)"},
      {"}", "{}"},
      {"}K\x01K\x02s", "{1:2,}"},
      {"}(K\x01K\x02K\x03K\x04u", "{1:2,3:4,}"},
      {"\x8f", "{}"},
      {"\x8f(K\x01K\x02\x90", "{1,2,}"},
      {"(K\x01K\x02\x91", "{1,2,}"},
      {kFunction, "__main__.f"},
      {"\x8c\x08__main__\x8c\x01" + "f\x93"s, "__main__.f"},
      {kFunction + "K\x01\x85R", "__main__.f(1,)"},
      {kFunction + ")\x81", "new __main__.f()"},
      {kFunction + ")\x81}K\x01K\x02sb", "new __main__.f()<-{1:2,}"},
      {kFunction + ")RK\x01\x85" + "b", "__main__.f()<-(1,)"},
      {"ccollections\nOrderedDict\n)R(K\x01K\x02u", "collections.OrderedDict(){1:2,}"},
      {"K\x07\x85Q", "storage(7,)"},
      {"K\x01K\x02" + "0"s, "1"},
      {"K\x01(K\x02K\x03" + "1"s, "1"},
      {"K\x01(" + "0"s, "1"},
      {"K\x01" + "2\x86"s, "(1,1,)"},
      {"K\x05q\x03" + "0h\x03"s, "5"},
      {"K\x05r\x03\0\0\0"s + "0j\x03\0\0\0"s, "5"},
      {"K\x05\x94"s + "0K\x06\x94" + "0h\0h\x01\x86"s, "(5,6,)"},
      {"\x95\x02\0\0\0\0\0\0\0K\x01"s, "1"},
  };
  for (auto& [program, shown] : cases) BOOST_TEST(show(run(program)) == shown);
}

// Catches: a sign or a byte lost at the edges of the integer types; wide ints cut to 64 bits.
BOOST_AUTO_TEST_CASE(ints_of_any_width_are_exact) {
  auto big = std::numeric_limits<std::int64_t>::max();
  auto small = std::numeric_limits<std::int64_t>::min();
  for (std::int64_t value : {INT64_C(0), INT64_C(1), INT64_C(-1), INT64_C(127), INT64_C(128), INT64_C(-128),
                             INT64_C(255), INT64_C(256), INT64_C(65535), INT64_C(65536), INT64_C(2147483647),
                             INT64_C(2147483648), INT64_C(-2147483648), INT64_C(-2147483649), big, small}) {
    auto read_back = parse(write(Value::integer_of(value)));
    BOOST_TEST(!read_back.wide);
    BOOST_TEST(read_back.integer == value);
    auto padded = little(static_cast<std::uint64_t>(value), 8) + std::string(3, value < 0 ? '\xff' : '\0');
    BOOST_TEST(run("\x8a\x0b" + padded).integer == value);
    BOOST_TEST(run("\x8b" + little(11, 4) + padded).integer == value);
  }
  BOOST_TEST(run("\x8a\0"s).integer == 0);
  auto wide = run("\x8a\x09" + little(0, 8) + "\x01");
  BOOST_TEST(wide.wide);
  BOOST_TEST(wide.integer == 0);
  BOOST_TEST(wide.text() == little(0, 8) + "\x01");
  BOOST_TEST(parse(write(wide)).text() == wide.text());
  BOOST_TEST(run("\x8a\x09" + little(~0ULL >> 1 | 1ULL << 63, 8) + "\0"s).wide);  // 2^64 - 1
}

// Catches: bytes that Python would not write itself: memo numbers that do not run on, texts written twice.
BOOST_AUTO_TEST_CASE(what_is_written_is_known_byte_by_byte) {
  auto text = Value::string("ab");
  BOOST_TEST(write(Value::tuple({text, Value::string("ab"), Value::integer_of(300)})) ==
             "\x80\x02X\x02\0\0\0abq\0h\0M\x2c\x01\x87."s);
  auto cls = Value::global("m", "C");
  auto object = Value::object(cls, {}, Value::dict({{text, Value::boolean(true)}}));
  BOOST_TEST(write(Value::list({object, Value::call(cls, {text})})) ==
             "\x80\x02](cm\nC\nq\0)\x81}(X\x02\0\0\0abq\x01\x88ubh\0h\x01\x85Re."s);
  BOOST_TEST(write(Value::persistent(Value::none())) == "\x80\x02NQ.");
  BOOST_TEST(write(Value::real(1.5)) == "\x80\x02G\x3f\xf8\0\0\0\0\0\0."s);
  BOOST_CHECK_THROW(write(Value::bytes("x")), ArgumentError);
  BOOST_CHECK_THROW(write(Value::set({})), ArgumentError);
}

// Catches: values that change on their way through a file; memo numbers beyond 255.
BOOST_AUTO_TEST_CASE(values_come_back_as_they_went) {
  Items names;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 700; ++i) names.push_back(Value::string("name" + std::to_string(i)));
  }
  auto cls = Value::global("collections", "C");
  auto value = Value::dict(
      {{Value::string("names"), Value::list(names)},
       {Value::integer_of(3), Value::tuple({Value::none(), Value::boolean(false), Value::real(0.1), Value::tuple({})})},
       {Value::string("odd \xed\xa0\x80\n"),
        Value::object(cls, {Value::integer_of(1)}, Value::tuple({Value::list({})}))},
       {Value::string("call"), Value::call(cls, {Value::dict({})})},
       {Value::string("id"), Value::persistent(Value::tuple({Value::string("storage")}))}});
  BOOST_TEST(show(parse(write(value))) == show(value));
  BOOST_TEST(std::isnan(parse(write(Value::real(std::nan("")))).number));
}

// Catches: the first of two equal keys found, a key of another kind found.
BOOST_AUTO_TEST_CASE(find_follows_python) {
  auto dict = run("}(\x8c\x01xK\x01\x8c\x01xK\x02K\x05K\x06u");
  BOOST_TEST(dict.find("x")->integer == 2);
  BOOST_TEST(dict.find("y") == nullptr);
  BOOST_TEST(Value::none().find("x") == nullptr);
  BOOST_TEST(Value::none().items().empty());
  BOOST_TEST(Value::integer_of(4).text() == "");
}

// Catches: a global that gets through, and one whose name is not said.
BOOST_AUTO_TEST_CASE(globals_are_allowed_one_by_one) {
  BOOST_TEST(contains(refusal("cos\nsystem\n"), "file: not a usable pickle, at byte 2: `os.system` has no place here"));
  BOOST_TEST(contains(refusal("\x8c\x02os\x8c\x06system\x93"), "`os.system`"));
  BOOST_TEST(contains(refusal("c\x1b[31m\nsystem\n"), "`\\x1b[31m.system`"));
  BOOST_TEST(contains(refusal("K\x01\x8c\x01"
                              "f\x93"),
                      "name of a global is not text"));
}

// Catches: reading beyond the end or beneath the stack, and memory that a small file can ask for.
BOOST_AUTO_TEST_CASE(malformed_pickles_are_refused) {
  BOOST_TEST(contains(reason_of(""), "truncated"));
  BOOST_TEST(contains(reason_of("PK"), "no pickle of protocol 2 to 5"));
  BOOST_TEST(contains(reason_of("\x80\x06N."), "protocol 6"));
  BOOST_TEST(contains(reason_of("\x80\x01N."), "protocol 1"));
  BOOST_TEST(contains(reason_of("\x80\x04N"), "truncated"));
  BOOST_TEST(contains(reason_of("\x80\x04N.N"), "1 bytes follow"));
  std::pair<std::string, std::string> cases[] = {
      {"NN", "more than one value"},
      {"N(", "a value is missing"},
      {"", "a value is missing"},
      {"\x80\x02N", "opcode 0x80"},
      {"I1\n", "opcode 0x49"},
      {"\x97", "opcode 0x97"},
      {"0", "a value is missing"},
      {"N(\x85", "a value is missing"},
      {"N(\x86", "a value is missing"},
      {"N\x87", "a value is missing"},
      {"t", "a mark is missing"},
      {"1", "a mark is missing"},
      {"Ne", "a mark is missing"},
      {"K\x01(K\x02" + "e"s, "not a list or a set"},
      {"](K\x02\x90", "not a list or a set"},
      {"}N" + "a"s, "not a list or a set"},
      {"](NNu", "not a dict"},
      {kFunction + ")R(NNu", "not a dict"},
      {"}(Nu", "a key without a value"},
      {"}]Ns", "a key that is a list"},
      {"N)R", "not a global's"},
      {kFunction + "NR", "not a global's"},
      {kFunction + "]\x81", "not a global's"},
      {"]}b", "takes none"},
      {kFunction + ")\x81}b}b", "takes none"},
      {kFunction + ")\x81K\x01" + "b", "neither a dict nor a tuple"},
      {"h\0"s, "memo entry 0 was never made"},
      {"Nq\x05h\x04", "memo entry 4 was never made"},
      {"Nr\xff\xff\xff\xff", "memo entry 4294967295 in a file of"},
      {"q\0"s, "a value is missing"},
      {"\x8c\x05hi", "5 bytes wanted"},
      {"X\xff\xff\xff\xffhi", "4294967295 bytes wanted"},
      {"\x8d\xff\xff\xff\xff\xff\xff\xff\xffhi", "bytes wanted"},
      {"B\xff\xff\xff\x7f", "bytes wanted"},
      {"\x8b\xff\xff\xff\xff"
       "1",
       "bytes wanted"},
      {"\x8a\x20", "bytes wanted"},
      {"G\0\0"s, "bytes wanted"},
      {"cname", "a name without an end"},
      {"\x95\xff\xff\xff\xff\xff\xff\xff\xffN", "a frame that goes beyond"},
      {std::string(1000, '('), "too many marks"},
  };
  for (auto& [program, part] : cases)
    BOOST_TEST(contains(refusal(program), part), refusal(program) << " for " << program);
}

// Catches: cycles (which never free their memory, and which no walk comes to the end of) and recursion as deep as a
// file likes, be it when reading or when values are destroyed.
BOOST_AUTO_TEST_CASE(no_value_holds_itself_or_nests_without_end) {
  auto holds_itself = "a container changes after its use, or holds itself";
  BOOST_TEST(contains(refusal("]q\0h\0a"s), holds_itself));
  BOOST_TEST(contains(refusal("]q\0h\0\x85"
                              "a"s),
                      holds_itself));
  BOOST_TEST(contains(refusal("]q\0"
                              "0h\0h\0\x85"
                              "a"s),
                      holds_itself));
  BOOST_TEST(contains(refusal("}q\0K\x01h\0s"s), holds_itself));
  BOOST_TEST(contains(refusal("\x8fq\0(h\0\x90"s), holds_itself));
  BOOST_TEST(contains(refusal("]q\0"
                              "0}q\x01K\x01h\0s0h\0h\x01"
                              "a"s),
                      holds_itself));
  BOOST_TEST(contains(refusal(kFunction + ")\x81q\0}K\x01h\0sb"s), holds_itself));
  BOOST_TEST(contains(refusal("]q\0"s + kFunction + "h\0\x85Ra"s), holds_itself));

  auto too_deep = "nested more than 64 deep";
  BOOST_TEST(contains(refusal("N" + repeat("\x85", 100'000)), too_deep));
  BOOST_TEST(contains(refusal("N" + repeat("Q", 100'000)), too_deep));
  BOOST_TEST(contains(refusal(repeat("]", 100'000) + repeat("a", 99'999)), too_deep));
  BOOST_TEST(contains(refusal(repeat("}N", 100'000) + "N" + repeat("s", 100'000)), too_deep));
  BOOST_TEST(contains(refusal("]q\0"s + repeat("0]h\0aq\0"s, 100)), too_deep));
  BOOST_TEST(contains(refusal(repeat(kFunction, 100) + ")" + repeat("\x85R", 100)), too_deep));
  BOOST_TEST(refusal("N" + repeat("\x85", 64)) == "accepted");
}

// Catches: sharing that is undone, which lets a small file stand for a value of any size; such a value accepted for
// those that walk it.
BOOST_AUTO_TEST_CASE(shared_values_stay_shared) {
  auto doubled = ")"s;
  for (char i = 0; i < 40; ++i) doubled += "q"s + i + "h"s + i + "\x86";  // 2^40 leaves
  const Limits wide{.free_memory = std::size_t{1} << 50};
  auto value = parse("\x80\x04" + doubled + ".", wide);
  BOOST_TEST(value.items()[0].content == value.items()[1].content);
  BOOST_TEST(contains(refusal(doubled), "it shares values so often"));

  auto names = "(X" + little(1'000'000, 4) + std::string(1'000'000, 'x') + "q\0"s;
  for (int i = 0; i < 100'000; ++i) names += "h\0"s;  // 100 GB if copied
  auto texts = parse("\x80\x04" + names + "t.", wide);
  BOOST_TEST(texts.items().size() == 100'001);
  BOOST_TEST(texts.items().front().text().data() == texts.items().back().text().data());
  BOOST_TEST(contains(refusal(names + "t"), "it shares values so often"));
}

// Catches: sizes that change on their way through a file; other calls taken for them.
BOOST_AUTO_TEST_CASE(sizes_are_one_value) {
  auto all = [](std::string_view, std::string_view) { return true; };
  auto back = [&](const Value& value) {
    auto bytes = write(value);
    return read(std::as_bytes(std::span(bytes)), "file", all);
  };
  auto same = [](const Value& value, const std::vector<std::int64_t>& sizes) {
    return value.kind == Kind::Size && std::ranges::equal(value.sizes(), sizes);
  };
  for (auto& sizes : std::vector<std::vector<std::int64_t>>{{}, {0}, {3, 1LL << 40}, {-1, 2, 3, 4, 5}}) {
    BOOST_TEST(same(back(Value::size(sizes)), sizes));
  }
  auto shared =
      "\x80\x02"
      "ctorch\nSize\nK\x02q\0\x85q\x01\x85q\x02Rq\x03h\x01h\x03\x87."s;
  auto value = read(std::as_bytes(std::span(shared)), "file", all);
  BOOST_TEST(value.items().size() == 3);
  BOOST_TEST(same(value.items()[0], {2}));
  BOOST_TEST(value.items()[1].items()[0].integer == 2);
  BOOST_TEST(same(value.items()[2], {2}));
  auto call = [](const Value& argument) { return Value::call(Value::global("torch", "Size"), {argument}); };
  BOOST_TEST(same(back(call(Value::tuple({Value::integer_of(7)}))), {7}));
  BOOST_TEST((back(call(Value::tuple({Value::none()}))).kind == Kind::Object));
  BOOST_TEST((back(call(Value::list({}))).kind == Kind::Object));
}

// Catches: limits that are not kept.
BOOST_AUTO_TEST_CASE(limits_are_kept) {
  BOOST_TEST(contains(reason_of("\x80\x04]]]aa.", {.depth = 2}), "nested more than 2 deep"));
  BOOST_TEST(reason_of("\x80\x04]]a.", {.depth = 2}) == "accepted");
  BOOST_TEST(contains(reason_of("\x80\x04(NNNNt.", {.memory_per_byte = 10, .free_memory = 200}),
                      "more than 290 bytes of memory"));
  BOOST_TEST(reason_of("\x80\x04(NNNNt.", {.free_memory = 1000}) == "accepted");
}

// Catches: a file that takes many times its size (a byte stood for a list of 130): each way to make values.
BOOST_AUTO_TEST_CASE(memory_is_a_stated_multiple_of_the_file) {
  const std::string dense[] = {"]",
                               "}",
                               "\x8f",
                               "N",
                               ")",
                               "K\x01",
                               "]a",
                               "]\x85",
                               "\x8c\0"s,
                               "\x8a\0"s,
                               "C\0"s,
                               "h\0"s,
                               "Nr\xff\xff\x0f\0"s,
                               kFunction + ")R"};
  for (auto& values : dense) {
    auto program = "\x80\x04]q\0("s + repeat(values, static_cast<int>(1'000'000 / values.size())) + "e.";
    auto most = 32 * program.size() + (64 << 20);
    BOOST_TEST(peak_memory([&] { reason_of(program); }) < most, values);
  }
}

// Catches: an index of many chunks that takes long to read, or more memory than is said: 100,000 of them, of which a
// large run has as many, are read in a second.
BOOST_AUTO_TEST_CASE(many_chunks_are_read_fast_in_little_memory, *boost::unit_test::timeout(60)) {
  CheckpointMetadata metadata;
  for (std::int64_t tensor = 0; tensor < 1000; ++tensor) {
    auto& entry = metadata.tensors["model.layers." + std::to_string(tensor) + ".mlp.gate_proj.weight"];
    entry = {c10::kFloat, {4096, 512}, {}};
    for (std::int64_t rank = 0; rank < 100; ++rank) {
      entry.chunks.push_back(
          {{{rank * 40, 0}, {40, 512}}, {"__" + std::to_string(rank) + "_0.distcp", tensor << 24, 82'500}});
    }
  }
  auto bytes = encode_metadata(metadata, "/some/where", "id");
  CheckpointMetadata read;
  auto peak = peak_memory([&] { read = decode_metadata(std::as_bytes(std::span(bytes)), "file"); });
  BOOST_TEST_MESSAGE(bytes.size() << " bytes, " << peak << " bytes of memory");
  BOOST_TEST(read.tensors.size() == 1000);
  for (auto& [key, entry] : read.tensors) {
    BOOST_TEST_REQUIRE(std::ranges::equal(entry.chunks, metadata.tensors[key].chunks,
                                          [](auto& a, auto& b) { return a.box == b.box && a.place == b.place; }));
  }
  BOOST_TEST(peak < 20 * bytes.size());
}
