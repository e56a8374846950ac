#include <fmt/format.h>

#include "config/config.h"
#include "sweep/status.h"
#include "unit/sweep_fixture.h"

using namespace meshard;
using namespace meshard::testing;
namespace tt = boost::test_tools;

namespace {

std::string refusal(const std::string& parts) {
  return refusal_of([&] { parse_sweep("schema: 1\nbase: b.yaml\n" + parts, "some/sweep.yaml"); });
}

Texts names_of(const std::vector<SweepPoint>& points) {
  Texts names;
  for (auto& point : points) names.push_back(point.name);
  return names;
}

Texts names(const std::string& parts) {
  return names_of(parse_sweep("schema: 1\nbase: b.yaml\n" + parts, "sweep.yaml").points);
}

const std::string kTwo = "grid: {optimizer.lr: [0.001, 0.002]}\n";

}  // namespace

// Catches: a combination that is lost, doubled or out of order; zip that multiplies; an absent part that empties all.
BOOST_AUTO_TEST_CASE(points_are_the_product_of_the_parts) {
  BOOST_TEST(names("grid: {optimizer.lr: [0.1, 0.2], train.steps: [5, 6]}") ==
                 (Texts{"lr=0.1,steps=5", "lr=0.1,steps=6", "lr=0.2,steps=5", "lr=0.2,steps=6"}),
             tt::per_element());
  BOOST_TEST(
      names("zip: {optimizer.lr: [0.1, 0.2], train.steps: [5, 6]}") == (Texts{"lr=0.1,steps=5", "lr=0.2,steps=6"}),
      tt::per_element());
  BOOST_TEST(names("list: [{}, {optimizer.lr: 0.1}, {train.steps: 5, optimizer.type: sgd}]") ==
                 (Texts{"base", "lr=0.1", "steps=5,type=sgd"}),
             tt::per_element());
  BOOST_TEST(names("seeds: [3, 1]") == (Texts{"seed=3", "seed=1"}), tt::per_element());
  BOOST_TEST(names("seeds: [1, 2]\nzip: {optimizer.lr: [0.1, 0.2]}\nlist: [{}, {train.steps: 5}]\n"
                   "grid: {optimizer.eps: [0.5]}") ==
                 (Texts{"eps=0.5,lr=0.1,seed=1", "eps=0.5,lr=0.1,seed=2", "eps=0.5,lr=0.1,steps=5,seed=1",
                        "eps=0.5,lr=0.1,steps=5,seed=2", "eps=0.5,lr=0.2,seed=1", "eps=0.5,lr=0.2,seed=2",
                        "eps=0.5,lr=0.2,steps=5,seed=1", "eps=0.5,lr=0.2,steps=5,seed=2"}),
             tt::per_element());
}

// Catches: names that two points share, that a file system refuses, or in which one key passes for another.
BOOST_AUTO_TEST_CASE(names_are_short_safe_and_unique) {
  BOOST_TEST(names("list: [{optimizer.type: sgd, lr_schedule.type: cosine}]") ==
             Texts{"optimizer.type=sgd,lr_schedule.type=cosine"});
  BOOST_TEST(names("grid: {optimizer.lr: [1.0e-3, 0.25, 1.0e-7], run.threads: [auto]}") ==
                 (Texts{"lr=0.001,threads=auto", "lr=0.25,threads=auto", "lr=1e-07,threads=auto"}),
             tt::per_element());
  BOOST_TEST(names("grid: {data.files: [[a/b c.txt, \"é*\"], [x]], train.max_minutes: [null]}") ==
                 (Texts{"files=a_b_c.txt+_,max_minutes=null", "files=x,max_minutes=null"}),
             tt::per_element());
  BOOST_TEST(names("grid: {optimizer.betas: [[0.9, 0.95]], model.moe: [null, {n_routed_experts: 4}]}").size() == 2);

  auto alike = names("grid: {data.files: [[a b], [a_b], [A_B]]}");
  BOOST_TEST(alike[0] == "files=a_b");
  for (auto i : {1, 2}) BOOST_TEST(alike[i].size() == alike[0].size() + 9);
  BOOST_TEST(alike[1] != alike[2]);

  std::string path(200, 'p');
  auto longer = names("grid: {data.files: [[" + path + "a], [" + path + "b]]}");
  for (auto& name : longer) {
    BOOST_TEST(name.size() == 80);
    BOOST_TEST(name.starts_with("files=ppp"));
  }
  BOOST_TEST(longer[0] != longer[1]);
}

