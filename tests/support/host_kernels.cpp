// MESHARD_TEST_KERNELS=1: every test of the program runs on the bodies of the CUDA kernels.
#include "support/host_kernels.h"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <memory>

namespace {

struct HostKernels {
  HostKernels() {
    if (std::getenv("MESHARD_TEST_KERNELS"))
      scope = std::make_unique<meshard::KernelScope>(meshard::kernels::kHostTable);
  }
  std::unique_ptr<meshard::KernelScope> scope;
};
BOOST_TEST_GLOBAL_FIXTURE(HostKernels);

}  // namespace
