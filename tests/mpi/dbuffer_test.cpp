#include "sharding/dbuffer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "mesh/mesh.h"
#include "support/mpi_test.h"

using namespace meshard;
using enum Placement;

namespace {

// The meshes of a world of this size: 1-D and 2-D.
MeshShape one_axis() {
  return {test_world().size(), 1, test_world().size()};
}
MeshShape two_axes() {
  return {test_world().size(), 2, test_world().size() / 2};
}

struct Axes {
  explicit Axes(const MeshShape& shape) : mesh(test_world(), shape) {
    if (shape.dp_outer() > 1) axes.push_back(&mesh.axis(Axis::DpOuter));
    axes.push_back(&mesh.axis(Axis::DpShard));
  }
  Placements all(Placement placement) const { return Placements(axes.size(), placement); }
  // From the inner axis outwards, as a runtime goes; back in the opposite order.
  DBuffer shard(DBuffer buffer) const {
    auto to = buffer.placements();
    for (auto axis = axes.size(); axis-- > 0;) {
      to[axis] = Flat;
      buffer = buffer.redistribute(to);
    }
    return buffer;
  }
  DBuffer gather(DBuffer buffer) const {
    auto to = buffer.placements();
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      to[axis] = Replicate;
      buffer = buffer.redistribute(to);
    }
    return buffer;
  }
  Mesh mesh;
  CommAxes axes;
};

std::vector<at::Tensor> t3() {
  return {at::arange(0, 21, at::kFloat).view({7, 3}), at::arange(100, 110, at::kFloat).view({2, 5}),
          at::arange(200, 207, at::kFloat)};
}

std::vector<at::Tensor> r2(double rank) {
  return {at::full({5, 3}, rank + 1), at::full({4}, 10 * (rank + 1))};
}

DBuffer partial(const Axes& on, std::vector<at::Tensor> tensors, ReduceOp op) {
  auto full = DBuffer::distribute(tensors, on.axes, on.all(Replicate), at::kCPU);
  return DBuffer::from_local(full.local(), full.layout_ptr(), on.axes, on.all(Partial), op);
}

void check_tensors(const DBuffer& buffer, const std::vector<at::Tensor>& expected) {
  for (int i = 0; i < buffer.layout().count(); ++i) BOOST_TEST(at::equal(buffer.get_local(i), expected[i].view({-1})));
}

}  // namespace

// Catches: a slice cut, moved or gathered wrongly.
BOOST_AUTO_TEST_CASE(distribute_and_gather_give_the_tensors_back) {
  for (auto& shape : {one_axis(), two_axes()}) {
    Axes on(shape);
    auto sharded = DBuffer::distribute(t3(), on.axes, on.all(Flat), at::kCPU);
    for (int i = 0; i < 3; ++i) {
      auto held = sharded.elements(i);
      BOOST_TEST(at::equal(sharded.get_local(i), t3()[i].view({-1}).narrow(0, held.begin, held.count())));
    }
    check_tensors(on.gather(sharded), t3());

    auto replicated = DBuffer::distribute(t3(), on.axes, on.all(Replicate), at::kCPU);
    check_tensors(on.gather(on.shard(replicated)), t3());
  }
}

// Catches: a reduce-scatter that sums the wrong slice, or divides twice.
BOOST_AUTO_TEST_CASE(partial_reduces_to_sums_and_averages) {
  double w = test_world().size(), rank = test_world().rank();
  for (auto& shape : {one_axis(), two_axes()}) {
    Axes on(shape);
    for (auto op : {ReduceOp::Sum, ReduceOp::Average}) {
      auto value = op == ReduceOp::Sum ? w * (w + 1) / 2 : (w + 1) / 2;
      std::vector<at::Tensor> expected{at::full({5, 3}, value), at::full({4}, 10 * value)};
      check_tensors(on.gather(on.shard(partial(on, r2(rank), op))), expected);

      auto reduced = partial(on, r2(rank), op);
      auto to = reduced.placements();
      for (auto axis = on.axes.size(); axis-- > 0;) {
        to[axis] = Replicate;
        reduced = reduced.redistribute(to);
      }
      check_tensors(reduced, expected);
    }
  }
}

