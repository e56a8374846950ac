#pragma once
// Running out of memory, said like any other failure.

#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>

#include "base/error.h"

namespace meshard {

/// Local. What `read` returns. Throws IoError, naming the file, where memory is not enough for what is in it.
template <class Read>
decltype(auto) within_memory(const std::string& name, Read&& read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    throw IoError(fmt::format("cannot read {}: there is not enough memory for it", name));
  }
}

/// Local. What an exception says; of one without words of its own, words.
inline std::string message_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) ? "there is not enough memory" : error.what();
}

}  // namespace meshard
