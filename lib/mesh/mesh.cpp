#include "mesh/mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace meshard {

Mesh::Mesh(World& world, const MeshShape& shape) : world_(&world), shape_(shape) {
  if (shape.ranks() != world.size()) {
    throw ConfigError(fmt::format("mesh: made for {} ranks, but this run has {}", shape.ranks(), world.size()));
  }
  for (auto [axis, name] : kAxes) {
    auto expected = shape.members(axis, rank());
    auto communicator =
        world.split(shape.color(axis, rank()), shape.coordinate(axis, rank()), std::string(name));
    if (!std::ranges::equal(communicator->members(), expected)) {
      throw CommError(fmt::format("mesh: axis {} of rank {} should have the ranks {}, but its communicator has {}",
                                  name, rank(), fmt::join(expected, " "),
                                  fmt::join(communicator->members(), " ")));
    }
    axes_[static_cast<std::size_t>(axis)] = std::move(communicator);
  }
}

Communicator& Mesh::axis(Axis axis) const {
  return *axes_[static_cast<std::size_t>(axis)];
}

void check_same_config(World& world, const std::string& resolved_config) {
  auto hashes = world.gather_texts(fmt::format("{:016x}", hash_text(resolved_config)));
  std::vector<int> different;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (hashes[rank] != hashes[0]) different.push_back(rank);
  }
  if (different.empty()) return;
  throw ConfigError(
      fmt::format("the configs of the ranks differ: rank{} {} of {} from rank 0; all ranks must read the same "
                  "file and get the same --set options",
                  different.size() > 1 ? "s" : "", fmt::join(different, ", "), world.size()));
}

}  // namespace meshard
