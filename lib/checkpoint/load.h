#pragma once
// Reading a checkpoint, of Meshard or of PyTorch, into any sharding. dcp.md section 6.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/file_system.h"
#include "checkpoint/state_dict.h"

namespace meshard {

/// What of a state dict and a checkpoint does not match; each list sorted.
struct Mismatch {
  std::vector<std::string> missing;     ///< wanted, not in the checkpoint
  std::vector<std::string> unexpected;  ///< in the checkpoint, not wanted
  std::vector<std::string> shapes;      ///< "key: [4, 4] in the checkpoint, [4, 8] wanted"
  std::vector<std::string> dtypes;      ///< "key: Long in the checkpoint, Float wanted": those that read_box() refuses
  bool empty() const { return missing.empty() && unexpected.empty() && shapes.empty() && dtypes.empty(); }
  /// Up to 20 of each, and the counts.
  std::string text() const;
};

/// An open checkpoint. Local, like everything here: ranks read on their own; whoever calls agrees on errors.
class CheckpointReader {
 public:
  /// Reads `.metadata` and, if it is there, meshard.json. IoError naming the file: missing (also: a `.partial` folder
  /// is none), damaged, hostile, of a later format, or chunks that do not tile their tensor exactly once (key and box).
  CheckpointReader(FileSystem& files, std::filesystem::path folder);
  ~CheckpointReader();

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointMetadata& metadata() const { return metadata_; }
  /// meshard.json without its checksums; null for a checkpoint that PyTorch wrote.
  const nlohmann::ordered_json& extra() const { return extra_; }

  /// `prefix`: keys that begin otherwise are nobody's business ("model." for weights only).
  Mismatch compare(const StateDict& wanted, const std::string& prefix = "") const;

  /// Fills every piece of the tensor from the saved boxes that overlap it, reading their byte ranges only. IoError
  /// naming file, item and reason. Values convert as read_box() says.
  void read(const StateTensor& into) const;
  /// Every tensor of `into` that the checkpoint has.
  void read(const StateDict& into) const;
  /// The value of a byte item; IoError if there is none.
  pickle::Value read_value(const std::string& key) const;

  /// Reads the data of every item of `part` of `parts` (files and checksums, archive heads). One line per problem:
  /// file, item, what; empty: all is well. Without meshard.json there are no checksums: lengths and heads only.
  std::vector<std::string> verify(int part = 0, int parts = 1) const;

 private:
  void read_extra(std::span<const std::byte> pickled);
  const ReadableFile& file(const std::string& name) const;

  FileSystem& files_;
  std::filesystem::path folder_;
  CheckpointMetadata metadata_;
  nlohmann::ordered_json extra_;
  struct Sum {
    std::int64_t length = 0;
    std::uint32_t crc = 0;
  };
  std::map<std::pair<std::string, std::int64_t>, Sum> sums_;  ///< of meshard.json, by file and offset
  mutable std::map<std::string, std::unique_ptr<ReadableFile>> open_;
};

}  // namespace meshard
