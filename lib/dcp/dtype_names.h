#pragma once
// How PyTorch names what a tensor is made of, in indices and archives. A table: nothing to call.

#include <c10/core/ScalarType.h>

#include <array>
#include <string_view>

namespace meshard {

struct DtypeName {
  c10::ScalarType dtype;
  std::string_view name;     ///< torch.NAME
  std::string_view storage;  ///< torch.STORAGE; empty: an UntypedStorage, and the dtype said beside it
};

inline constexpr std::array<DtypeName, 20> kDtypeNames = {{
    {c10::ScalarType::Float, "float32", "FloatStorage"},
    {c10::ScalarType::BFloat16, "bfloat16", "BFloat16Storage"},
    {c10::ScalarType::Half, "float16", "HalfStorage"},
    {c10::ScalarType::Double, "float64", "DoubleStorage"},
    {c10::ScalarType::Long, "int64", "LongStorage"},
    {c10::ScalarType::Int, "int32", "IntStorage"},
    {c10::ScalarType::Short, "int16", "ShortStorage"},
    {c10::ScalarType::Char, "int8", "CharStorage"},
    {c10::ScalarType::Byte, "uint8", "ByteStorage"},
    {c10::ScalarType::Bool, "bool", "BoolStorage"},
    {c10::ScalarType::ComplexFloat, "complex64", "ComplexFloatStorage"},
    {c10::ScalarType::ComplexDouble, "complex128", "ComplexDoubleStorage"},
    {c10::ScalarType::UInt16, "uint16", ""},
    {c10::ScalarType::UInt32, "uint32", ""},
    {c10::ScalarType::UInt64, "uint64", ""},
    {c10::ScalarType::Float8_e4m3fn, "float8_e4m3fn", ""},
    {c10::ScalarType::Float8_e5m2, "float8_e5m2", ""},
    {c10::ScalarType::Float8_e4m3fnuz, "float8_e4m3fnuz", ""},
    {c10::ScalarType::Float8_e5m2fnuz, "float8_e5m2fnuz", ""},
    {c10::ScalarType::Float8_e8m0fnu, "float8_e8m0fnu", ""},
}};

}  // namespace meshard