// Catches: an error that hides another, points at no place, or gives no way out.
BOOST_AUTO_TEST_CASE(all_errors_of_a_sweep_are_told_at_once) {
  auto text = refusal(
      "gird: {}\ngrid:\n  optimizer.lr: [0.1, -1, 1.0e-1]\n  optimizer.lrr: [1]\n  optimizer: [1]\n"
      "  train.steps: 5\n  schema: [1]\nzip: {train.seq_len: [1, 2], optimizer.lr: [1, 2, 3]}\n"
      "list: [{train.micro_batch_size: 1}, {train.micro_batch_size: 1}, 3]\nseeds: [1, 1, x]\n");
  BOOST_TEST(
      says(text,
           {"13 problems in some/sweep.yaml", "sweep.yaml:3:1  gird: unknown key; did you mean `grid`?",
            "sweep.yaml:5:23  optimizer.lr: -1 is out of range; expected a number > 0",
            "sweep.yaml:5:27  optimizer.lr: 0.1 stands in the list twice",
            "sweep.yaml:6:3  optimizer.lrr: unknown key; did you mean `lr`?",
            "sweep.yaml:7:3  optimizer: is a section; sweep a key in it", "8:16  train.steps: expected a list",
            "9:3  schema: cannot be swept", "10:30  optimizer.lr: stands in grid too",
            "10:44  optimizer.lr: has 3 values, but train.seq_len has 2", "11:37  list: entry 2 is the same as entry 1",
            "11:66  list: expected a map", "12:12  seeds: entry 2 is the same as entry 1",
            "12:15  run.seed: `x` is not what this key takes; expected an integer"}));
  BOOST_TEST(
      says(refusal("list: [{optimizer.lr: -1}, {optimizer.lr: -2}, {a: 1}, {a: 2}]\nseeds: [x, y]"), {"5 problems"}));
  BOOST_TEST(says(refusal(""), {"1:1  nothing to sweep; expected grid, zip, list or seeds"}));
  BOOST_TEST(says(refusal("seeds: []"), {"3:8  seeds: is empty"}));
  BOOST_TEST(says(refusal("grid: {}"), {"3:7  grid: expected keys with lists of values"}));
  BOOST_TEST(says(refusal("grid: {optimizer.lr: []}"), {"optimizer.lr: is empty; expected a list of values"}));
  BOOST_TEST(says(refusal("zip: {run.seed: [1]}\nseeds: [2]"), {"4:1  run.seed: stands in zip too"}));
  BOOST_TEST(says(refusal("seeds: [1]\nseeds: [2]"), {"4:1  seeds: duplicate key"}));
  for (auto text : {"", "- 1", "seeds: [1]"}) {
    BOOST_TEST(says(refusal_of([&] { parse_sweep(text, "s.yaml"); }), {"s.yaml:1:1  "}));
  }
  BOOST_TEST(says(refusal_of([] { parse_sweep("schema: 2\nbase: [a]\nseeds: [1]", "s"); }),
                  {"schema 2 is not known", "s:2:7  base: a list is not what this key takes"}));
  BOOST_TEST(says(refusal_of([] { load_sweep("/nowhere/s.yaml"); }), {"/nowhere/s.yaml cannot be read (No such file"}));

  std::string hundred;
  for (int i = 0; i < 101; ++i) hundred += fmt::format("{}{}", i ? ", " : "", i + 1);
  BOOST_TEST(says(refusal(fmt::format("seeds: [{}]\nlist: [{{}}]\ngrid: {{train.steps: [{}]}}", hundred, hundred)),
                  {"more than 10000 points"}));
  BOOST_TEST(says(refusal(fmt::format("grid: {{run.seed: [{}], train.steps: [{}]}}", hundred, hundred)),
                  {"3:1  grid: has more than 10000 combinations"}));
}

