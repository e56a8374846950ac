// When collectives are issued and waited for, beside what is computed: the overlap that makes sharding cheap. Read from
// the rank's flight recorder at the moments in which a layer computes.

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <functional>

#include "comm/flight_recorder.h"
#include "support/sharded_pair.h"
#include "support/toy_modules.h"

using namespace meshard;

namespace {

constexpr std::int64_t kWidth = 8;
constexpr int kLayers = 5;

FlightSnapshot flight() {
  test_world().move_dumps(test_folder());
  auto rank = test_world().rank();
  std::uint64_t launch = 0;
  std::ifstream file(test_folder() + "/ring-" + std::to_string(rank) + ".bin", std::ios::binary);
  file.read(reinterpret_cast<char*>(&launch), sizeof launch);
  return read_flight_record(test_folder(), rank, launch).value();
}

/// The collectives that were entered after sequence number `since`.
class Window {
 public:
  explicit Window(std::uint64_t since) : since_(since), flight_(flight()) {}

  /// How many of these were issued.
  int issued(const std::string& operation, const std::string& axis, const std::string& unit) const {
    auto all = units(operation, axis);
    return static_cast<int>(std::ranges::count(all, unit));
  }

  std::vector<std::string> units(const std::string& operation, const std::string& axis) const {
    std::vector<std::string> units;
    for (auto& entry : entries()) {
      if (operation == entry.operation && axis == entry.axis) units.push_back(entry.unit);
    }
    return units;
  }

 private:
  std::vector<FlightEntry> entries() const {
    std::vector<FlightEntry> all;
    for (auto sequence = since_ + 1; sequence <= flight_.sequence; ++sequence) all.push_back(*flight_.find(sequence));
    return all;
  }

  std::uint64_t since_;
  FlightSnapshot flight_;
};

std::string layer(int index) {
  return "layers." + std::to_string(index);
}

using Look = std::function<void(int layer)>;

/// A layer that says when it computes.
class Layer : public toys::Linear {
 public:
  Layer(int index, const Look& in_forward, const Look& in_backward)
      : toys::Linear(kWidth, kWidth, false, at::TensorOptions(at::kFloat)),
        index_(index),
        in_forward_(in_forward),
        in_backward_(in_backward) {}

 protected:
  at::Tensor forward(const at::Tensor& x) override {
    if (in_forward_) in_forward_(index_);
    auto y = toys::Linear::forward(x);
    // The gradient of the output is there: the layer's backward computes next.
    y.register_hook([this](const at::Tensor&) {
      if (in_backward_) in_backward_(index_);
    });
    return y;
  }

 private:
  int index_;
  const Look &in_forward_, &in_backward_;
};

/// Layers in a row as the units of a language model: one whose backward does not need its weight, two ordinary ones,
/// and a last unit of two layers that stays gathered.
class Row : public Module {
 public:
  Row() {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(std::make_unique<Layer>(i, in_forward, in_backward));
      add_child(layer(i), *layers.back());
    }
    fill_plain(*this);
  }
  std::vector<std::unique_ptr<Layer>> layers;
  Look in_forward, in_backward;

 protected:
  at::Tensor forward(const at::Tensor& input) override {
    auto x = input;
    for (auto& each : layers) x = (*each)(x);
    return x;
  }
};

const std::string kHead = "layers.3+layers.4";

struct Watched {
  Watched(Mesh& mesh, Strategy strategy) : runtime(row, mesh) {
    // Not in the order in which they run: that is to be recorded.
    runtime.fully_shard({row.layers[3].get(), row.layers[4].get()},
                        {.strategy = strategy, .keep = Unit::Keep::Gathered});
    runtime.fully_shard(*row.layers[2], {.strategy = strategy});
    runtime.fully_shard(*row.layers[1], {.strategy = strategy});
    runtime.fully_shard(*row.layers[0], {.strategy = strategy, .keep = Unit::Keep::Unneeded});
    runtime.fully_shard(row, {.strategy = strategy});
  }

  /// One microbatch; what was issued since it, or its backward, began is shown to `in_forward` and `in_backward`.
  using LookAt = std::function<void(int layer, const Window& window)>;
  void microbatch(bool last, const LookAt& in_forward = {}, const LookAt& in_backward = {}) {
    auto scope = runtime.no_sync(!last);
    auto began = flight().sequence;
    row.in_forward = [&](int layer) {
      if (in_forward) in_forward(layer, Window(began));
    };
    row.in_backward = [&](int layer) {
      if (in_backward) in_backward(layer, Window(began));
    };
    auto loss = row(test_values({2, kWidth}, 1.0)).square().sum();
    began = flight().sequence;
    loss.backward();
  }

  void step() {
    for (auto& shard : runtime.flat_shards()) shard.weight.sub_(shard.grad, 0.001);
    runtime.refresh_weights();
    runtime.zero_grad();
  }

  /// The one group of a unit: it knows what nobody has waited for yet.
  const ParamGroup& group(const std::string& unit) const {
    auto found = std::ranges::find(runtime.units(), unit, [](auto& each) { return each->name(); });
    return *(*found)->groups().front();
  }

