#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "hf/safetensors.h"
#include "support/memory_files.h"

using namespace meshard;
using namespace meshard::test;

namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

void write(FileSystem& files, const std::filesystem::path& out, const Named& tensors,
           std::int64_t shard_bytes = kShardBytes) {
  std::vector<SafetensorsItem> items;
  for (auto& [name, values] : tensors) items.push_back({name, values.scalar_type(), values.sizes().vec()});
  write_safetensors(
      files, out, items, [&](std::size_t i) { return tensors[i].second; }, {}, shard_bytes);
}

at::Tensor counting(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::arange(c10::multiply_integers(shape), at::kLong).to(dtype).reshape(shape);
}

/// A file: length, header, and this many bytes of data.
std::string file_of(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, '\1');
}

std::string refusal(const std::string& content) {
  return message_of<IoError>([&] { read_safetensors_header(MemoryFile(bytes_of(content)), "x.safetensors"); });
}

std::string open_refusal(MemoryFiles& files, const std::string& path = "m") {
  return message_of<IoError>([&] { Safetensors(files, path); });
}

const std::string kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

}  // namespace

// Catches: a header, an order or a padding that other readers do not take; more than what was asked for in the folder.
BOOST_AUTO_TEST_CASE(a_file_is_length_header_and_data) {
  MemoryFiles files;
  write(files, "m", {{"b", counting({3}, at::kByte)}, {"a", counting({2})}});
  BOOST_TEST(files.files.size() == 1u);

  std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const float one = 1.0f;
  auto data = std::string(4, '\0') + std::string(reinterpret_cast<const char*>(&one), 4) + std::string("\0\1\2", 3);
  BOOST_TEST(files.text("m/model.safetensors") == file_of(header, 0) + data);
}

// Catches: a dtype under another's name, a value that changes, a 0-d or empty tensor that is lost.
BOOST_AUTO_TEST_CASE(every_dtype_comes_back_as_it_was) {
  MemoryFiles files;
  Named tensors;
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kInt, at::kShort, at::kChar,
                     at::kByte, at::kBool}) {
    tensors.emplace_back(c10::toString(dtype), counting({5, 7}, dtype));
  }
  tensors.emplace_back("scalar", at::full({}, 3.5));
  tensors.emplace_back("empty", at::zeros({0, 4}));
  tensors.emplace_back("random", at::randn({33, 65}));
  write(files, "m", tensors);

  const Safetensors read(files, "m");
  BOOST_TEST(read.tensors().size() == tensors.size());
  for (auto& [name, values] : tensors) {
    BOOST_TEST_CONTEXT(name) {
      auto into = at::full(values.sizes(), 1, values.options());
      read.read(name, whole(values.sizes().vec()), into);
      BOOST_TEST(read.tensors().at(name).dtype == values.scalar_type());
      BOOST_TEST(into.equal(values));
    }
  }
}

// Catches: a box read from another place, into another place, or with a wrong stride.
BOOST_AUTO_TEST_CASE(a_box_goes_into_any_view) {
  MemoryFiles files;
  auto values = at::randn({6, 5, 4});
  write(files, "m", {{"before", counting({3})}, {"x", values}});
  const Safetensors read(files, "m");

  auto target = at::zeros({7, 3, 2, 2});
  auto view = target.select(2, 1).narrow(0, 2, 4).transpose(0, 1).transpose(0, 1);
  read.read("x", {{1, 2, 1}, {4, 3, 2}}, view);
  BOOST_TEST(view.equal(values.narrow(0, 1, 4).narrow(1, 2, 3).narrow(2, 1, 2)));
  BOOST_TEST(target.count_nonzero().item<std::int64_t>() == 24);

  auto column = at::zeros({5, 6});
  read.read("x", {{0, 0, 3}, {6, 5, 1}}, column.t().unsqueeze(2));
  BOOST_TEST(column.t().equal(values.select(2, 3)));
}

