#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <memory>
#include <thread>

namespace meshard {

namespace {
constexpr int kMostCores = 8192;
}

std::vector<int> allowed_cores() {
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMostCores), [](cpu_set_t* set) { CPU_FREE(set); });
  auto bytes = CPU_ALLOC_SIZE(kMostCores);
  CPU_ZERO_S(bytes, set.get());
  sched_getaffinity(0, bytes, set.get());
  std::vector<int> cores;
  for (int core = 0; core < kMostCores; ++core) {
    if (CPU_ISSET_S(core, bytes, set.get())) cores.push_back(core);
  }
  return cores;
}

int cores_per_rank(int ranks) {
  auto share = static_cast<int>(std::thread::hardware_concurrency()) / ranks;
  return std::max(1, std::min(static_cast<int>(allowed_cores().size()), share));
}

}  // namespace meshard
