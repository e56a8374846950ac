#pragma once
// A checkpoint's weights as a folder that Hugging Face's transformers 4 and 5 load: config.json and safetensors.

#include "checkpoint/load.h"
#include "hf/safetensors.h"
#include "model/options.h"

namespace meshard {

struct ExportOptions {
  at::ScalarType dtype = at::kFloat;  ///< fp32 or bf16 (rounded to nearest even); the expert bias is fp32 in both
  std::int64_t shard_bytes = kShardBytes;
};

/// Local. What of the "model." tensors of `from` is not the model's, by the index alone: nothing of any tensor's size
/// is asked for. A tied head, and an expert bias that is off, may be absent.
Mismatch fit_of(const CheckpointReader& from, const ModelOptions& model);

/// Local. Writes the "model." tensors of `from`, a checkpoint of `model`, as the folder `out`, all or nothing
/// (write_safetensors()). Streams: one tensor of the files in memory, of the experts one expert's matrix. Returns
/// warnings for the user.
///
/// Throws ConfigError, before anything is written, if no Hugging Face class computes what the model does (hf_config())
/// or `out` is there already; IoError if the checkpoint has not exactly the model's tensors (one error, up to 20 of
/// each kind), is damaged, or writing fails.
std::vector<std::string> export_model(const CheckpointReader& from, const ModelOptions& model, FileSystem& files,
                                      const std::filesystem::path& out, const ExportOptions& options = {});

}  // namespace meshard
