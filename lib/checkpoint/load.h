#pragma once
// Reading a checkpoint, of Meshard or of PyTorch, into any sharding. dcp/FORMAT.md section 6.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/state_dict.h"
#include "dcp/file_system.h"

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

/// What verify() looked at and found.
struct Verification {
  /// One line each: file, item, what.
  std::vector<std::string> problems;
  struct Amount {
    std::int64_t items = 0, bytes = 0;
  };
  Amount summed;           ///< items whose data have the checksum that was written with them
  Amount unsummed;         ///< items without one: PyTorch was told to write none. No damage, and no proof either
  std::int64_t opaque = 0; ///< items outside model and optimizer whose class is Python's: no shape to compare
  std::int64_t skipped = 0; ///< steps of meshard.json that the optimizer has not done
  bool by_meshard = true;  ///< checksums of meshard.json; else those of PyTorch's archives

  bool sound() const { return problems.empty(); }
  /// Up to 20 problems, a line each, indented, and how many more.
  std::string problems_text() const;
  /// Exactly what was checked against what, and what could not be.
  std::string checked_text() const;
};

/// Local. Why a folder is no complete checkpoint (one of a save that never ended, a run's, none at all); empty if it
/// may be one.
std::string why_no_checkpoint(FileSystem& files, const std::filesystem::path& folder);

/// An open checkpoint. Local, like everything here: ranks read on their own; whoever calls agrees on errors.
class CheckpointReader {
 public:
  /// Reads `.metadata` and, if it is there, meshard.json. ConfigError where there is no complete checkpoint (a
  /// `.partial` folder is none): it was asked for wrongly. IoError naming the file: damaged, hostile, of a later
  /// format, facts that no run could have written (step -1), or chunks that do not tile their tensor exactly once (key
  /// and box).
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

  /// Reads the data of every item of `part` of `parts`, once, block by block, and compares them with their checksum: of
  /// meshard.json or, without one, the CRC-32 of PyTorch's archives; and shape and dtype of each item with `.metadata`.
  Verification verify(int part = 0, int parts = 1) const;
  /// Without reading data: every item lies in its file, whole, and apart from the others, and has room for its chunk.
  /// So no tensor of a model or an optimizer that `.metadata` lists is larger than what there is of it on the disk.
  /// IoError naming the first that is not so.
  void require_extents() const;
  /// Verifies all of it. IoError "FOLDER cannot be `purpose`:" and the problems, if there are any.
  void require_sound(const char* purpose) const;

 private:
  friend class Verifier;

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
