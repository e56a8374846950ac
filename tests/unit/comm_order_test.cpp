#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros.h>

#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "comm/timeline/order_observer.h"
#include "support/host_timeline.h"

using namespace meshard;

namespace {

struct Memory {
  OrderChecker checker;
  char bytes[100];

  ByteRange range(int begin, int end) const { return {bytes + begin, bytes + end}; }
  void read(const char* lane, int begin, int end) {
    checker.access(lane, {.name = "read", .reads = {range(begin, end)}});
  }
  void write(const char* lane, int begin, int end) {
    checker.access(lane, {.name = "write", .unit = "layer 3", .axis = "dp", .writes = {range(begin, end)}});
  }
  /// What `to` does from now on comes after what `from` has done.
  void edge(const char* from, const char* to) { checker.join(to, checker.point(from)); }
  std::string found() { return checker.take_found(); }
};

bool has(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(comm_order)

// Catches: an alarm where a lane has waited, and where it is the same lane.
BOOST_FIXTURE_TEST_CASE(what_is_ordered_is_no_error, Memory) {
  write("gather", 0, 50);
  write("gather", 0, 50);
  edge("gather", "compute");
  read("compute", 0, 50);
  read("copy", 60, 70);
  BOOST_TEST(found() == "");
  BOOST_CHECK_NO_THROW(checker.raise());
}

// Catches: two accesses without an edge that go unseen, an error without names, a byte beside the range that is taken
// for one in it.
BOOST_FIXTURE_TEST_CASE(what_is_not_ordered_is_named, Memory) {
  write("gather", 10, 50);
  read("compute", 0, 10);
  read("compute", 50, 60);
  BOOST_TEST(found() == "");
  read("compute", 0, 11);
  BOOST_CHECK_THROW(checker.raise(), LogicError);
  auto text = found();
  BOOST_TEST(has(text, "read (lane compute) reads"), text);
  BOOST_TEST(has(text, "write on axis dp of layer 3 (lane gather) writes"), text);
  read("reduce", 70, 80);
  write("compute", 75, 76);
  BOOST_TEST(has(found(), "writes memory that read (lane reduce) reads"));
}

// Catches: two reads taken for a conflict; a read of one lane that hides the read of another before it.
BOOST_FIXTURE_TEST_CASE(reads_do_not_disturb_each_other, Memory) {
  read("gather", 0, 50);
  read("reduce", 20, 60);
  BOOST_TEST(found() == "");
  edge("reduce", "compute");
  write("compute", 40, 45);
  BOOST_TEST(has(found(), "read (lane gather)"));
}

// Catches: an edge by way of a third lane that is not followed; an edge that orders what came after it.
BOOST_FIXTURE_TEST_CASE(order_goes_through_other_lanes, Memory) {
  write("reduce", 0, 10);
  edge("reduce", "outer");
  write("reduce", 20, 30);
  edge("outer", "compute");
  read("compute", 0, 10);
  BOOST_TEST(found() == "");
  read("compute", 20, 30);
  BOOST_TEST(has(found(), "(lane reduce)"));
}

// Catches: a false alarm on memory that was freed and is another tensor's now; a free of memory that is still in use.
BOOST_FIXTURE_TEST_CASE(memory_that_was_freed_has_no_past, Memory) {
  write("gather", 0, 50);
  edge("gather", "compute");
  checker.retire("compute", "a free", range(0, 50));
  read("reduce", 0, 50);
  BOOST_TEST(found() == "");
  checker.retire("compute", "a free", range(10, 20));
  BOOST_TEST(has(found(), "a free (lane compute) writes memory that read (lane reduce) reads"));
}

// Catches: operations on their way that are ordered by the lane's number; numbers that are never used again.
BOOST_FIXTURE_TEST_CASE(borrowed_lanes_are_used_again, Memory) {
  auto first = checker.borrow_lane(), second = checker.borrow_lane();
  BOOST_TEST(first != second);
  write(first.c_str(), 0, 10);
  write(second.c_str(), 5, 6);
  BOOST_TEST(found() != "");
  edge(first.c_str(), "compute");
  checker.give_back_lane(first);
  BOOST_TEST(checker.borrow_lane() == first);
}

// Catches: a view taken for a read, an operator in place taken for a read, results and frees that are not seen.
BOOST_AUTO_TEST_CASE(operators_are_accesses_of_the_compute_lane) {
  OrderObserver observer;
  auto& checker = observer.checker();
  auto tensor = at::zeros({8});
  checker.join("gather", checker.point("compute"));
  checker.access("gather", {.name = "all_gather", .reads = {range_of(tensor)}});
  auto half = tensor.narrow(0, 4, 4).view({2, 2});
  auto sum = tensor.sum();
  BOOST_TEST(checker.take_found() == "");
  half.add_(1);
  auto text = checker.take_found();
  BOOST_TEST(has(text, "aten::add_"), text);

  auto gathered = at::empty({8});
  checker.join("gather", checker.point("compute"));
  checker.access("gather", {.name = "all_gather", .writes = {range_of(gathered)}});
  auto view = gathered.view({2, 4});
  BOOST_TEST(checker.take_found() == "");
  gathered = view = at::Tensor();
  BOOST_TEST(has(checker.take_found(), "a free"));
}

// Catches: lanes that run before they must, waits between lanes that are forgotten, lanes out of order.
BOOST_AUTO_TEST_CASE(lanes_of_the_host_run_as_late_as_they_may) {
  HostTimeline timeline(std::nullopt);
  std::string order;
  auto put = [&](Lane lane, char what) {
    return timeline.enqueue(lane, {},
                            [&, what](void* stream) { HostTimeline::put(stream, [&, what] { order += what; }); });
  };
  auto a = put(Lane::Gather, 'a'), b = put(Lane::Gather, 'b');
  timeline.wait(Lane::Outer, b);
  auto c = put(Lane::Outer, 'c'), d = put(Lane::Reduce, 'd'), e = put(Lane::Gather, 'e');
  BOOST_TEST(order == "");
  timeline.wait(Lane::Compute, a);
  BOOST_TEST(order == "a");
  timeline.wait(Lane::Compute, c);
  BOOST_TEST(order == "abc");
  BOOST_TEST(!d->done());
  timeline.host_wait(e);
  BOOST_TEST(order == "abce");
  BOOST_TEST(timeline.host_waits() == 1);
  BOOST_TEST(c->seconds_since(*a) >= 0.0);
  timeline.wait(Lane::Compute, d);
}

// Catches: results that look right before they are there; what is read, too, spoiled; early lanes that never run early.
BOOST_AUTO_TEST_CASE(what_will_be_written_is_spoiled_at_issue) {
  for (auto seed : {-1, 1, 2, 3, 4, 5}) {
    HostTimeline timeline(seed < 0 ? std::nullopt : std::optional<unsigned>(seed));
    static int early = 0;
    auto full = at::zeros({6}), shard = full.narrow(0, 2, 2);
    Operation gather{.reads = {range_of(shard)}, .writes = {range_of(full)}, .tensors = {full}};
    auto done = timeline.enqueue(Lane::Gather, gather,
                                 [&](void* stream) { HostTimeline::put(stream, [full] { full.fill_(7); }); });
    if (done->done()) {
      BOOST_TEST(seed >= 0);
      ++early;
    } else {
      BOOST_TEST(at::isnan(full).sum().item<int>() == 4);
      BOOST_TEST(!at::isnan(shard).any().item<bool>());
    }
    timeline.wait(Lane::Compute, done);
    BOOST_TEST(full.eq(7).all().item<bool>());
    if (seed == 5) BOOST_TEST(early > 0);
  }
}

// Catches: tensors that are let go before the compute lane has passed, or kept for ever.
BOOST_AUTO_TEST_CASE(tensors_are_held_until_computation_has_waited) {
  HostTimeline timeline(std::nullopt);
  auto nothing = [](void*) {};
  auto inner = at::zeros({1}), outer = at::zeros({1});
  auto first = timeline.enqueue(Lane::Reduce, {.tensors = {inner}}, nothing);
  timeline.wait(Lane::Outer, first);
  auto second = timeline.enqueue(Lane::Outer, {.tensors = {outer}}, nothing);
  BOOST_TEST(inner.use_count() == 2u);
  timeline.wait(Lane::Compute, second);
  BOOST_TEST(inner.use_count() == 1u);
  BOOST_TEST(outer.use_count() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
