#pragma once
// A checkpoint for people and for scripts: what `meshard inspect` shows.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "checkpoint/load.h"

namespace meshard {

/// Local. {"folder", "writer": "meshard" or "pytorch", "step", "samples", "ranks", "bytes", "tensors": [{"key",
/// "dtype", "shape", "bytes", "chunks": [{"file", "offsets", "sizes"}]}], "values": [keys], "config": text or null};
/// tensors and values whose key matches the shell pattern `keys`.
nlohmann::ordered_json describe_json(const CheckpointReader& reader, const std::string& keys);

/// Local. The same as a table, without the config.
std::string describe_text(const CheckpointReader& reader, const std::string& keys);

}  // namespace meshard
