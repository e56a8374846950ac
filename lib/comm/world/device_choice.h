#pragma once
// Which device each rank of a host takes. Pure arithmetic.

#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// Local. `visible[l]`: the devices (PCI bus ids) that the rank with local rank l sees, in its own numbering. Returns
/// for each the index, in that numbering, of a device that no other rank has: the one whose index is its local rank if
/// it is free (all ranks see all devices), else the first free one (each sees its own); nothing if all are taken or it
/// sees none.
std::vector<std::optional<int>> choose_devices(const std::vector<std::vector<std::string>>& visible);

/// Local. Why a rank without a choice has none, as a sentence that names the rank that has its device. Ranks in the
/// text are world ranks: `ranks[l]`.
std::string why_no_device(const std::vector<std::vector<std::string>>& visible, const std::vector<int>& ranks,
                          int local_rank);

}  // namespace meshard