// Catches: settings that do not arrive in the config, ranks that are not the mesh's, costs of another point's model.
BOOST_FIXTURE_TEST_CASE(points_are_loaded_and_planned, SweepFixture) {
  auto points = checked(
      "list: [{}, {model.hidden_size: 256, optimizer.lr: 0.5}, {parallel.dp_outer: 2, "
      "parallel.dp_shard: 2}, {precision.param: bf16, regression.guards: off}]\nseeds: [7]");
  BOOST_TEST(points.size() == 4);
  for (auto& point : points) BOOST_TEST(point.config.run.seed == 7);
  BOOST_TEST(points[0].ranks == 1);
  BOOST_TEST(points[1].config.model.hidden_size == 256);
  BOOST_TEST(points[1].config.optimizer.lr == 0.5);
  BOOST_TEST(points[1].parameters > points[0].parameters);
  BOOST_TEST(points[2].ranks == 4);
  BOOST_TEST(points[2].parameters == points[0].parameters);
  BOOST_TEST(points[2].bytes_per_rank < points[0].bytes_per_rank);
  BOOST_TEST((points[3].config.precision.param == Dtype::Bf16 && !points[3].config.regression.guards));
  BOOST_TEST(checked("seeds: [1]", {.ranks = 2})[0].config.parallel.dp_shard == 2);

  write(base, testing::kMinimal + "  dp_outer: 2\n  dp_shard: 4\n");
  BOOST_TEST(checked("list: [{}, {parallel.dp_shard: 1}, {parallel.dp_shard: auto, parallel.dp_outer: 1}]")[0].ranks ==
             8);
  BOOST_TEST(checked("list: [{}, {parallel.dp_shard: 1}]")[1].ranks == 2);
  BOOST_TEST(checked("list: [{parallel.dp_shard: auto, parallel.dp_outer: 1}]")[0].ranks == 1);
}

// Catches: a plan shared between points whose memory differs.
BOOST_FIXTURE_TEST_CASE(whatever_costs_memory_is_planned_apart, SweepFixture) {
  for (std::string change : {"model.num_hidden_layers: 3", "optimizer.type: sgd", "train.micro_batch_size: 2",
                             "train.seq_len: 8", "train.activation_checkpoint: full", "precision.param: bf16",
                             "model.tie_word_embeddings: true", "parallel.strategy: ddp"}) {
    auto points = checked("list: [{}, {" + change + "}]", {.ranks = 4});
    BOOST_TEST(points[0].bytes_per_rank != points[1].bytes_per_rank, change);
    auto alone = checked("list: [{" + change + "}]", {.ranks = 4});
    BOOST_TEST(points[1].bytes_per_rank == alone[0].bytes_per_rank, change);
  }
}

// Catches: one error a run instead of all; an error of one point told of others; a message 500 points long.
BOOST_FIXTURE_TEST_CASE(problems_of_points_are_grouped, SweepFixture) {
  auto text = refusal_of(
      [&] { checked("grid: {train.global_batch_size: [8, 9, 3], train.micro_batch_size: [1, 2]}\nseeds: [1, 2]"); });
  BOOST_TEST(
      says(text, {"2 problems in the 12 points of sweep.yaml",
                  "sweep.yaml:3:37  train.global_batch_size: 9 is not a multiple of micro_batch_size 2 x 1 rank = 2; "
                  "nearest: 8, 10  (points global_batch_size=9,micro_batch_size=2,seed=1; "
                  "global_batch_size=9,micro_batch_size=2,seed=2)",
                  "sweep.yaml:3:40  train.global_batch_size: 3 is not a multiple"}));
  text = refusal_of([&] { checked("grid: {optimizer.lr: [0.1, 0.2]}\nseeds: [1, 2, 3]", {.memory_gb = 1e-6}); });
  BOOST_TEST(
      says(text, {"1 problem in the 6 points", "needs 0.00", "GB per rank, above --memory-limit 1e-06  (all points)"}));
  text = refusal_of([&] { checked("list: [{}, {model.num_hidden_layers: 9}]", {.memory_gb = 0.01}); });
  BOOST_TEST(says(text, {"1 problem in the 2 points", "(point num_hidden_layers=9)"}));
  text = refusal_of([&] { checked("grid: {parallel.dp_outer: [1, 2, 3, 4, 5]}", {.ranks = 7}); });
  BOOST_TEST(says(text, {"5 problems", "5 does not divide the 7 ranks"}));

  write(base, testing::kMinimal + "  dp_shrad: 4\n");
  BOOST_TEST(says(refusal_of([&] { checked("seeds: [1, 2]"); }),
                  {"base.yaml:17:3  parallel.dp_shrad: unknown key; did you mean `dp_shard`?  (all points)"}));
  fs::remove(base);
  BOOST_TEST(says(refusal_of([&] { checked("seeds: [1]"); }),
                  {"1 problem in sweep.yaml", "sweep.yaml:2:7  base: ", "is no file: looked for " + base.string(),
                   "relative to the working directory"}));
}