// Catches: bf16 files that do not load into fp32 weights, and integers that do so in silence.
BOOST_AUTO_TEST_CASE(values_convert_to_fp32) {
  MemoryFiles files;
  auto values = at::randn({9, 3});
  write(files, "m",
        {{"bf16", values.to(at::kBFloat16)}, {"fp64", values.to(at::kDouble)}, {"int", counting({9, 3}, at::kLong)}});
  const Safetensors read(files, "m");
  auto into = at::zeros({9, 3});
  read.read("bf16", whole({9, 3}), into);
  BOOST_TEST(into.equal(values.to(at::kBFloat16).to(at::kFloat)));
  read.read("fp64", whole({9, 3}), into);
  BOOST_TEST(into.equal(values));
  BOOST_TEST(says(message_of<IoError>([&] { read.read("int", whole({9, 3}), into); }), "`int`"));
}

// Catches: a read beyond the tensor, which would give its neighbour's values.
BOOST_AUTO_TEST_CASE(a_box_must_lie_in_its_tensor) {
  MemoryFiles files;
  write(files, "m", {{"x", counting({4, 2})}, {"y", counting({4, 2})}});
  const Safetensors read(files, "m");
  auto into = at::zeros({2, 2});
  for (const Box& box : {Box{{3, 0}, {2, 2}}, Box{{-1, 0}, {2, 2}}, Box{{0}, {2}}, Box{{0, 0}, {2, 1}}}) {
    BOOST_TEST(says(message_of<ShapeError>([&] { read.read("x", box, into); }), "`x` [4, 2] of m"));
  }
  BOOST_TEST(says(message_of<IoError>([&] { read.read("z", whole({2, 2}), into); }), "m has no tensor `z`"));
}

// Catches: shards beyond the limit, names or an index that Hugging Face does not read, fp32 at an odd offset.
BOOST_AUTO_TEST_CASE(large_models_are_cut_into_shards) {
  MemoryFiles files;
  const Named tensors{{"a", counting({4}, at::kBFloat16)},
                      {"b", counting({3}, at::kBFloat16)},
                      {"bias", counting({1})},
                      {"large", counting({9})},
                      {"c", counting({5})}};
  write(files, "out/m/", tensors, 20);

  using nlohmann::json;
  auto index = json::parse(files.text("out/m/model.safetensors.index.json"));
  BOOST_TEST(index["metadata"]["total_size"] == 8 + 6 + 4 + 36 + 20);
  auto name = [](int i) { return "model-0000" + std::to_string(i) + "-of-00003.safetensors"; };
  BOOST_TEST(index["weight_map"] ==
             json({{"a", name(1)}, {"b", name(1)}, {"bias", name(1)}, {"large", name(2)}, {"c", name(3)}}));
  BOOST_TEST(files.files.size() == 4u);

  const Safetensors read(files, "out/m");
  for (auto& [key, values] : tensors) {
    auto into = at::zeros(values.sizes(), values.options());
    read.read(key, whole(values.sizes().vec()), into);
    BOOST_TEST(into.equal(values));
    BOOST_TEST(read.tensors().at(key).offset % static_cast<std::int64_t>(values.element_size()) == 0);
  }
  const Safetensors shard(files, "out/m/" + name(3));
  BOOST_TEST((shard.tensors().size() == 1 && shard.has("c")));
}

// Catches: an export over another's files, half of one left behind, an old half mixed into a new one.
BOOST_AUTO_TEST_CASE(a_folder_is_written_as_a_whole) {
  MemoryFiles files;
  const Named tensors{{"a", counting({100})}, {"b", counting({100})}};
  files.room = 600;
  BOOST_TEST(says(message_of<IoError>([&] { write(files, "m", tensors); }), "No space left"));
  BOOST_TEST((files.files.empty() && files.folders.empty()));

  files.room = 1 << 20;
  files.make_folder("m.partial");
  files.put("m.partial/old", "");
  write(files, "m", tensors);
  BOOST_TEST((files.files.size() == 1 && files.exists("m/model.safetensors")));

  auto before = files.files;
  BOOST_TEST(says(message_of<ConfigError>([&] { write(files, "m/", tensors); }), "m is there already"));
  BOOST_TEST((files.files == before));
}

