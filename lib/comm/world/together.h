#pragma once
// Local work whose failure on one rank is everybody's failure.

#include <string>
#include <type_traits>
#include <variant>

#include "base/error.h"
#include "comm/world/world.h"

namespace meshard {

/// Collective over all ranks. Does `work`, which is local, and returns its result. If it throws on any rank, every rank
/// throws what World::raise_together() does: the lowest failing rank's message, with that error's exit code.
template <class Work>
auto together(World& world, const Work& work) {
  using Result = std::invoke_result_t<const Work&>;
  std::conditional_t<std::is_void_v<Result>, std::monostate, Result> result{};
  std::string problem;
  ExitCode code = kExitFailure;
  try {
    if constexpr (std::is_void_v<Result>) {
      work();
    } else {
      result = work();
    }
  } catch (const Error& error) {
    problem = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  world.raise_together(problem, code);
  if constexpr (!std::is_void_v<Result>) return result;
}

/// Collective over all ranks. The same for work that rank 0 does for all.
template <class Work>
void on_rank_0(World& world, const Work& work) {
  together(world, [&] {
    if (world.rank() == 0) work();
  });
}

}  // namespace meshard
