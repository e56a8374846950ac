#pragma once
// Where a run begins: from a checkpoint of its own, of another mesh, of PyTorch, or from a Hugging Face folder's
// weights. dcp/FORMAT.md section 6, CONTRACT.md section 6.

#include <optional>
#include <string>

#include "checkpoint/load.h"
#include "train/checkpoints.h"
#include "train/data_record.h"

namespace meshard {

/// What a run began from.
struct LoadedCheckpoint {
  Progress progress;
  std::filesystem::path folder;
  std::string notes;  ///< for the log: damaged ones that were passed over, changes of the config, values converted
};

/// Collective over world. The newest complete checkpoint below `root` that verifies, loaded into the parts; none:
/// nothing. Damaged ones are passed over, and said. Throws ConfigError if it is of another model, with every changed
/// key, or (data.on_change: stop) of other data, with every difference; IoError if keys or shapes do not match
/// (checkpoint.strict), or all are damaged. The same on every rank.
std::optional<LoadedCheckpoint> resume_newest(World& world, FileSystem& files, const std::filesystem::path& root,
                                              const SavedParts& parts);

/// Collective over world. This checkpoint or, of a run's folder, its newest. Errors as above; damage is one.
LoadedCheckpoint resume_from(World& world, FileSystem& files, const std::filesystem::path& folder,
                             const SavedParts& parts);

/// Local. The config that a checkpoint was made with, with overrides. ConfigError for one that PyTorch wrote: it has
/// none. IoError for a damaged one.
Config config_of(const CheckpointReader& reader, const std::vector<std::string>& overrides = {});

/// Local. Where what a checkpoint of a run says of itself cannot be: a config that cannot be read or makes another
/// model than its tensors are, a record of the data that is none, an optimizer that has done more steps than the run.
/// Empty: nowhere.
std::string contradiction(const CheckpointReader& reader);

/// Local; for one rank, before a model of `config` is made. Whether a source of weights (a checkpoint, a run's folder,
/// a Hugging Face folder) is of that model, by names, shapes, dtypes and the length of its files alone: what passes
/// asks for no more memory than there are weights on the disk. `data`: those of a run that goes on from a checkpoint,
/// compared with its record; null for weights only. Throws as loading it would.
void require_fit(FileSystem& files, const std::filesystem::path& source, const Config& config,
                 const DataRecord* data = nullptr);

/// Local. The same of the newest complete checkpoint below `root`, but for those that resume_newest() will pass over.
/// Whether there is one.
bool require_newest_fit(FileSystem& files, const std::filesystem::path& root, const Config& config);

/// Local. "DIR was made with the fault count_in_eval on"; empty for a sound one.
std::string fault_note(const CheckpointReader& reader);

/// Collective over world. Weights and buffers only: of a checkpoint (PyTorch's, too), of a run's newest one, or of a
/// Hugging Face folder. Throws ConfigError, with both values of every key, if meshard.json or config.json says that
/// they are another model's.
LoadedCheckpoint load_weights(World& world, FileSystem& files, const std::filesystem::path& folder,
                              const SavedParts& parts);

}  // namespace meshard
