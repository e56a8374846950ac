#pragma once
// The Python names in a `.metadata`. dcp.md section 3. Tables: nothing to call.

#include <c10/core/ScalarType.h>

#include <string_view>
#include <utility>

namespace meshard {

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kStorageModule = "torch.distributed.checkpoint.filesystem";
inline constexpr std::string_view kOldPropertiesModule = "torch.distributed._shard.sharded_tensor.metadata";
inline constexpr std::string_view kFormatVersion = "1.0.0";

inline constexpr std::pair<std::string_view, c10::ScalarType> kDtypes[] = {
    {"float32", c10::ScalarType::Float},
    {"bfloat16", c10::ScalarType::BFloat16},
    {"float16", c10::ScalarType::Half},
    {"float64", c10::ScalarType::Double},
    {"int64", c10::ScalarType::Long},
    {"int32", c10::ScalarType::Int},
    {"int16", c10::ScalarType::Short},
    {"int8", c10::ScalarType::Char},
    {"uint8", c10::ScalarType::Byte},
    {"bool", c10::ScalarType::Bool},
    {"uint16", c10::ScalarType::UInt16},
    {"uint32", c10::ScalarType::UInt32},
    {"uint64", c10::ScalarType::UInt64},
    {"complex64", c10::ScalarType::ComplexFloat},
    {"complex128", c10::ScalarType::ComplexDouble},
    {"float8_e4m3fn", c10::ScalarType::Float8_e4m3fn},
    {"float8_e4m3fnuz", c10::ScalarType::Float8_e4m3fnuz},
    {"float8_e5m2", c10::ScalarType::Float8_e5m2},
    {"float8_e5m2fnuz", c10::ScalarType::Float8_e5m2fnuz},
    {"float8_e8m0fnu", c10::ScalarType::Float8_e8m0fnu},
};

}  // namespace meshard