// Catches: an `out` that is ignored, or accepted though it does not fit.
BOOST_AUTO_TEST_CASE(out_is_used_and_checked) {
  Axes on(one_axis());
  auto sharded = DBuffer::distribute(t3(), on.axes, on.all(Flat), at::kCPU);
  auto out = DBuffer::empty(sharded.layout_ptr(), on.axes, on.all(Replicate), at::kFloat);
  BOOST_TEST(sharded.redistribute(on.all(Replicate), out).local().is_same(out.local()));
  check_tensors(out, t3());
  auto wrong = DBuffer::empty(sharded.layout_ptr(), on.axes, on.all(Replicate), at::kBFloat16);
  BOOST_CHECK_THROW(sharded.redistribute(on.all(Replicate), wrong), ArgumentError);

  auto view = out.redistribute(on.all(Flat));
  BOOST_TEST(view.local().is_alias_of(out.local()));
  BOOST_TEST(at::equal(view.local(), sharded.local()));
}

// Catches: placements that no rank order can store, or that would need two collectives, being accepted.
BOOST_AUTO_TEST_CASE(illegal_placements_are_refused) {
  Axes on(two_axes());
  BOOST_CHECK_EXCEPTION(DBuffer::distribute(t3(), on.axes, {Flat, Replicate}, at::kCPU), ArgumentError,
                        [](const Error& e) { return std::string(e.what()).find("suffix") != std::string::npos; });
  auto sharded = DBuffer::distribute(t3(), on.axes, on.all(Flat), at::kCPU);
  BOOST_CHECK_THROW(sharded.redistribute(on.all(Replicate)), NotImplementedError);
  std::vector<at::Tensor> none, mixed{at::full({2}, 1.0f), at::full({2}, 1, at::kBFloat16)};
  BOOST_CHECK_THROW(DBuffer::distribute(none, on.axes, on.all(Flat), at::kCPU), ArgumentError);
  BOOST_CHECK_THROW(DBuffer::distribute(mixed, on.axes, on.all(Flat), at::kCPU), ArgumentError);
  BOOST_CHECK_THROW(DBuffer::from_local(at::full({3}, 1.0), sharded.layout_ptr(), on.axes, on.all(Flat)), ShapeError);
}

// Catches: the outer axis cutting before the inner one, or summing over the wrong ranks.
BOOST_AUTO_TEST_CASE(two_dimensional_partial_flat_reduces_over_outer) {
  Axes on(two_axes());
  double outer = on.mesh.coordinate(Axis::DpOuter);
  std::vector<at::Tensor> mine{at::full({6, 2}, outer + 1)};
  auto full = DBuffer::distribute(mine, on.axes, {Replicate, Flat}, at::kCPU);
  auto partial = DBuffer::from_local(full.local(), full.layout_ptr(), on.axes, {Partial, Flat}, ReduceOp::Sum);
  auto sharded = partial.redistribute({Flat, Flat});
  auto size = sharded.layout().size();
  int ranks = test_world().size();
  BOOST_TEST(sharded.range().begin ==
             on.mesh.coordinate(Axis::DpShard) * size / on.mesh.shape().dp_shard() + outer * size / ranks);
  check_tensors(on.gather(sharded), {at::full({6, 2}, 3.0)});
}

// Catches: views that die with the storage, or padding that holds garbage.
BOOST_AUTO_TEST_CASE(storage_comes_back_under_the_same_views) {
  Axes on(one_axis());
  auto buffer = DBuffer::distribute(t3(), on.axes, on.all(Replicate), at::kCPU);
  auto view = buffer.get_local(1);
  buffer.release_storage();
  BOOST_TEST(buffer.local().storage().nbytes() == 0u);
  buffer.reallocate_storage();
  view.fill_(4.0);
  BOOST_TEST(at::equal(buffer.get_local(1), at::full({10}, 4.0)));
  for (auto& gap : buffer.layout().gaps_in(buffer.range())) {
    BOOST_TEST(buffer.local().narrow(0, gap.begin, gap.count()).abs().sum().item<float>() == 0.0f);
  }
  BOOST_TEST(buffer.cast(at::kFloat).local().is_same(buffer.local()));
  BOOST_TEST((buffer.cast(at::kBFloat16).local().scalar_type() == at::kBFloat16));
}
