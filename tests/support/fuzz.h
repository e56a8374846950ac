#pragma once
// How many damaged inputs a fuzz test tries: few in an ordinary build, many where sanitizers watch.

namespace meshard {

inline int fuzz_inputs() {
#ifdef __SANITIZE_ADDRESS__
  return 100'000;
#else
  return 5'000;
#endif
}

}  // namespace meshard
