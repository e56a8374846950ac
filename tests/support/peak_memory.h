#pragma once
// How much memory a call takes. Replaces the program's operator new: include it in one file of a test.

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace meshard {

inline std::atomic<std::size_t> memory_in_use = 0, memory_at_most = 0;

/// Bytes that were in use, at one time, beyond those before the call.
template <typename Call>
std::size_t peak_memory(const Call& call) {
  auto before = memory_in_use.load();
  memory_at_most = before;
  call();
  return memory_at_most - before;
}

}  // namespace meshard

void* operator new(std::size_t bytes) {
  auto* memory = std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  auto now = meshard::memory_in_use += malloc_usable_size(memory) + sizeof(std::size_t);
  if (now > meshard::memory_at_most) meshard::memory_at_most = now;
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  if (memory) meshard::memory_in_use -= malloc_usable_size(memory) + sizeof(std::size_t);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}
