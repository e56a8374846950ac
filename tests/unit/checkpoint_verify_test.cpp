// What `inspect --verify`, and every load, finds out about a checkpoint. Items alone: checkpoint_damage_test.cpp.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <limits>

#include "checkpoint/describe.h"
#include "support/saved_checkpoint.h"

using namespace meshard;
using meshard::test::Saved;
using pickle::Value;
using Json = nlohmann::ordered_json;

namespace {

const std::string kKey = "model.w", kStep = "optimizer.state.w.step";

Saved saved() {
  Saved saved;
  saved.tensor(kKey, at::arange(12, at::kFloat).view({3, 4}), {{{0, 0}, {2, 4}}, {{2, 0}, {1, 4}}});
  saved.tensor(kStep, at::scalar_tensor(3)).value("optimizer.param_groups.0.lr", Value::real(0.5));
  return saved;
}

/// The one problem; "" if there is none.
std::string problem_of(const CheckpointReader& reader) {
  auto found = reader.verify();
  BOOST_TEST(found.problems.size() <= 1u, found.problems_text());
  return found.sound() ? "" : found.problems.front();
}

std::string problem_of(Saved spoilt, const Json& facts = {}) {
  return problem_of(spoilt.reader(facts));
}

}  // namespace

// Catches: data of PyTorch's items that nobody checked, of any chunk or value; a text that claims what was not done.
BOOST_AUTO_TEST_CASE(changed_data_are_found_whoever_wrote_them) {
  auto good = saved();
  auto found = good.reader().verify();
  BOOST_TEST(found.sound(), found.problems_text());
  BOOST_TEST(found.summed.items == 4);
  BOOST_TEST(found.summed.bytes > 52);
  BOOST_TEST(found.summed.bytes < std::ssize(good.data));
  BOOST_TEST(found.checked_text() ==
             fmt::format("checked: 4 items of {} bytes against the CRC-32 of their archives (PyTorch wrote no other "
                         "checksum); shapes and dtypes; every tensor is tiled exactly once",
                         found.summed.bytes));
  auto ours = saved().reader({{"step", 3}}).verify();
  BOOST_TEST(ours.checked_text() ==
             fmt::format("checked: 4 items of {} bytes against the CRC-32C in meshard.json, which covers itself and "
                         ".metadata; shapes and dtypes; every tensor is tiled exactly once",
                         good.data.size()));
  auto second = good.metadata.tensors.at(kKey).chunks[1].place;
  for (auto at : {good.data_of(kKey), good.data_of(kKey) + 31,
                  static_cast<std::size_t>(read_tensor_item(MemoryFile(good.data), second, "").data_offset) + 15}) {
    auto spoilt = good;
    spoilt.flip(at);
    BOOST_TEST(says(problem_of(spoilt), {"model.w of ck/data: its archive/data/0 is damaged: checksum"}));
    auto reader = good.reader({{"step", 3}});
    good.files.put("ck/data", spoilt.data);
    BOOST_TEST(says(problem_of(reader), {"model.w of ck/data: checksum", "its bytes have changed"}));
  }
  auto spoilt = good;
  spoilt.flip(spoilt.data.find("G?\xe0"));  // 0.5 in the pickle of lr
  BOOST_TEST(says(problem_of(spoilt), {"param_groups.0.lr of ck/data", "data.pkl is damaged"}));
}

// Catches: checksums that PyTorch was told not to write taken for damage, or the data without them for checked.
BOOST_AUTO_TEST_CASE(what_has_no_checksum_is_said_not_to_be_checked) {
  auto without = saved();
  auto& place = without.metadata.tensors.at(kStep).chunks[0].place;
  auto end = static_cast<std::size_t>(place.offset + place.length);
  for (auto at = static_cast<std::size_t>(place.offset); (at = without.data.find("PK\1\2", at)) < end; ++at) {
    without.data.replace(at + 16, 4, 4, '\0');
  }
  auto found = without.reader().verify();
  BOOST_TEST(found.sound(), found.problems_text());
  BOOST_TEST(found.summed.items == 3);
  BOOST_TEST(found.unsummed.items == 1);
  BOOST_TEST(says(found.checked_text(), {"checked: 3 items", "\nNOT checked: the data of 1 items of"}));

  auto one = saved();
  auto entry = one.data.rfind("PK\1\2", one.data.find("archive/data/0", one.data.find("PK\1\2")));
  one.data.replace(entry + 16, 4, 4, '\0');
  BOOST_TEST(says(problem_of(one), {"data/0 is damaged", "00000000 when it was written"}));
}

