#include <boost/test/unit_test.hpp>
#include <fstream>
#include <random>

#include "base/error.h"
#include "dcp/metadata.h"
#include "dcp/pickle.h"
#include "support/fuzz.h"

using namespace meshard;
using pickle::Items;
using pickle::Pairs;
using pickle::Value;
using Kind = Value::Kind;

namespace {

// Real ones, of torch 2.13 by torch.distributed.checkpoint.save(): plain (one process: a nested dict with bf16, a
// transposed, a 0-d and an empty tensor, and plain values), fsdp2 (get_model_state_dict and get_optimizer_state_dict of
// two Linears under fully_shard and AdamW, 2 gloo ranks), dtensor (Shard(1), Shard(0), Replicate and a tensor of one
// row by Shard(0), 2 gloo ranks). `old` is written by Python's pickle, protocol 2, as torch 2.1 spelled it: properties
// and enum of _shard.sharded_tensor.metadata, the enum by getattr, no version, no storage_meta.
std::string golden(const std::string& name) {
  std::ifstream file(std::string(MESHARD_GOLDENS) + "/dcp/" + name + ".metadata", std::ios::binary);
  BOOST_TEST_REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

CheckpointMetadata decode(const std::string& bytes) {
  return decode_metadata(std::as_bytes(std::span(bytes)), "file");
}
std::string encode(const CheckpointMetadata& metadata) {
  return encode_metadata(metadata, "/some/where", "id");
}

std::string reason_of(const std::string& bytes) {
  try {
    decode(bytes);
  } catch (const IoError& error) {
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  BOOST_TEST_MESSAGE("missing `" << part << "` in: " << text);
  return false;
}

bool same(const TensorEntry& a, const TensorEntry& b) {
  auto same_chunk = [](auto& a, auto& b) { return a.box == b.box && a.place == b.place; };
  return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.chunks, b.chunks, same_chunk);
}

bool same(const CheckpointMetadata& a, const CheckpointMetadata& b) {
  auto same_pair = [](auto& a, auto& b) { return a.first == b.first && same(a.second, b.second); };
  return std::ranges::equal(a.tensors, b.tensors, same_pair) && a.values == b.values && a.paths == b.paths;
}

/// Two tensors in chunks, a 0-d one, an empty one, a byte item.
CheckpointMetadata example() {
  CheckpointMetadata metadata;
  metadata.tensors["model.a.weight"] = {
      c10::kFloat,
      {5, 8},
      {{{{0, 0}, {3, 8}}, {"__0_0.distcp", 0, 1000}}, {{{3, 0}, {2, 8}}, {"__1_0.distcp", 64, 900}}}};
  metadata.tensors["model.b"] = {c10::kBFloat16, {2}, {{{{0}, {2}}, {"__1_0.distcp", 1000, 1LL << 40}}}};
  metadata.tensors["step"] = {c10::kLong, {}, {{{{}, {}}, {"__0_0.distcp", 1000, 500}}}};
  metadata.tensors["none"] = {c10::kDouble, {0, 4}, {}};
  metadata.values["optimizer.param_groups.0.lr"] = {"__0_0.distcp", 2000, 300};
  metadata.paths["model.a.weight"] = {"model", "a.weight"};
  metadata.paths["optimizer.param_groups.0.lr"] = {"optimizer", "param_groups", 0, "lr"};
  return metadata;
}

bool allow_all(std::string_view, std::string_view) {
  return true;
}

/// What `change` makes of the pickle of example(), given the root's state, ready to be changed.
template <typename Change>
std::string changed(Change change) {
  auto bytes = encode(example());
  auto root = pickle::read(std::as_bytes(std::span(bytes)), "example", allow_all);
  change(root.items()[2]);
  return pickle::write(root);
}

Value& field_of(const Value& dict, std::string_view key) {
  return const_cast<Value&>(*dict.find(key));
}
Value& item(const Value& value, std::size_t index) {
  return value.node()->items.at(index);
}
const Value& state_of(const Value& object) {
  return object.items()[2];
}
Value& entry_field(const Value& root, std::string_view key, std::string_view field) {
  return field_of(state_of(field_of(field_of(root, "state_dict_metadata"), key)), field);
}
/// A field of the first entry of storage_data, "model.a.weight" at [0, 0]: of its index or of its _StorageInfo.
Value& index_field(const Value& root, std::string_view field) {
  return field_of(state_of(field_of(root, "storage_data").pairs()[0].first), field);
}
Value& info_field(const Value& root, std::string_view field) {
  return field_of(state_of(field_of(root, "storage_data").pairs()[0].second), field);
}
Value& chunk_field(const Value& root, std::size_t chunk, std::string_view field) {
  return field_of(state_of(item(entry_field(root, "model.a.weight", "chunks"), chunk)), field);
}
Value size_of(const Shape& shape) {
  Items sizes;
  for (auto size : shape) sizes.push_back(Value::integer_of(size));
  return Value::call(Value::global("torch", "Size"), {Value::tuple(sizes)});
}

}  // namespace

// Catches: a reader that only knows what we write ourselves.
BOOST_AUTO_TEST_CASE(real_metadata_of_one_process) {
  auto metadata = decode(golden("plain"));
  BOOST_TEST(metadata.tensors.size() == 6);
  BOOST_TEST(same(metadata.tensors.at("model.half"),
                  {c10::kBFloat16, {2, 3}, {{{{0, 0}, {2, 3}}, {"__0_0.distcp", 7882, 1577}}}}));
  BOOST_TEST(same(metadata.tensors.at("model.scalar"), {c10::kFloat, {}, {{{{}, {}}, {"__0_0.distcp", 11036, 1577}}}}));
  BOOST_TEST(same(metadata.tensors.at("model.empty"), {c10::kFloat, {0, 4}, {}}));
  BOOST_TEST((metadata.tensors.at("model.t").shape == Shape{3, 2}));
  BOOST_TEST((metadata.tensors.at("model.ids").dtype == c10::kLong));
  BOOST_TEST(metadata.values.size() == 5);
  BOOST_TEST((metadata.values.at("step") == ItemPlace{"__0_0.distcp", 5044, 1261}));
  BOOST_TEST((metadata.paths.at("optimizer.param_groups.0.lr") ==
              std::vector<PathElement>{"optimizer", "param_groups", 0, "lr"}));
}

// Catches: chunks of several ranks mixed up; a cut along dimension 1; a chunk without elements, which has no data.
BOOST_AUTO_TEST_CASE(real_metadata_of_two_ranks) {
  auto fsdp2 = decode(golden("fsdp2"));
  BOOST_TEST(fsdp2.tensors.size() == 16);
  auto& moment = fsdp2.tensors.at("optimizer.state.0.weight.exp_avg_sq");
  BOOST_TEST_REQUIRE(moment.chunks.size() == 2);
  BOOST_TEST((moment.chunks[1].box == Box{{4, 0}, {3, 5}}));
  BOOST_TEST(moment.chunks[1].place.file == "__1_0.distcp");
  BOOST_TEST((fsdp2.paths.at("model.0.weight") == std::vector<PathElement>{"model", "0.weight"}));

  auto dtensor = decode(golden("dtensor"));
  BOOST_TEST(same(dtensor.tensors.at("cols"),
                  {c10::kFloat,
                   {5, 8},
                   {{{{0, 0}, {5, 4}}, {"__0_0.distcp", 0, 1641}}, {{{0, 4}, {5, 4}}, {"__1_0.distcp", 0, 1641}}}}));
  BOOST_TEST(dtensor.tensors.at("tiny").chunks.size() == 1);
}

// Catches: spellings of older versions refused.
BOOST_AUTO_TEST_CASE(metadata_as_it_was_spelled_before) {
  auto metadata = decode(golden("old"));
  BOOST_TEST(same(metadata.tensors.at("w"),
                  {c10::kFloat,
                   {4, 3},
                   {{{{0, 0}, {2, 3}}, {"__0_0.distcp", 0, 1000}}, {{{2, 0}, {2, 3}}, {"__1_0.distcp", 0, 1000}}}}));
  BOOST_TEST((metadata.values.at("lr") == ItemPlace{"__0_0.distcp", 1000, 500}));
}

// Catches: anything lost or changed between writing and reading; chunks in another order; absent paths.
BOOST_AUTO_TEST_CASE(metadata_come_back_as_they_went) {
  BOOST_TEST(same(decode(encode(example())), example()));
  for (auto* name : {"plain", "fsdp2", "dtensor", "old"}) {
    auto metadata = decode(golden(name));
    BOOST_TEST(same(decode(encode(metadata)), metadata));
  }
  BOOST_TEST(same(decode(encode({})), {}));
  auto turned = example();
  std::ranges::reverse(turned.tensors["model.a.weight"].chunks);
  BOOST_TEST(same(decode(encode(turned)), example()));
}

// Catches: a dtype under a wrong name.
BOOST_AUTO_TEST_CASE(every_dtype_has_its_name) {
  using enum c10::ScalarType;
  for (auto dtype : {Float, Half, BFloat16, Double, Long, Int, Short, Char, Byte, Bool, UInt16, UInt32, UInt64,
                     Float8_e4m3fn, Float8_e5m2, ComplexFloat}) {
    CheckpointMetadata metadata;
    metadata.tensors["x"] = {dtype, {0}, {}};
    BOOST_TEST((decode(encode(metadata)).tensors.at("x").dtype == dtype));
  }
  CheckpointMetadata metadata;
  metadata.tensors["x"] = {c10::ScalarType::QInt8, {0}, {}};
  BOOST_CHECK_THROW(encode(metadata), ArgumentError);
  BOOST_TEST(contains(reason_of(changed([](auto& root) {
                        item(item(entry_field(root, "model.b", "properties"), 2), 0) = Value::global("torch", "qint8");
                      })),
                      "`torch.qint8` has no place here"));
}

// Catches: keys that are not understood taken for damage; newer and unknown fields.
BOOST_AUTO_TEST_CASE(extra_fields_are_ignored) {
  auto add = [](const Value& dict, const char* key, Value value) {
    dict.node()->pairs.emplace_back(Value::string(key), std::move(value));
  };
  auto bytes = changed([&](auto& root) {
    add(root, "later", Value::list({}));
    add(state_of(field_of(field_of(root, "state_dict_metadata"), "model.b")), "later", Value::none());
    add(state_of(field_of(root, "storage_data").pairs()[0].second), "transform_descriptors", Value::list({}));
    auto path = Value::call(Value::global("pathlib._local", "PosixPath"), {Value::string("/"), Value::string("x")});
    field_of(state_of(field_of(root, "storage_meta")), "checkpoint_id") = path;
    field_of(root, "version") = Value::string("1.1.0");
  });
  BOOST_TEST(same(decode(bytes), example()));
}

// Catches: a file that leads outside of its folder, numbers that wrap, lists that contradict each other.
BOOST_AUTO_TEST_CASE(metadata_that_cannot_be_are_refused) {
  using Change = std::function<void(const Value& root)>;
  auto chunk_count = [](const Value& root) -> Items& {
    return entry_field(root, "model.a.weight", "chunks").node()->items;
  };
  auto storage = [](const Value& root) -> Pairs& { return field_of(root, "storage_data").node()->pairs; };
  auto number = [](std::int64_t value) { return Value::integer_of(value); };
  auto file = [](std::string name) {
    return [=](auto& root) { info_field(root, "relative_path") = Value::string(name); };
  };
  std::pair<std::string, Change> cases[] = {
      {"a file that is not one of the checkpoint's folder", file("/etc/passwd")},
      {"a file that is not one of the checkpoint's folder", file("../x")},
      {"a file that is not one of the checkpoint's folder", file("a/b")},
      {"a file that is not one of the checkpoint's folder", file("..")},
      {"a file that is not one of the checkpoint's folder", file(".")},
      {"a file that is not one of the checkpoint's folder", file("")},
      {"model.a.weight: a size or offset", [&](auto& root) { info_field(root, "offset") = number(-1); }},
      {"model.a.weight: a size or offset", [&](auto& root) { info_field(root, "length") = number(-1); }},
      {"model.a.weight: a size or offset", [&](auto& root) { info_field(root, "length") = Value::real(1); }},
      {"an end beyond 64 bits",
       [&](auto& root) {
         info_field(root, "offset") = number(INT64_MAX);
         info_field(root, "length") = number(1);
       }},
      {"a size or offset",
       [&](auto& root) { info_field(root, "offset") = Value::integer_of_bytes(std::string(9, '\x7f')); }},
      {"a name is not text", [&](auto& root) { info_field(root, "relative_path") = number(1); }},
      {"compressed or otherwise transformed",
       [&](auto& root) {
         state_of(storage(root)[0].second)
             .node()
             ->pairs.emplace_back(Value::string("transform_descriptors"), Value::list({Value::string("zstd")}));
       }},
      {"model.a.weight: a size or offset",
       [&](auto& root) {
         entry_field(root, "model.a.weight", "size") = size_of({-5, 8});
       }},
      {"none: 65 dimensions; tensors have at most 64",
       [&](auto& root) { entry_field(root, "none", "size") = size_of(Shape(65, 0)); }},
      {"a file that is not one of the checkpoint's folder", file(std::string(256, 'x'))},
      {"model.a.weight: a shape beyond 64 bits",
       [&](auto& root) {
         entry_field(root, "model.a.weight", "size") = size_of({1LL << 31, 1LL << 30});
       }},
      {"a shape beyond 64 bits",
       [&](auto& root) {
         entry_field(root, "none", "size") = size_of({0, 1LL << 31, 1LL << 31});
       }},
      {"model.a.weight: chunk [0:3, 0:8] is not inside [0:4, 0:4]",
       [&](auto& root) {
         entry_field(root, "model.a.weight", "size") = size_of({4, 4});
       }},
      {"chunk [0:3, 0:8] is not inside [0:40]",
       [&](auto& root) { entry_field(root, "model.a.weight", "size") = size_of({40}); }},
      {"is not inside",
       [&](auto& root) {
         chunk_field(root, 0, "offsets") = size_of({INT64_MAX, 0});
       }},
      {"is not inside",
       [&](auto& root) {
         chunk_field(root, 0, "sizes") = size_of({INT64_MAX, 8});
       }},
      {"is not inside", [&](auto& root) { chunk_field(root, 0, "sizes") = size_of({3}); }},
      {"two chunks at the place of [3:5, 0:8]", [&](auto& root) { chunk_count(root).push_back(chunk_count(root)[1]); }},
      {"two chunks at the place",
       [&](auto& root) {
         chunk_field(root, 1, "offsets") = size_of({0, 0});
       }},
      {"model.a.weight: data at [3, 0], where no chunk begins", [&](auto& root) { chunk_count(root).pop_back(); }},
      {"model.a.weight: data at [1, 0], where no chunk begins",
       [&](auto& root) {
         index_field(root, "offset") = size_of({1, 0});
       }},
      {"model.a.weight: data without an entry", [&](auto& root) { index_field(root, "offset") = Value::none(); }},
      {"nobody: data without an entry", [&](auto& root) { index_field(root, "fqn") = Value::string("nobody"); }},
      {"lr: data without an entry",
       [&](auto& root) { index_field(root, "fqn") = Value::string("optimizer.param_groups.0.lr"); }},
      {"model.a.weight: chunk [0:3, 0:8] has no data", [&](auto& root) { storage(root).erase(storage(root).begin()); }},
      {"optimizer.param_groups.0.lr: it has no data", [&](auto& root) { storage(root).pop_back(); }},
      {"model.a.weight: data listed twice", [&](auto& root) { storage(root).push_back(storage(root)[0]); }},
      {"model.a.weight: listed twice",
       [&](auto& root) {
         auto& entries = field_of(root, "state_dict_metadata").node()->pairs;
         entries.push_back(entries[0]);
       }},
      {"Metadata: format version `2.0`", [&](auto& root) { field_of(root, "version") = Value::string("2.0"); }},
      {"`storage_data` is of a wrong type", [&](auto& root) { field_of(root, "storage_data") = Value::none(); }},
      {"`planner_data` is of a wrong type", [&](auto& root) { field_of(root, "planner_data") = Value::list({}); }},
      {"not of names and numbers",
       [&](auto& root) {
         field_of(field_of(root, "planner_data"), "model.a.weight") = Value::tuple({Value::real(1)});
       }},
      {"not a tuple",
       [&](auto& root) { field_of(field_of(root, "planner_data"), "model.a.weight") = Value::string("w"); }},
      {"`chunks` is of a wrong type", [&](auto& root) { entry_field(root, "model.b", "chunks") = Value::none(); }},
      {"no torch.Size", [&](auto& root) { entry_field(root, "model.b", "size") = Value::tuple({number(2)}); }},
      {"model.b: no TensorStorageMetadata",
       [&](auto& root) { field_of(field_of(root, "state_dict_metadata"), "model.b") = Value::none(); }},
      {"model.b: no dtype",
       [&](auto& root) { item(item(entry_field(root, "model.b", "properties"), 2), 0) = Value::none(); }},
      {"a layout other than torch.strided",
       [&](auto& root) {
         item(item(entry_field(root, "model.b", "properties"), 2), 1) =
             Value::call(Value::global("torch.serialization", "_get_layout"), {Value::string("torch.sparse_coo")});
       }},
      {"properties without dtype",
       [&](auto& root) { item(entry_field(root, "model.b", "properties"), 2) = Value::tuple({}); }},
      {"`size` is missing",
       [&](auto& root) {
         std::erase_if(state_of(field_of(field_of(root, "state_dict_metadata"), "model.b")).node()->pairs,
                       [](auto& pair) { return pair.first.text() == "size"; });
       }},
      {"a key: a name is not text",
       [&](auto& root) { field_of(root, "state_dict_metadata").node()->pairs[0].first = number(1); }},
      {"`posix.system` has no place here",
       [&](auto& root) { field_of(root, "storage_meta") = Value::call(Value::global("posix", "system"), {}); }},
  };
  for (auto& [part, change] : cases) BOOST_TEST(contains(reason_of(changed(change)), part));
  BOOST_TEST(contains(reason_of("\x80\x02N."), "file: Metadata: no Metadata"));
}

// Catches: dimensions that PyTorch has and we refuse.
BOOST_AUTO_TEST_CASE(sixty_four_dimensions_are_read) {
  CheckpointMetadata metadata;
  metadata.tensors["x"] = {c10::kFloat, Shape(64, 1), {{whole(Shape(64, 1)), {"__0_0.distcp", 0, 1000}}}};
  BOOST_TEST(same(decode(encode(metadata)), metadata));
}

// Catches: an input that crashes, hangs, or is taken for a checkpoint that then cannot be written again.
BOOST_AUTO_TEST_CASE(damaged_metadata_end_in_an_io_error) {
  const int inputs = fuzz_inputs();
  std::vector<std::string> seeds{encode(example())};
  for (auto* name : {"plain", "fsdp2", "dtensor", "old"}) {
    seeds.push_back(golden(name));
    seeds.push_back(encode(decode(seeds.back())));
  }
  std::mt19937 random(7);
  auto below = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random); };
  const std::string opcodes(
      "(.012BCGJKMNQRX]abcehjqrstu})\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8f\x90\x91\x93\x94\x95");
  int refused = 0;
  for (int i = 0; i < inputs; ++i) {
    auto bytes = seeds[below(seeds.size())];
    for (auto changes = 1 + below(3); changes > 0 && bytes.size() > 1; --changes) {
      auto where = below(bytes.size()), count = 1 + below(std::min<std::size_t>(40, bytes.size() - where));
      switch (below(7)) {
        case 0:
          bytes[where] = static_cast<char>(below(256));
          break;
        case 1:
          bytes[where] = static_cast<char>(bytes[where] ^ 1 << below(8));
          break;
        case 2:
          bytes[where] = opcodes[below(opcodes.size())];
          break;
        case 3:
          bytes.insert(where, 1, opcodes[below(opcodes.size())]);
          break;
        case 4:
          bytes.insert(below(bytes.size()), bytes.substr(where, count));
          break;
        case 5:
          bytes.erase(where, count);
          break;
        default:
          bytes.resize(where);
      }
    }
    try {
      auto metadata = decode(bytes);
      BOOST_TEST_REQUIRE(same(decode(encode(metadata)), metadata));
    } catch (const IoError&) {
      ++refused;
    }
  }
  BOOST_TEST(refused > inputs / 2);
  BOOST_TEST(refused < inputs);
}
