#pragma once
// Safetensors files, as Hugging Face has them: 8 bytes of header length (little-endian), a JSON header
//   {"__metadata__": {"format": "pt"}, NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
// and the data, to which the offsets refer. A model is one file, model.safetensors, or several, of which
// model.safetensors.index.json says which tensor is where.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/box.h"
#include "dcp/file_system.h"

namespace meshard {

// -- reading ----------------------------------------------------------------------------------------------------------

struct SafetensorsEntry {
  std::string file;  ///< within the folder, a plain name
  at::ScalarType dtype = at::kFloat;
  Shape shape;
  std::int64_t offset = 0;  ///< bytes, in the file
  std::int64_t length = 0;  ///< bytes
};

/// Local. The tensors of one file by name; `what` names it in errors (and `file` in the entries). Reads the header
/// only. Throws IoError: a header that is longer than the file or than 100 MB, no JSON, nested deeper than its format,
/// a name or field that comes twice; an unknown dtype; a shape that its bytes do not fit; tensors that overlap, leave
/// the data, or do not cover it (a file that was cut off or that something was added to).
std::map<std::string, SafetensorsEntry> read_safetensors_header(const ReadableFile& file, const std::string& what);

/// An open file or folder. Local, like everything here; one thread at a time.
class Safetensors {
 public:
  /// `path`: a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json and what that
  /// names. Throws IoError: nothing of that kind, a file of the index that is missing (named) or not a plain name of
  /// the folder, a tensor that the index puts elsewhere than it is or that two files have; and as
  /// read_safetensors_header().
  Safetensors(FileSystem& files, std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }

  /// Reads a box of a tensor into `into`, a host tensor view of the box's sizes. Converts as read_box()
  /// (dcp/torch_archive.h) does. IoError: no such tensor, a conversion that is not done, an unreadable file;
  /// ShapeError: a box that the tensor does not have.
  void read(const std::string& name, const Box& box, at::Tensor into) const;
  /// The text of a small file in the folder; empty: there is none. IoError if it cannot be read.
  std::string text_of(const std::string& name) const;
  /// Whether two tensors are the same: dtype, shape and every byte.
  bool same(const std::string& name, const std::string& other) const;

 private:
  void open_file(const std::string& name);
  void open_index(const std::filesystem::path& index);
  const SafetensorsEntry& entry(const std::string& name) const;

  FileSystem& files_;
  std::filesystem::path path_, folder_;
  std::map<std::string, std::unique_ptr<ReadableFile>> open_;
  std::map<std::string, SafetensorsEntry> tensors_;
};

// -- writing ----------------------------------------------------------------------------------------------------------

/// A tensor to be written.
struct SafetensorsItem {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  Shape shape;
  std::int64_t bytes() const;
};

constexpr std::int64_t kShardBytes = 5'000'000'000;

/// Local. Writes the folder `out`: the tensors, in files of at most `shard_bytes` of data (a larger tensor has one for
/// itself), with an index if there are several; and small files, by name. `values` is asked for each item (its index)
/// once, file by file, and gives a contiguous host tensor of that dtype and shape; it is written and let go, so one is
/// in memory at a time. Within a file wide elements come first: readers need them aligned.
///
/// All or nothing: written to `out`.partial (an old one is removed), synced, then renamed; if anything throws, nothing
/// is left behind. Throws ConfigError if `out` is there already, IoError if writing fails, ShapeError if `values` gives
/// something else than announced, ArgumentError for a name that comes twice or a dtype that the format does not have.
void write_safetensors(FileSystem& files, const std::filesystem::path& out, const std::vector<SafetensorsItem>& items,
                       const std::function<at::Tensor(std::size_t index)>& values,
                       const std::map<std::string, std::string>& small_files = {},
                       std::int64_t shard_bytes = kShardBytes);

/// Local. "BF16"; null for a dtype that the format does not have.
const char* safetensors_name(at::ScalarType dtype);

}  // namespace meshard
