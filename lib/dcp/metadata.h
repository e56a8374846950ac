#pragma once
// The index of a checkpoint (`.metadata`), as PyTorch's torch.distributed.checkpoint writes and reads it. FORMAT.md
// section 3.

#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/box.h"

namespace meshard {

/// Where an item lies: bytes [offset, offset + length) of a file of the checkpoint's folder.
struct ItemPlace {
  std::string file;  ///< relative, a plain name: read_metadata refuses absolute paths and `..`
  std::int64_t offset = 0;
  std::int64_t length = 0;
  bool operator==(const ItemPlace&) const = default;
};

struct ChunkEntry {
  Box box;
  ItemPlace place;
};

struct TensorEntry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  Shape shape;
  std::vector<ChunkEntry> chunks;  ///< decode_metadata(): by offsets, ascending
};

/// One element of a key's path in the nested state dict: a name or a list index.
using PathElement = std::variant<std::string, std::int64_t>;

struct CheckpointMetadata {
  std::map<std::string, TensorEntry> tensors;             ///< by flat key
  std::map<std::string, ItemPlace> values;                ///< byte items, by flat key
  std::map<std::string, std::vector<PathElement>> paths;  ///< planner_data; empty: PyTorch wrote none
};

/// Local. The pickle. `checkpoint_id`, `save_id`: what PyTorch keeps of where and when.
std::string encode_metadata(const CheckpointMetadata& metadata, const std::string& checkpoint_id,
                            const std::string& save_id);

/// Local. Reads what any PyTorch from 2.1 on, or encode_metadata(), wrote. `what` names the file in errors. Throws
/// IoError: a pickle that is damaged or hostile (pickle.h), a class or field that is not as FORMAT.md section 3 says,
/// an entry without data or data without an entry, negative or absurd sizes, a path that leaves the folder. Zero-size
/// chunks are left out.
CheckpointMetadata decode_metadata(std::span<const std::byte> bytes, const std::string& what);

}  // namespace meshard
