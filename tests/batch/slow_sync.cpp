// Preloaded into the binary: every fsync takes MESHARD_SLOW_SYNC_S seconds longer, so that a save lasts and a test can
// be in the middle of it.

#include <dlfcn.h>
#include <time.h>

#include <cstdlib>

extern "C" int fsync(int descriptor) {
  static auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
  double seconds = std::atof(std::getenv("MESHARD_SLOW_SYNC_S"));
  timespec left{static_cast<time_t>(seconds), static_cast<long>((seconds - static_cast<time_t>(seconds)) * 1e9)};
  while (nanosleep(&left, &left) != 0) {
  }
  return real(descriptor);
}
