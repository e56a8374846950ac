#pragma once
// What a checkpoint remembers of the data, so that a run that goes on from it can tell whether its position in them
// still means the same. The content and the order of the files decide; names are for messages, folders are nowhere.
// dcp/FORMAT.md section 8.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "config/config.h"
#include "data/corpus.h"

namespace meshard {

struct DataRecord {
  std::vector<DataFile> files;  ///< in the order of their samples
  std::int64_t training_samples = 0, held_out_samples = 0;
};

/// Local. Reads some blocks of every file.
DataRecord data_record(const Corpus& corpus);

/// Local. The `data` of a meshard.json.
nlohmann::ordered_json to_json(const DataRecord& data);

/// Local. The one in a checkpoint; none in those that PyTorch or an earlier version wrote. Throws IoError, naming
/// meshard.json, for a damaged one.
std::optional<DataRecord> data_record_of(const CheckpointReader& reader);

/// Local. A line per file that is gone, new, longer, shorter or of other content, one if their order is another, one if
/// the samples are others in number. Empty: a position means the same in both, whatever the files are called.
std::vector<std::string> data_differences(const DataRecord& before, const DataRecord& now);

/// Local. What to say of the data of a run with `config` that goes on from this checkpoint, which Meshard wrote, after
/// `samples_done`: that it has no record of them; that the config cuts or orders them otherwise; with data.on_change:
/// warn, how they differ. Throws ConfigError with every difference if it is stop, and IoError for a damaged record.
std::string data_notes(const CheckpointReader& reader, const Config& config, const DataRecord& now,
                       std::int64_t samples_done);

}  // namespace meshard
