#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/error.h"
#include "sharding/flat_layout.h"

using namespace meshard;

namespace {

// The layout told element by element, slow and plain on purpose: nothing is shared with the code under test.
struct Reference {
  std::vector<std::int64_t> offsets;
  std::vector<std::vector<std::int64_t>> owned;  // [tensor][shard]
  std::int64_t size = 0;

  Reference(const std::vector<Shape>& shapes, int shards) {
    std::vector<int> owner;  // of each place of the buffer: its tensor, -1 for none
    for (int i = 0; i < static_cast<int>(shapes.size()); ++i) {
      while (owner.size() % 64 != 0) owner.push_back(-1);
      offsets.push_back(static_cast<std::int64_t>(owner.size()));
      std::int64_t elements = 1;
      for (auto extent : shapes[i]) elements *= extent;
      owner.insert(owner.end(), elements, i);
    }
    while (owner.size() % (64 * shards) != 0) owner.push_back(-1);
    size = static_cast<std::int64_t>(owner.size());
    owned.assign(shapes.size(), std::vector<std::int64_t>(shards, 0));
    for (std::int64_t place = 0; place < size; ++place) {
      if (owner[place] >= 0) ++owned[owner[place]][place / (size / shards)];
    }
  }
};

template <class Owned>
void check(const GlobalLayout& layout, const std::vector<std::int64_t>& offsets, std::int64_t size, Owned owned) {
  BOOST_TEST(layout.size() == size);
  std::int64_t held = 0;
  for (int i = 0; i < layout.count(); ++i) {
    BOOST_TEST(layout.offset(i) == offsets[i]);
    std::int64_t next = 0;  // elements of a tensor fall to the shards in order, none twice
    for (int shard = 0; shard < layout.num_shards(); ++shard) {
      auto elements = layout.elements(i, shard);
      BOOST_TEST(elements.count() == owned(i, shard));
      if (elements.count() > 0) BOOST_TEST(elements.begin == std::exchange(next, elements.end));
    }
    BOOST_TEST(next == layout.numel(i));
    held += layout.numel(i);
  }
  BOOST_TEST(layout.padding() == size - held);
  if (layout.count() > 0) BOOST_TEST(layout.padding() < 64 * (layout.count() + layout.num_shards()));
  std::int64_t gaps = 0;
  for (int shard = 0; shard < layout.num_shards(); ++shard) {
    for (auto& gap : layout.gaps_in(layout.shard(shard))) gaps += gap.count();
  }
  BOOST_TEST(gaps == layout.padding());
}

}  // namespace

// Catches: any change of the layout; plans, memory and peers rely on it to the element.
BOOST_AUTO_TEST_CASE(goldens) {
  auto cases = nlohmann::json::parse(std::ifstream(MESHARD_GOLDENS "/layout_packed.json"))["cases"];
  BOOST_TEST(cases.size() == 120u);
  for (auto& golden : cases) {
    BOOST_TEST_CONTEXT(golden["name"] << " in " << golden["num_shards"] << " shards") {
      auto layout = GlobalLayout::build(golden["shapes"].get<std::vector<Shape>>(), golden["num_shards"]);
      check(layout, golden["offsets"], golden["size"],
            [&](int i, int shard) { return golden["elements_per_shard"][i][shard].get<std::int64_t>(); });
    }
  }
}

// Catches: overlap, lost elements, a wrong shard or too much padding in layouts that no golden has.
BOOST_AUTO_TEST_CASE(random_layouts_equal_the_reference) {
  std::mt19937 random(7);
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  for (int round = 0; round < 400; ++round) {
    std::vector<Shape> shapes(draw(0, 12));
    for (auto& shape : shapes) {
      shape = {draw(0, 40)};
      for (auto d = draw(0, 2); d > 0; --d) shape.push_back(draw(1, 12));
    }
    auto shards = static_cast<int>(draw(1, 9));
    Reference expected(shapes, shards);
    BOOST_TEST_CONTEXT("round " << round) {
      check(GlobalLayout::build(shapes, shards), expected.offsets, expected.size,
            [&](int i, int shard) { return expected.owned[i][shard]; });
    }
  }
}

// Catches: shapes that have no elements to cut being accepted, or refused without saying which.
BOOST_AUTO_TEST_CASE(impossible_shapes_are_refused_by_index) {
  auto says = [](const std::string& text) {
    return [text](const Error& error) { return std::string(error.what()).find(text) != std::string::npos; };
  };
  std::vector<Shape> scalar = {{2, 2}, {}}, hollow = {{3, 0}};
  BOOST_CHECK_EXCEPTION(GlobalLayout::build(scalar, 2), ShapeError, says("tensor 1"));
  BOOST_CHECK_EXCEPTION(GlobalLayout::build(hollow, 2), ShapeError, says("[3, 0]"));
  BOOST_CHECK_EXCEPTION(GlobalLayout::build({}, 0), ArgumentError, says("at least 1 shard"));
  BOOST_TEST(GlobalLayout::build({}, 3).size() == 0);
}