// Catches: names or indices that move when points are added; array jobs would then run other points.
BOOST_FIXTURE_TEST_CASE(added_points_come_last_and_names_stay, SweepFixture) {
  write_sweep(kTwo);
  BOOST_TEST(lines_of(read(out / "points.txt")) == (Texts{"lr=0.001", "lr=0.002"}), tt::per_element());
  auto json = nlohmann::json::parse(read(out / "sweep.json"));
  BOOST_TEST(json["schema"] == 1);
  BOOST_TEST(json["ranks"] == 1);
  BOOST_TEST(json["ranks_option"].is_null());
  BOOST_TEST(json["hash"].get<std::string>().size() == 16);
  BOOST_TEST(json["spec"]["grid"]["optimizer.lr"] == nlohmann::json({0.001, 0.002}));
  BOOST_TEST(json["points"][1] ==
             nlohmann::json({{"name", "lr=0.002"}, {"ranks", 1}, {"settings", {{"optimizer.lr", 0.002}}}}));
  BOOST_TEST(parse_config(read(out / "lr=0.002/point.yaml"), "point.yaml", {}, 1).optimizer.lr == 0.002);
  BOOST_TEST(!fs::exists(out / "lock"));

  auto grown = adopted("grid: {optimizer.lr: [0.0005, 2.0e-3, 1.0e-3]}");
  BOOST_TEST(names_of(grown.points) == (Texts{"lr=0.001", "lr=0.002", "lr=0.0005"}), tt::per_element());
  auto other_way = adopted(
      "list: [{optimizer.lr: 0.002}, {optimizer.lr: 0.001}, {lr_schedule.type: linear}, "
      "{optimizer.type: sgd}]");
  BOOST_TEST(
      names_of(other_way.points) == (Texts{"lr=0.001", "lr=0.002", "lr_schedule.type=linear", "optimizer.type=sgd"}),
      tt::per_element());
}

// Catches: results of another sweep continued as if they were this one's.
BOOST_FIXTURE_TEST_CASE(another_sweep_in_the_folder_is_refused, SweepFixture) {
  write_sweep("grid: {optimizer.lr: [0.001, 0.002], train.steps: [5, 6]}");
  auto text = refusal_of([&] { adopted("grid: {optimizer.lr: [0.001, 0.003], train.steps: [5, 6]}\nseeds: [1]"); });
  BOOST_TEST(says(text, {"sweep.yaml no longer has 4 of the 4 points of " + out.string(), "choose another --out",
                         "optimizer.lr: no longer has 0.002", "run.seed: was not swept before",
                         "points: lr=0.001,steps=5; lr=0.001,steps=6; lr=0.002,steps=5; and 1 more"}));
  text = refusal_of([&] { adopted("grid: {optimizer.lr: [0.001, 0.002], train.steps: [5]}"); });
  BOOST_TEST(says(text, {"no longer has 2 of the 4", "train.steps: no longer has 6\n  points: lr=0.001,steps=6"}));

  auto points = checked("grid: {optimizer.lr: [0.001, 0.002], train.steps: [5, 6]}");
  BOOST_TEST(refusal_of([&] { check_unchanged(points, out); }) == "accepted");
  write(base, testing::with("train", "seq_len: 8"));
  points = checked("grid: {optimizer.lr: [0.001, 0.002], train.steps: [5, 6]}");
  text = refusal_of([&] { check_unchanged(points, out); });
  BOOST_TEST(says(text, {"another base config", "train.seq_len: 16 there, 8 now  (all points)",
                         "model.max_position_embeddings: 16 there, 8 now"}));
  BOOST_TEST(says(refusal_of([&] { check_unchanged({points[1]}, out); }), {"(all points)"}));

  for (auto text : {"{", "[]", "{\"schema\":2}", "{\"schema\":1,\"points\":3}"}) {
    write(out / "sweep.json", text);
    BOOST_TEST(says(refusal_of([&] { read_sweep_record(out); }), {"sweep.json is not what `meshard sweep` writes"}));
  }
  fs::remove(out / "sweep.json");
  BOOST_TEST(
      says(refusal_of([&] { read_sweep_record(out); }), {"but no sweep.json", "choose an empty or a new folder"}));
  BOOST_TEST(says(refusal_of([&] { read_sweep_record(base); }), {"is no folder"}));
  BOOST_TEST(!read_sweep_record(folder / "new").has_value());
}

