// The cost model: lanes by hand, one step by hand, and what must hold for every mesh.

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "plan/step_model.h"
#include "plan/trace.h"
#include "unit/plan_config.h"

using namespace meshard;
using meshard::test::config_with;
using meshard::test::kExperts;

namespace {

constexpr double kMicro = 1e-6, kClose = 1e-9;  // s; percent where Boost compares

// Computes in no time, and sends 1 byte a nanosecond: a step is what its communication takes.
Hardware only_links(int ranks_per_node) {
  Hardware hardware;
  hardware.name = "links";
  hardware.ranks_per_node = ranks_per_node;
  hardware.fp32_tflops = hardware.bf16_tflops = hardware.memory_gb_per_s = 1e30;
  hardware.kernel_us = hardware.collective_us = 0.0;
  hardware.node = hardware.network = Link{1.0, 0.0};
  return hardware;
}

// Communication is short beside any product; what has none (the embedding, sums) takes no time.
Hardware slow_cores(int ranks_per_node) {
  auto hardware = only_links(ranks_per_node);
  hardware.fp32_tflops = hardware.bf16_tflops = 1e-3;
  return hardware;
}

StepOperation computes(double seconds, std::array<OperationId, 4> after = {-1, -1, -1, -1}) {
  return {.what = "forward", .fixed_s = seconds, .after = after};
}

StepOperation sends(Lane lane, LinkKind link, double latency, double transfer, std::array<OperationId, 4> after) {
  return {.what = "all_gather",
          .lane = lane,
          .axis = Axis::DpShard,
          .fixed_s = latency,
          .transfer_s = transfer,
          .link = link,
          .after = after};
}

constexpr std::array<OperationId, 4> kAtOnce = {-1, -1, -1, -1};

void check_span(const Span& span, double begin, double end) {
  BOOST_TEST(span.begin == begin, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(span.end == end, boost::test_tools::tolerance(1e-12));
}

double exposed(const StepPrediction& step) {
  double sum = 0.0;
  for (auto& [axis, time] : step.axes) sum += time.exposed_s;
  return sum;
}

struct Mesh4 {
  Strategy strategy;
  int outer;
};

std::vector<std::string> settings_of(const Mesh4& mesh) {
  return {fmt::format("parallel.strategy={}", to_string(mesh.strategy)),
          fmt::format("parallel.dp_outer={}", mesh.outer)};
}

// Every strategy on four ranks, flat and 2 x 2; a model with experts on 1, 2 and 4 of them, two microbatches.
std::vector<Plan> all_plans() {
  std::vector<Plan> plans;
  for (std::size_t strategy = 0; strategy < kStrategyNames.size(); ++strategy) {
    for (int outer : {1, 2, 4}) {
      auto settings = settings_of({static_cast<Strategy>(strategy), outer});
      settings.push_back("train.global_batch_size=8");
      plans.push_back(make_plan(config_with(settings), 4));
      settings.push_back("model.tie_word_embeddings=true");
      plans.push_back(make_plan(config_with(settings), 4));
      settings.pop_back();
      settings.push_back("precision.param=bf16");
      settings.push_back("train.activation_checkpoint=full");
      for (int expert : {1, 2, 4}) {
        settings.push_back(fmt::format("parallel.expert={}", expert));
        plans.push_back(make_plan(config_with(settings, kExperts), 4));
      }
    }
  }
  return plans;
}

std::string name_of(const Plan& plan) {
  return fmt::format("{} {}x{} expert {}", to_string(plan.config.parallel.strategy), plan.mesh.dp_outer(),
                     plan.mesh.dp_shard(), plan.mesh.expert());
}

}  // namespace

// Catches: a lane that runs two at once or out of order, an operation that does not wait, or waits without reason.
BOOST_AUTO_TEST_CASE(lanes_run_in_order_and_wait) {
  auto spans = run_lanes({computes(2.0), sends(Lane::Gather, LinkKind::Node, 0.5, 1.0, kAtOnce),
                          sends(Lane::Gather, LinkKind::Node, 0.0, 1.0, kAtOnce), computes(1.0, {2, -1, -1, -1}),
                          sends(Lane::Reduce, LinkKind::None, 3.0, 0.0, {0, -1, -1, -1}), computes(0.0)});
  check_span(spans[0], 0.0, 2.0);
  check_span(spans[1], 0.0, 1.5);
  check_span(spans[2], 1.5, 2.5);
  check_span(spans[3], 2.5, 3.5);
  check_span(spans[4], 2.0, 5.0);
  check_span(spans[5], 3.5, 3.5);
  BOOST_CHECK_THROW(run_lanes({computes(1.0, {0, -1, -1, -1})}), LogicError);
}

// Catches: two lanes that both get the whole of one link; latency that takes bandwidth; links that are one.
BOOST_AUTO_TEST_CASE(lanes_share_a_link) {
  // The second moves bytes from 0.5 on: until then the first is alone, then each moves half as fast, until it is done.
  auto spans = run_lanes({sends(Lane::Gather, LinkKind::Network, 0.0, 1.0, kAtOnce),
                          sends(Lane::Outer, LinkKind::Network, 0.5, 1.0, kAtOnce)});
  check_span(spans[0], 0.0, 1.5);
  check_span(spans[1], 0.0, 2.0);
  spans = run_lanes({sends(Lane::Gather, LinkKind::Node, 0.0, 1.0, kAtOnce),
                     sends(Lane::Outer, LinkKind::Network, 0.5, 1.0, kAtOnce)});
  check_span(spans[0], 0.0, 1.0);
  check_span(spans[1], 0.0, 1.5);
}

// Catches: axes put on the wrong link, or that cross nodes with one port where several carry them, or more than all.
BOOST_AUTO_TEST_CASE(axes_have_the_slowest_link_on_their_way) {
  Hardware hardware;
  hardware.ranks_per_node = 4;
  hardware.node = Link{100.0, 2.0};
  hardware.network = Link{40.0, 5.0};
  // Eight ranks on two nodes, two by four: the inner axis is a node, the outer has one rank on each.
  MeshShape mesh(8, 2, 4, 8);
  auto inner = axis_link(mesh, Axis::DpShard, hardware), outer = axis_link(mesh, Axis::DpOuter, hardware);
  auto all = axis_link(mesh, Axis::World, hardware);
  BOOST_TEST((inner.link == LinkKind::Node && outer.link == LinkKind::Network && all.link == LinkKind::Network));
  BOOST_TEST(inner.bytes_per_s == 100e9);
  BOOST_TEST(outer.bytes_per_s == 40e9);
  BOOST_TEST(all.bytes_per_s == 100e9);  // four ports, but one link within the node
  BOOST_TEST(inner.latency_s == 3 * 2e-6, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(outer.latency_s == 5e-6, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(all.latency_s == 6 * 2e-6 + 5e-6, boost::test_tools::tolerance(1e-12));
  // All to all: of seven peers four are on the other node, behind one port.
  BOOST_TEST(axis_link(mesh, Axis::Expert, hardware).exchange_bytes_per_s == 40e9 * 7 / 4,
             boost::test_tools::tolerance(1e-12));
  BOOST_TEST(axis_link(mesh, Axis::ExpertDp, hardware).ranks == 1);
  hardware.network.reset();
  BOOST_CHECK_EXCEPTION(axis_link(mesh, Axis::DpOuter, hardware), ConfigError, [](auto& error) {
    return std::string(error.what()).find("between nodes of 4 ranks, but the file has no `network`") !=
           std::string::npos;
  });
}

// The embedding is 1,024 elements, a layer 2,816, the head 1,280: over four ranks each moves three quarters, in fp32.
constexpr double kEmbedding = 3.072 * kMicro, kLayer = 8.448 * kMicro, kHead = 3.840 * kMicro;
constexpr double kAll = 2 * kEmbedding + 6 * kLayer + 2 * kHead;  // both gathers of a layer, and all reductions

// Catches: one rank that waits for communication; a step that is not what it computes.
BOOST_AUTO_TEST_CASE(one_rank_only_computes) {
  auto hardware = slow_cores(8);
  auto step = predict_step(make_plan(parse_config(test::kDense, "test.yaml", {}, 1), 1), hardware);
  BOOST_TEST(step.axes.empty());
  BOOST_TEST(step.seconds == step.compute_s, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(step.tokens_per_s == 4 * 8 / step.seconds, boost::test_tools::tolerance(1e-12));
}

// Catches: a gather or reduction left out, in another order, or issued too early or late: all of it is exposed here.
BOOST_AUTO_TEST_CASE(exposed_communication_by_hand) {
  auto step = predict_step(make_plan(config_with({}), 4), only_links(4));
  BOOST_TEST(step.seconds == kAll, boost::test_tools::tolerance(kClose));  // one link, which is never idle
  BOOST_TEST(step.axes.at(Axis::DpShard).exposed_s == kAll, boost::test_tools::tolerance(kClose));
}

// Catches: a prefetch that never happens, a reduction that computation waits for at once, a head that is gathered
// again: each shows as exposed.
BOOST_AUTO_TEST_CASE(hidden_communication_by_hand) {
  auto step = predict_step(make_plan(config_with({}), 4), slow_cores(4));
  // Nothing computes before the embedding and the first layer are there, nor after the reductions of just these.
  auto ends = 2 * (kEmbedding + kLayer);
  BOOST_TEST(exposed(step) == ends, boost::test_tools::tolerance(1e-6));
  BOOST_TEST(step.seconds == step.compute_s + ends, boost::test_tools::tolerance(1e-6));
  // Without: every gather is waited for, and shares the link with the reduction of the unit above.
  step = predict_step(make_plan(config_with({"parallel.prefetch=0"}), 4), slow_cores(4));
  BOOST_TEST(exposed(step) == kAll, boost::test_tools::tolerance(1e-6));
}

// Catches: outer reductions after instead of during the backward; exposed time booked to the wrong axis.
BOOST_AUTO_TEST_CASE(outer_reductions_are_chained) {
  auto plan = make_plan(config_with(settings_of({Strategy::Hsdp, 2})), 4);
  // Inner: half of each buffer. Outer: an all-reduce of a half sends as much.
  auto embedding = 2.048 * kMicro, layer = 5.632 * kMicro, head = 2.560 * kMicro;
  auto step = predict_step(plan, slow_cores(2));
  BOOST_TEST(step.axes.at(Axis::DpShard).exposed_s == 2 * (embedding + layer), boost::test_tools::tolerance(1e-6));
  // The first layer's begins beside the embedding's inner one; the embedding's, behind both, ends a layer's time later.
  BOOST_TEST(step.axes.at(Axis::DpOuter).exposed_s == layer, boost::test_tools::tolerance(1e-6));
  auto chain = head + 2 * layer + embedding;
  BOOST_TEST(step.axes.at(Axis::DpOuter).busy_s == chain, boost::test_tools::tolerance(1e-6));
  // With nothing else in the way the outer lane is one chain behind the head, which is reduced first.
  auto links = only_links(2);
  links.node = Link{1e9, 0.0};
  BOOST_TEST(predict_step(plan, links).seconds == chain, boost::test_tools::tolerance(1e-6));
}

// Catches: a refresh that the forward does not wait for, or waits for as a whole before it starts.
BOOST_AUTO_TEST_CASE(the_refresh_overlaps_the_forward) {
  auto step = predict_step(make_plan(config_with(settings_of({Strategy::Zero1, 1})), 4), slow_cores(4));
  // Of the embedding and the first layer: the refresh before the step, the reduction behind it. All else is hidden.
  BOOST_TEST(exposed(step) == 2 * (kEmbedding + kLayer), boost::test_tools::tolerance(1e-6));
}

// Catches: communication on CPUs that costs computation nothing.
BOOST_AUTO_TEST_CASE(communication_takes_its_share_of_the_core) {
  auto hardware = slow_cores(4);
  hardware.core = CoreRates{2.0, 0.5};  // a gather takes half as long as its wire, a reduction twice as long
  auto step = predict_step(make_plan(config_with({}), 4), hardware);
  // The first two gathers are waited for, which is longer than their work; of the others the work is left.
  auto gathers = kEmbedding + kLayer + (3 * kLayer + kHead) / 2, reductions = 2 * (kHead + 2 * kLayer + kEmbedding);
  BOOST_TEST(exposed(step) == gathers + reductions, boost::test_tools::tolerance(1e-6));
  auto free = predict_step(make_plan(config_with({}), 4), slow_cores(4));
  BOOST_TEST(step.compute_s == free.compute_s, boost::test_tools::tolerance(1e-9));
}

// Catches: a collective that the timeline leaves out, has twice, of another size or on another axis than runs send.
BOOST_AUTO_TEST_CASE(the_timeline_sends_what_the_plan_counts) {
  for (auto& plan : all_plans()) {
    std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>> sent, planned;
    for (auto& operation : predict_step(plan, Hardware{}).operations) {
      if (operation.lane == Lane::Compute || operation.bytes == 0) continue;
      auto& row = sent[{operation.what, std::string(axis_name(*operation.axis))}];
      row.first += 1;
      row.second += operation.bytes;
    }
    for (auto& row : plan.traffic) planned[{row.operation, row.axis}] = {row.count, row.bytes};
    BOOST_TEST((sent == planned), name_of(plan));
  }
}

// Catches: faster hardware that makes a step slower; time of a step that is neither computation nor exposed.
BOOST_AUTO_TEST_CASE(faster_is_never_slower_and_lanes_add_up) {
  Hardware slow;
  slow.ranks_per_node = 2;
  slow.bf16_tflops = slow.fp32_tflops = 1e-3;
  slow.memory_gb_per_s = 1.0;
  slow.node = Link{2.0, 1.0};
  slow.network = Link{0.2, 10.0};
  slow.core = CoreRates{3.0, 1.5};
  for (auto& plan : all_plans()) {
    auto step = predict_step(plan, slow);
    BOOST_TEST(step.compute_s + exposed(step) == step.seconds, boost::test_tools::tolerance(1e-9));
    BOOST_TEST(least_step_seconds(plan, slow) <= step.seconds * (1 + 1e-12));
    auto check = [&](const char* what, auto change) {
      auto fast = slow;
      change(fast);
      BOOST_TEST(predict_step(plan, fast).seconds <= step.seconds * (1 + 1e-12), what << ", " << name_of(plan));
    };
    check("node", [](auto& h) { h.node->gb_per_s *= 3; });
    check("network", [](auto& h) { h.network->gb_per_s *= 3; });
    check("latency", [](auto& h) { h.network->latency_us = 0; });
    check("products", [](auto& h) { h.bf16_tflops *= 3, h.fp32_tflops *= 3; });
    check("memory", [](auto& h) { h.memory_gb_per_s *= 3; });
    check("core", [](auto& h) { h.core.reset(); });
  }
}

// Catches: recomputation that costs nothing; experts' exchanges that are free, or not on their own lane.
BOOST_AUTO_TEST_CASE(recomputation_and_exchanges_take_time) {
  auto seconds = [](std::vector<std::string> settings) {
    return predict_step(make_plan(config_with(settings, kExperts), 4), slow_cores(4)).compute_s;
  };
  BOOST_TEST(seconds({"train.activation_checkpoint=full"}) > 1.15 * seconds({}));
  auto settings = std::vector<std::string>{"parallel.expert=4", "model.num_hidden_layers=1", "parallel.prefetch=0"};
  auto step = predict_step(make_plan(config_with(settings, kExperts), 4), slow_cores(4));
  // Without prefetch nothing else is on the link. Forward and backward each send rows there and back, and wait. A token
  // of 16 values goes to two experts, three in four of which are elsewhere: 8 tokens x 2 x 3 / 4 x 64 bytes. And
  // counts, 3 / 4 of 32 bytes.
  BOOST_TEST(step.axes.at(Axis::Expert).exposed_s == (4 * 0.768 + 0.024) * kMicro, boost::test_tools::tolerance(1e-6));
}

// Catches: a trace that is no JSON of trace events, spans of a lane that overlap, an operation that is missing.
BOOST_AUTO_TEST_CASE(traces_are_sound) {
  for (auto& plan : all_plans()) {
    auto step = predict_step(plan, Hardware{});
    auto trace = read_json<nlohmann::json>(json_text(trace_json(step, plan)), "trace");
    std::map<int, std::vector<std::pair<double, double>>> lanes;
    std::size_t named = 0;
    double last = 0.0;
    for (auto& event : trace.at("traceEvents")) {
      if (event.at("ph") == "M") named += event.at("name") == "thread_name";
      if (event.at("ph") != "X") continue;
      double begin = event.at("ts"), length = event.at("dur");
      lanes[event.at("tid")].emplace_back(begin, begin + length);
      last = std::max(last, begin + length);
      BOOST_TEST(length > 0.0);
    }
    BOOST_TEST(named == kLaneNames.size());
    BOOST_TEST(last == step.seconds * 1e6, boost::test_tools::tolerance(1e-9));
    std::size_t spans = 0;
    for (auto& [lane, all] : lanes) {
      spans += all.size();
      std::ranges::sort(all);
      for (std::size_t i = 1; i < all.size(); ++i) BOOST_TEST(all[i].first >= all[i - 1].second - 1e-9 * last);
    }
    BOOST_TEST(spans == std::ranges::count_if(step.spans, [](auto& span) { return span.end > span.begin; }));
  }
}
