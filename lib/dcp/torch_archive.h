#pragma once
// An item of a checkpoint: one complete torch archive (an uncompressed zip, as torch.save writes it) that holds one
// tensor or one plain value. FORMAT.md section 2.

#include <ATen/core/Tensor.h>

#include <functional>

#include "dcp/file_system.h"
#include "dcp/metadata.h"
#include "dcp/pickle.h"

namespace meshard {

/// Takes the bytes of an item in order.
using ByteSink = std::function<void(std::span<const std::byte>)>;

/// Local. Streams the archive of a contiguous host tensor, without a copy of its data. Returns its length.
std::int64_t write_tensor_item(const at::Tensor& tensor, const ByteSink& sink);

/// Local. Streams the archive of a plain value: None, bool, int, float, text, and tuples, lists and dicts of these.
std::int64_t write_value_item(const pickle::Value& value, const ByteSink& sink);

/// What the head of a tensor item says; the elements themselves lie from `data_offset` of the file on.
struct TensorItem {
  at::ScalarType dtype = at::kFloat;
  Shape sizes;
  Shape strides;                    ///< in elements
  std::int64_t storage_offset = 0;  ///< in elements
  std::int64_t data_offset = 0;     ///< bytes, in the file
  std::int64_t data_length = 0;     ///< bytes of the storage
};

/// Local. Reads directory and data.pkl of the item at `place`, nothing of its data. IoError naming file and item: not
/// an archive, compressed or encrypted records, offsets beyond the item, a pickle that is not a plain tensor's, sizes
/// and strides that leave the storage.
TensorItem read_tensor_item(const ReadableFile& file, const ItemPlace& place, const std::string& what);

/// Local. IoError unless the item is a chunk of this box of the index' tensor: its sizes and dtype.
void require_chunk(const TensorItem& item, const TensorEntry& entry, const Box& box, const std::string& what);

/// What check_item() read.
struct CheckedItem {
  std::int64_t bytes = 0;     ///< of all records
  bool has_checksums = true;  ///< false: PyTorch was told to write none (torch.serialization.set_crc32_options)
};

/// Local. Reads the data of every record of an item, whatever it holds, and compares them with the archive's own
/// CRC-32; one without checksums is not read. IoError, naming the record: its data have changed; or as above.
CheckedItem check_item(const ReadableFile& file, const ItemPlace& place, const std::string& what);

/// Local. The plain value of a byte item. IoError as above.
pickle::Value read_value_item(const ReadableFile& file, const ItemPlace& place, const std::string& what);

/// Local. Whether read_box() takes values of one dtype into another: the same; bf16, fp16, fp64 to fp32; fp32 to bf16.
bool converts(at::ScalarType from, at::ScalarType to);

/// Local. Reads box `from` (in the item's own coordinates) of a tensor item into `into`, a host tensor view of the same
/// sizes and of any strides; IoError if it does not convert. Contiguous runs of both are read straight into place in
/// one call each.
void read_box(const ReadableFile& file, const TensorItem& item, const Box& from, at::Tensor into,
              const std::string& what);

}  // namespace meshard