// Catches: a folder that two sweeps work in, one that is left behind by a refused start, or a user's that is removed.
BOOST_FIXTURE_TEST_CASE(a_sweep_folder_is_locked_and_tidy, SweepFixture) {
  {
    SweepFolder first(out);
    auto text = refusal_of([&] { SweepFolder second(out); });
    BOOST_TEST(says(text, {"the sweep folder " + out.string() + " is locked by process " + std::to_string(getpid()),
                           "choose another --out"}));
    BOOST_TEST(!read_sweep_record(out).has_value());
  }
  BOOST_TEST(!fs::exists(out));
  fs::create_directory(out);
  { SweepFolder again(out); }
  BOOST_TEST(fs::exists(out));
  BOOST_TEST(says(refusal_of([&] { SweepFolder file(base); }), {"cannot make --out " + base.string()}));
}

// Catches: a start that was killed while it set the folder up, and cannot go on.
BOOST_FIXTURE_TEST_CASE(what_a_kill_left_unwritten_is_written, SweepFixture) {
  write_sweep(kTwo);
  fs::remove_all(out / "lr=0.002");
  fs::remove(out / "points.txt");
  write(out / "lr=0.001/metrics.jsonl", "{\"header\":{}}\n");
  auto config = fs::last_write_time(out / "lr=0.001/point.yaml");
  write_sweep(kTwo);
  BOOST_TEST(fs::exists(out / "lr=0.002/point.yaml"));
  BOOST_TEST(lines_of(read(out / "points.txt")).size() == 2);
  BOOST_TEST((fs::last_write_time(out / "lr=0.001/point.yaml") == config));
  BOOST_TEST(fs::exists(out / "lr=0.001/metrics.jsonl"));
}

// Catches: a table that leaves out what differs, or a state that no one can act on.
BOOST_FIXTURE_TEST_CASE(tables_show_every_point, SweepFixture) {
  write_sweep("list: [{}, {optimizer.lr: 0.002}, {optimizer.weight_decay: 0.5}]");
  auto points = checked("list: [{}, {optimizer.lr: 0.002}, {optimizer.weight_decay: 0.5}]");
  const std::string start = "{\"header\":{}}\n{\"step\":4,\"loss\":1.0}\n";
  write(out / "base/metrics.jsonl", start + "{\"end\":{\"exit\":0,\"step\":4,\"reason\":\"done\"}}\n");
  write(out / "lr=0.002/metrics.jsonl", start + "{\"end\":{\"exit\":70,\"step\":4,\"reason\":\"no\"}}\n");
  write(out / "lr=0.002/lock", "{\"host\":\"node7\",\"pid\":12,\"start\":\"1\"}");
  write(out / "weight_decay=0.5/metrics.jsonl", "hello\n");
  std::vector<PointStatus> statuses;
  for (auto& point : points) statuses.push_back(point_status(out / point.point.name));
  BOOST_TEST((statuses[0].done() && !statuses[0].open()));
  BOOST_TEST((!statuses[1].done() && !statuses[1].open()));
  BOOST_TEST(statuses[2].open());
  auto rows = lines_of(points_table(points, statuses));
  BOOST_TEST(rows.size() == 4);
  BOOST_TEST(says(rows[0], {"point ", "optimizer.lr", "optimizer.weight_decay", "ranks", "parameters", "GB per rank"}));
  BOOST_TEST(says(rows[1], {"base ", " 0.0003 ", " 0.1 ", " done"}));
  BOOST_TEST(says(rows[2], {"lr=0.002 ", " 0.002 ", " 0.1 ", " running: process 12 on node7"}));
  BOOST_TEST(says(rows[3], {"weight_decay=0.5 ", " 0.0003 ", " 0.5 ", "metrics.jsonl:1: no line of a run"}));
  statuses[1].holder.reset();
  BOOST_TEST(says(summary_table(points, statuses), {"base                 0  4/10       1  done\n",
                                                    "lr=0.002            70  4/10       1  failed (exit 70)\n"}));
  statuses[1].array_job = "slurm 12";
  BOOST_TEST((!statuses[1].open() && statuses[1].text() == "in slurm 12"));
}
