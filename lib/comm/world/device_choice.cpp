#include "comm/world/device_choice.h"

#include <fmt/format.h>

#include <map>

namespace meshard {

namespace {
/// Device -> local rank that has it.
using Owners = std::map<std::string, int>;

std::optional<int> first_free(const std::vector<std::string>& visible, int preferred, const Owners& owners) {
  int count = static_cast<int>(visible.size());
  if (preferred < count && !owners.contains(visible[preferred])) return preferred;
  for (int index = 0; index < count; ++index) {
    if (!owners.contains(visible[index])) return index;
  }
  return std::nullopt;
}

std::vector<std::optional<int>> choose(const std::vector<std::vector<std::string>>& visible, Owners& owners) {
  std::vector<std::optional<int>> chosen(visible.size());
  for (std::size_t local = 0; local < visible.size(); ++local) {
    chosen[local] = first_free(visible[local], static_cast<int>(local), owners);
    if (chosen[local]) owners.emplace(visible[local][*chosen[local]], static_cast<int>(local));
  }
  return chosen;
}
}  // namespace

std::vector<std::optional<int>> choose_devices(const std::vector<std::vector<std::string>>& visible) {
  Owners owners;
  return choose(visible, owners);
}

std::string why_no_device(const std::vector<std::vector<std::string>>& visible, const std::vector<int>& ranks,
                          int local_rank) {
  if (visible[local_rank].empty()) return fmt::format("rank {} sees no CUDA device", ranks[local_rank]);
  Owners owners;
  choose(visible, owners);
  auto& device = visible[local_rank].front();
  return fmt::format("rank {} has no CUDA device of its own: {} is used by rank {}", ranks[local_rank], device,
                     ranks[owners.at(device)]);
}

}  // namespace meshard