// Catches: an item of another shape or dtype than the index says; a transposed one, which is whole, refused.
BOOST_AUTO_TEST_CASE(items_are_what_the_index_says) {
  auto with_item = [](const at::Tensor& item, Shape shape, at::ScalarType dtype) {
    auto other = saved();
    other.tensor("model.x", item);
    auto& entry = other.metadata.tensors.at("model.x");
    entry.shape = shape;
    entry.dtype = dtype;
    entry.chunks[0].box = whole(shape);
    return other;
  };
  auto ones = at::ones({2, 3});
  for (auto& facts : {Json(), Json{{"step", 3}}}) {
    BOOST_TEST(problem_of(with_item(ones, {2, 3}, at::kFloat), facts) == "");
    BOOST_TEST(says(problem_of(with_item(ones, {3, 2}, at::kFloat), facts),
                    {"model.x of ck/data: the item is [2, 3] of Float, .metadata says [3, 2] of Float"}));
    BOOST_TEST(says(problem_of(with_item(ones, {6}, at::kFloat), facts), {"[2, 3] of Float", "says [6]"}));
    BOOST_TEST(says(problem_of(with_item(ones, {2, 3}, at::kInt), facts), {"of Float", "says [2, 3] of Int"}));
  }
  auto turned = saved();
  auto item = torch_item("transposed");
  ItemPlace place{"data", std::ssize(turned.data), std::ssize(item)};
  turned.metadata.tensors["extra.t"] = {at::kFloat, {4, 3}, {{whole({4, 3}), place}}};
  turned.data += item;
  BOOST_TEST(problem_of(turned) == "");
}

// Catches: two chunks that are one item, an item that ends in the next one, in any order of their keys.
BOOST_AUTO_TEST_CASE(items_do_not_share_bytes) {
  auto twice = saved();
  auto& chunks = twice.tensor("model.x", at::ones({2, 3}), {{{0, 0}, {1, 3}}, {{1, 0}, {1, 3}}})
                     .metadata.tensors.at("model.x")
                     .chunks;
  chunks[1].place = chunks[0].place;
  BOOST_TEST(says(problem_of(twice), {"model.x of ck/data: it begins at byte", "before model.x ends"}));
  BOOST_TEST(says(problem_of(twice, {{"step", 3}}), {"before model.x ends"}));
  BOOST_TEST(says(refusal([&] { twice.reader().require_extents(); }), {"before model.x ends"}));
}

// Catches: an index whose tensors are larger than what there is on the disk: whoever believed it would ask for memory.
BOOST_AUTO_TEST_CASE(an_index_cannot_say_more_than_its_files_hold) {
  saved().reader().require_extents();
  auto with_shape = [](const std::string& key, Shape shape) {
    auto large = saved().tensor(key, at::ones({2, 3}));
    auto& entry = large.metadata.tensors.at(key);
    entry.shape = shape;
    entry.chunks[0].box = whole(shape);
    return large;
  };
  auto refused = [](Saved spoilt) { return refusal([&] { spoilt.reader().require_extents(); }); };
  BOOST_TEST(says(refused(with_shape("model.x", {1'000'000, 1'000'000})),
                  {"model.x of ck/data: its chunk [0:1000000, 0:1000000] has 4000000000000 bytes, the item "}));
  auto longer = saved();
  longer.metadata.tensors.at(kKey).chunks[1].place.length += 1'000'000;
  BOOST_TEST(says(refused(longer), {"model.w of ck/data: it ends beyond its file"}));
  BOOST_TEST(says(problem_of(saved().reader()), {}));
  auto gone = saved();
  gone.metadata.values.at("optimizer.param_groups.0.lr").file = "nothing";
  BOOST_TEST(says(refused(gone), {"nothing"}));
}

// Catches: facts that no run can have written, though their checksum is right; facts of other programs refused.
BOOST_AUTO_TEST_CASE(impossible_facts_are_damage_though_signed) {
  const Json good{{"step", 3}, {"samples", 12}, {"tokens", 96}, {"ranks", 2}, {"fault", "none"}, {"config", "x"}};
  auto refused = [&](const Json& facts) { return refusal([&] { saved().reader(facts); }); };
  BOOST_TEST(refused(good) == "accepted");
  BOOST_TEST(refused(Json::object()) == "accepted");
  BOOST_TEST(refused({{"note", nullptr}, {"step", 0}}) == "accepted");
  for (auto& [name, value, said] : std::initializer_list<std::tuple<const char*, Json, const char*>>{
           {"step", -1, "`step` is -1; expected a whole number from 0"},
           {"step", 3.0, "`step` is 3.0"},
           {"step", "3", "`step` is \"3\""},
           {"step", nullptr, "`step` is null"},
           {"step", std::numeric_limits<std::uint64_t>::max(), "`step` is 18446744073709551615"},
           {"step", 13, "`samples` is 12; expected at least the `step`, 13"},
           {"samples", -12, "`samples` is -12"},
           {"samples", 2, "`samples` is 2; expected at least the `step`, 3"},
           {"samples", 1ll << 60, "`samples` is"},
           {"tokens", -1, "`tokens` is -1"},
           {"tokens", 11, "`tokens` is 11; expected at least the `samples`, 12"},
           {"ranks", 0, "`ranks` is 0; expected a whole number from 1"},
           {"ranks", 1ll << 31, "`ranks` is 2147483648"},
           {"fault", 7, "`fault` is 7; expected text"},
           {"config", Json::array(), "`config` is []; expected text"}}) {
    auto facts = good;
    facts[name] = value;
    BOOST_TEST(says(refused(facts), {"ck/meshard.json is damaged: ", said}));
  }
}

