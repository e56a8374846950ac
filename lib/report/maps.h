#pragma once
// Expert load and bias over the steps, as heat maps of a sample of the lines.

#include <span>

#include "report/report.h"

namespace meshard {

/// Local. Bytes of a run's maps per step shown: cells of all its layers. 0: no experts.
std::size_t cells_per_step(const std::filesystem::path& metrics, std::span<const std::int64_t> line_offsets);

/// Local. Reads `columns` lines, evenly spread and the last one among them, of those that begin at `line_offsets`.
/// Lines that do not fit the last one's layers and experts are left out.
ExpertMaps read_expert_maps(const std::filesystem::path& metrics, std::span<const std::int64_t> line_offsets,
                            std::size_t columns);

}  // namespace meshard