// Catches: a file that says one thing and holds another.
BOOST_AUTO_TEST_CASE(what_is_written_must_be_what_was_announced) {
  MemoryFiles files;
  auto give = [&](const at::Tensor& values) {
    return message_of<ShapeError>([&] {
      write_safetensors(files, "m", {{"x", at::kFloat, {2, 3}}}, [&](std::size_t) { return values; });
    });
  };
  for (auto& values : {counting({3, 2}), counting({2, 3}, at::kDouble), counting({3, 2}).t()}) {
    BOOST_TEST(says(give(values), "`x` was announced as Float [2, 3]"));
  }
  BOOST_TEST(give(counting({2, 3})) == "accepted");
  auto duplicate = [&] { write(files, "n", {{"x", counting({1})}, {"x", counting({1})}}); };
  BOOST_TEST(says(message_of<ArgumentError>(duplicate), "called `x`"));
  auto complex = [&] { write(files, "n", {{"x", counting({1}, at::kComplexFloat)}}); };
  BOOST_TEST(says(message_of<ArgumentError>(complex), "`x`: safetensors has no ComplexFloat"));
}

// Catches: small files (config.json) that are lost.
BOOST_AUTO_TEST_CASE(small_files_are_part_of_the_folder) {
  MemoryFiles files;
  write_safetensors(files, "m", {}, {}, {{"config.json", "{}"}});
  BOOST_TEST(files.text("m/config.json") == "{}");
  BOOST_TEST(Safetensors(files, "m").tensors().empty());
}

// Catches: damaged and hostile headers that are believed.
BOOST_AUTO_TEST_CASE(bad_headers_are_refused) {
  BOOST_TEST(refusal(file_of(kOne, 8)) == "accepted");
  BOOST_TEST(refusal(file_of(kOne + "   ", 8)) == "accepted");
  BOOST_TEST(refusal(file_of("{}", 0)) == "accepted");
  BOOST_TEST(refusal(file_of(
                 R"({"__metadata__":{"format":"pt"},"e":{"dtype":"I8","shape":[0,9],"data_offsets":[0,0]}})", 0)) ==
             "accepted");

  BOOST_TEST(says(refusal(""), "0 bytes"));
  BOOST_TEST(says(refusal(std::string(8, '\xff')), "room for 0"));
  BOOST_TEST(says(refusal(file_of(kOne, 8).substr(0, 20)), "room for 12"));
  BOOST_TEST(says(refusal(file_of(kOne, 7)), "cut off"));
  BOOST_TEST(says(refusal(file_of(kOne, 9)), "1 bytes after the last tensor"));
  BOOST_TEST(says(refusal(file_of("[1]", 0)), "no object"));
  BOOST_TEST(says(refusal(file_of("", 0)), "syntax error"));
  BOOST_TEST(says(refusal(file_of(std::string(1000, '['), 0)), "nested more than 3 deep"));
  BOOST_TEST(says(refusal(file_of(R"({"a":{"dtype":{"x":{}}}})", 0)), "nested more than 3 deep"));
  BOOST_TEST(says(refusal(file_of(R"({"a":1,"a":2})", 0)), "`a` stands twice"));
  BOOST_TEST(says(refusal(file_of(R"({"a":{"dtype":"F32","dtype":"F16","shape":[],"data_offsets":[0,4]}})", 4)),
                  "`dtype` stands twice"));
  BOOST_TEST(says(refusal(file_of("{\"\xff\":1}", 0)), "UTF-8"));

  const std::vector<std::pair<std::string, std::string>> entries = {
      {R"(7)", "no object"},
      {R"({"shape":[2],"data_offsets":[0,8]})", "dtype (none)"},
      {R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", "dtype \"F33\""},
      {R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})", "dtype 32"},
      {R"({"dtype":"F32","data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,8]})", "does not fit"},
      {R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})", "does not fit"},
      {R"({"dtype":"F64","shape":[2],"data_offsets":[0,8]})", "[2] of F64 does not fit its 8 bytes"},
      {R"({"dtype":"F32","shape":[2]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", "byte 12 of 8"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "gap before `a`"}};
  for (auto& [entry, part] : entries) {
    auto message = refusal(file_of("{\"a\":" + entry + "}", 8));
    BOOST_TEST(says(message, part), message << " for " << entry);
    BOOST_TEST(says(message, "x.safetensors"));
  }
  BOOST_TEST(says(refusal(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                  8)),
                  "overlaps before `b`"));
}