  Row row;
  ShardingRuntime runtime;
};

Mesh two_by_two() {
  return Mesh(test_world(), {4, 2, 2, 1});
}

}  // namespace

// Catches: a gather that is issued when it is needed, one that is waited for before the unit ahead computes, and one
// too many: of a unit that stays gathered, or of one whose backward does not read its parameters.
BOOST_AUTO_TEST_CASE(the_next_units_gather_is_on_the_way_while_one_computes) {
  auto mesh = two_by_two();
  for (auto strategy : {Strategy::Hsdp, Strategy::Hfsdp}) {
    Watched watched(mesh, strategy);
    watched.microbatch(false);  // records the order
    auto gathers_of = [](const Window& window, const std::string& unit) {
      return window.issued("all_gather", "dp_shard", unit);
    };
    std::vector<int> forward, backward;
    watched.microbatch(
        true,
        [&](int i, const Window& window) {
          forward.push_back(i);
          if (i > 2) {
            BOOST_TEST(window.units("all_gather", "dp_shard").size() == 4u);
            return;
          }
          auto next = i == 2 ? kHead : layer(i + 1);
          BOOST_TEST(gathers_of(window, next) == 1, "forward of layer " << i);
          BOOST_TEST(!watched.group(next).is_gathered(), "forward of layer " << i);
        },
        [&](int i, const Window& window) {
          backward.push_back(i);
          BOOST_TEST(gathers_of(window, kHead) == 0);
          BOOST_TEST(gathers_of(window, layer(0)) == 0);
          if (i == 3 || i <= 1) return;
          auto next = layer(i == 4 ? 2 : i - 1);
          BOOST_TEST(gathers_of(window, next) == 1, "backward of layer " << i);
          BOOST_TEST(!watched.group(next).is_gathered(), "backward of layer " << i);
        });
    BOOST_TEST(forward == (std::vector{0, 1, 2, 3, 4}));
    BOOST_TEST(backward == (std::vector{4, 3, 2, 1, 0}));
  }
}

// Catches: a reduction that is waited for before the unit below computes; an outer reduction that starts when the whole
// backward is done, that the backward waits for, or that runs in every microbatch.
BOOST_AUTO_TEST_CASE(reductions_are_on_the_way_while_the_units_below_compute) {
  auto mesh = two_by_two();
  for (auto strategy : {Strategy::Zero2, Strategy::Hsdp, Strategy::Hfsdp}) {
    std::string outer = strategy == Strategy::Hfsdp ? "reduce_scatter" : "all_reduce";
    Watched watched(mesh, strategy);
    for (bool last : {false, true}) {
      watched.microbatch(last, {}, [&](int i, const Window& window) {
        BOOST_TEST_CONTEXT(to_string(strategy) << (last ? ", last" : ", first") << " microbatch, layer " << i) {
          auto above = [&](int distance) { return i + distance >= 3 ? kHead : layer(i + distance); };
          if (i < 3) {
            BOOST_TEST(window.issued("reduce_scatter", "dp_shard", above(1)) == 1);
            BOOST_TEST(watched.group(above(1)).is_reducing());
          }
          if (i < 2) {
            BOOST_TEST(window.issued(outer, "dp_outer", above(2)) == (last ? 1 : 0));
            BOOST_TEST(watched.group(above(2)).has_pending());
          }
        }
      });
    }
    BOOST_CHECK_NO_THROW(watched.runtime.flat_shards());
  }
}

// Catches: the same where nothing is reduced within a microbatch: the inner axis at once, the outer one behind it.
BOOST_AUTO_TEST_CASE(what_is_reduced_once_a_step_starts_at_the_end_of_each_units_backward) {
  auto mesh = two_by_two();
  for (auto strategy : {Strategy::Ddp, Strategy::Zero1}) {
    std::string inner = strategy == Strategy::Ddp ? "all_reduce" : "reduce_scatter";
    Watched watched(mesh, strategy);
    watched.microbatch(true, {}, [&](int i, const Window& window) {
      BOOST_TEST_CONTEXT(to_string(strategy) << ", layer " << i) {
        auto above = [&](int distance) { return i + distance >= 3 ? kHead : layer(i + distance); };
        if (i < 3) {
          BOOST_TEST(window.issued(inner, "dp_shard", above(1)) == 1);
          BOOST_TEST(watched.group(above(1)).has_pending());
        }
        if (i < 2) {
          BOOST_TEST(window.issued("all_reduce", "dp_outer", above(2)) == 1);
          BOOST_TEST(watched.group(above(2)).has_pending());
        }
      }
    });
  }
}

// Catches: weights that are refreshed from the inside out, so that the first unit of the next forward waits for all
// others.
BOOST_AUTO_TEST_CASE(weights_are_refreshed_in_the_order_of_the_forward) {
  auto mesh = two_by_two();
  Watched watched(mesh, Strategy::Hfsdp);
  watched.microbatch(true);
  auto before = flight().sequence;
  watched.step();
  Window window(before);
  BOOST_TEST(window.units("all_gather", "dp_outer") == (std::vector{layer(0), layer(1), layer(2), kHead}),
             boost::test_tools::per_element());
}