// Catches: a count of steps that nobody counted to, or told without its checkpoint.
BOOST_AUTO_TEST_CASE(counts_of_steps_are_counts) {
  for (auto count : {-1.0, 0.5, double(NAN), double(INFINITY)}) {
    auto odd = saved();
    odd.tensor("optimizer.state.x.step", at::scalar_tensor(count));
    for (auto& facts : {Json(), Json{{"step", 3}}}) {
      auto said = fmt::format("optimizer.state.x.step of ck/data: it is {}: no count of steps", count);
      BOOST_TEST(problem_of(odd, facts) == said);
    }
  }
}

// Catches: a signed step that is far from what the optimizer has done and not said to be; parameters that took
// different numbers of steps together. PyTorch's optimizers count each parameter's own.
BOOST_AUTO_TEST_CASE(counts_of_steps_agree_with_the_signed_step) {
  BOOST_TEST(problem_of(saved(), {{"step", 3}}) == "");
  BOOST_TEST(problem_of(saved(), Json::object()) == "");
  auto apart = saved().tensor("optimizer.state.x.step", at::scalar_tensor(2));
  BOOST_TEST(problem_of(apart, {{"step", 4}}) == "optimizer.state.x.step of ck/data: it is 2, but " + kStep +
                                                     " of ck/data is 3; expected one count for all parameters");
  BOOST_TEST(problem_of(apart) == "");
  auto found = saved().reader({{"step", 1000}}).verify();
  BOOST_TEST(found.sound(), found.problems_text());
  BOOST_TEST(says(found.checked_text(), {"\nNOT done by its optimizer: 997 of the steps that meshard.json counts"}));
}

// Catches: bytes after the JSON of a signed meshard.json, or before it, that no checksum covers.
BOOST_AUTO_TEST_CASE(nothing_hides_around_the_signed_json) {
  auto around = [](const std::string& before, const std::string& after) {
    auto changed = saved();
    changed.reader({{"step", 3}});
    changed.files.put("ck/meshard.json", before + changed.files.text("ck/meshard.json") + after);
    return refusal([&] { CheckpointReader(changed.files, "ck"); });
  };
  BOOST_TEST(around("", "\n") == "accepted");
  BOOST_TEST(says(around("", std::string("\0{}", 3)), {"ck/meshard.json is damaged: line 1, column ", "a NUL byte"}));
  BOOST_TEST(says(around("\xef\xbb\xbf", ""), {"ck/meshard.json is damaged: line 1, column 1: a byte order mark"}));
}

// Catches: pages of problems, or a count of those left out that is wrong.
BOOST_AUTO_TEST_CASE(many_problems_are_cut) {
  Verification found;
  for (int i = 0; i < 23; ++i) found.problems.push_back(fmt::format("p{}", i));
  BOOST_TEST(says(found.problems_text(), {"  p0\n  p1\n", "\n  p19\n  and 3 more"}));
}

// Catches: a key of a hostile checkpoint that prints a line of its own, such as one that says that all is well.
BOOST_AUTO_TEST_CASE(keys_stay_within_their_line) {
  const std::string key = "model.w\nchecked: 9 items\xe2\x80\xa8", safe = "model.w\\nchecked: 9 items\\u2028";
  Saved hostile;
  hostile.tensor(key, at::arange(12, at::kFloat)).value(key + "v", Value::real(0.5));
  auto text = describe_text(hostile.reader(), "");
  BOOST_TEST(text.find("\nchecked") == std::string::npos, text);
  BOOST_TEST(text.find("  " + safe) != std::string::npos, text);
  BOOST_TEST(text.find("  " + safe + "v") != std::string::npos, text);
  hostile.flip(hostile.data_of(key));
  auto problem = problem_of(hostile.reader());
  BOOST_TEST(problem.find("\nchecked") == std::string::npos, problem);
  BOOST_TEST(problem.starts_with(safe + " of "), problem);
}