// Catches: files outside the folder that are opened, shards that are missing or disagree with the index in silence.
BOOST_AUTO_TEST_CASE(an_index_is_checked) {
  MemoryFiles files;
  BOOST_TEST(says(open_refusal(files), "m has neither model.safetensors nor model.safetensors.index.json"));
  files.put("m/1.safetensors", file_of(kOne, 8));
  files.put("secret", file_of(kOne, 8));
  auto index = [&](const std::string& text) {
    files.put("m/model.safetensors.index.json", text);
    return open_refusal(files);
  };
  BOOST_TEST(index(R"({"weight_map":{"a":"1.safetensors"}})") == "accepted");
  BOOST_TEST(says(index("{"), "index.json is damaged"));
  BOOST_TEST(says(index(R"({"weight_map":[]})"), "no weight_map"));
  BOOST_TEST(says(index(R"({"weight_map":{"a":1}})"), "the file of `a`"));
  BOOST_TEST(says(index(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"), "`a` stands twice"));
  BOOST_TEST(says(index(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})"), "m/2.safetensors is missing"));
  BOOST_TEST(says(index(R"({"weight_map":{"b":"1.safetensors"}})"), "`b` is in 1.safetensors: it is not"));
  for (auto* name : {"../secret", "/secret", "sub/x", "..", ".", "", "1.safetensors\\u0000", "..\\\\secret"}) {
    auto message = index(std::string(R"({"weight_map":{"a":")") + name + "\"}}");
    BOOST_TEST(says(message, "only files next to it"), message << " for " << name);
  }
  files.put("m/2.safetensors", file_of(kOne, 8));
  BOOST_TEST(
      says(index(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})"), "`a` is in 1.safetensors and in"));
}

// Catches: bytes that are not compared, or compared with another tensor's.
BOOST_AUTO_TEST_CASE(same_compares_every_byte) {
  MemoryFiles files;
  auto values = at::randn({3 << 20});
  auto other = values.clone();
  other[-1] = 7.0;
  write(files, "m",
        {{"a", values}, {"b", values}, {"c", other}, {"d", values.view({3, -1})}, {"e", values.view(at::kInt)}}, 10);
  const Safetensors read(files, "m");
  BOOST_TEST(read.same("a", "b"));
  for (auto* name : {"c", "d", "e"}) BOOST_TEST(!read.same("a", name), name);
}

// Catches: a header that crashes the reader, takes its memory, or makes it throw something that nobody expects.
BOOST_AUTO_TEST_CASE(mutated_headers_are_read_or_refused) {
  MemoryFiles files;
  write(files, "m",
        {{"model.a", counting({3, 5})}, {"model.b", counting({4}, at::kBFloat16)}, {"c", counting({}, at::kLong)}});
  auto sound = files.text("m/model.safetensors");
  auto header = std::min<std::size_t>(sound.size(), 8 + 300);
  const std::string bytes = "0123456789[]{}\",:-+.eE\\ \xff\x80";
  std::mt19937 random(20);
  auto below = [&](std::size_t n) { return random() % n; };
  int read = 0;
  for (int input = 0; input < 20'000; ++input) {
    auto content = sound;
    for (auto edits = 1 + below(3); edits > 0; --edits) {
      auto at = below(std::min(header, content.size() - 1));
      switch (below(5)) {
        case 0:
          content[at] = static_cast<char>(random());
          break;
        case 1:
          content[at] = bytes[below(bytes.size())];
          break;
        case 2:
          content.erase(at, 1 + below(8));
          break;
        case 3:
          content.insert(at, sound.substr(below(header), 1 + below(40)));
          break;
        default:
          content.resize(1 + at);
          break;
      }
      if (content.size() < 2) break;
    }
    try {
      read_safetensors_header(MemoryFile(bytes_of(content)), "x");
      ++read;
    } catch (const IoError&) {
    }
  }
  BOOST_TEST_MESSAGE(read << " of 20000 were still sound");
  BOOST_TEST((read > 100 && read < 10'000));
}
