#pragma once
// The Python names in a `.metadata`. FORMAT.md section 3. Tables: nothing to call.

#include <string_view>

namespace meshard {

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kStorageModule = "torch.distributed.checkpoint.filesystem";
inline constexpr std::string_view kOldPropertiesModule = "torch.distributed._shard.sharded_tensor.metadata";
inline constexpr std::string_view kFormatVersion = "1.0.0";

}  // namespace meshard
