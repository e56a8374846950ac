#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "sharding/flat_layout.h"

using namespace meshard;

namespace {

void check_guarantees(const GlobalLayout& layout) {
  std::vector<FlatRange> taken;
  for (int i = 0; i < layout.count(); ++i) {
    BOOST_TEST(layout.offset(i) % layout.row_size(i) == 0);
    taken.push_back({layout.offset(i), layout.offset(i) + layout.numel(i)});
    std::int64_t rows = 0;
    for (int shard = 0; shard < layout.num_shards(); ++shard) rows += layout.rows(i, shard).count();
    BOOST_TEST(rows == layout.shape(i)[0]);
  }
  std::erase_if(taken, [](const FlatRange& range) { return range.count() == 0; });
  std::ranges::sort(taken, {}, &FlatRange::begin);
  for (std::size_t i = 1; i < taken.size(); ++i) BOOST_TEST(taken[i - 1].end <= taken[i].begin);
  if (!taken.empty()) BOOST_TEST(taken.back().end <= layout.size());
  BOOST_TEST(layout.size() % (layout.chunk() * layout.num_shards()) == 0);

  std::int64_t gaps = 0;
  for (auto& gap : layout.gaps_in({0, layout.size()})) gaps += gap.count();
  BOOST_TEST(gaps == layout.padding());
}

}  // namespace

// Catches: any change of the layout; checkpoints, plans and peers rely on it to the element.
BOOST_AUTO_TEST_CASE(goldens) {
  auto cases = nlohmann::json::parse(std::ifstream(MESHARD_GOLDENS "/layout.json"))["cases"];
  BOOST_TEST(cases.size() == 120u);
  for (auto& golden : cases) {
    BOOST_TEST_CONTEXT(golden["name"] << " dp_size " << golden["dp_size"]) {
      auto shapes = golden["shapes"].get<std::vector<Shape>>();
      auto layout = GlobalLayout::build(shapes, golden["dp_size"]);
      BOOST_TEST(layout.chunk() == golden["chunk"]);
      BOOST_TEST(layout.size() == golden["size"]);
      for (int i = 0; i < layout.count(); ++i) {
        BOOST_TEST(layout.offset(i) == golden["offsets"][i]);
        for (int shard = 0; shard < layout.num_shards(); ++shard) {
          BOOST_TEST(layout.rows(i, shard).count() == golden["rows_per_rank"][shard][i]);
        }
      }
      check_guarantees(layout);
    }
  }
}

// Catches: overlap, cut rows or lost rows in layouts that no golden has.
BOOST_AUTO_TEST_CASE(random_layouts_keep_the_guarantees) {
  std::mt19937 random(7);
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  for (int round = 0; round < 500; ++round) {
    std::vector<Shape> shapes(draw(0, 12));
    for (auto& shape : shapes) {
      shape = {draw(0, 40)};
      for (auto d = draw(0, 2); d > 0; --d) shape.push_back(draw(1, 12));
    }
    BOOST_TEST_CONTEXT("round " << round) {
      check_guarantees(GlobalLayout::build(shapes, draw(1, 9)));
    }
  }
}

// Catches: shapes that cannot be cut by rows being accepted, or refused without saying which.
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
