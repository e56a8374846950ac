#pragma once
// The held-out loss, of a model in training or of a checkpoint.

#include <filesystem>
#include <functional>
#include <optional>

#include "base/log.h"
#include "comm/world/world.h"
#include "config/config.h"
#include "nn/causal_lm.h"
#include "train/batches.h"

namespace meshard {

/// Collective over world (control). The sum of one number per rank.
double sum_over_ranks(World& world, double value);

/// Collective over world. Mean loss per held-out target token. `stop`, which all ranks answer alike, is asked before
/// each round; none if it says so.
std::optional<double> held_out_loss(World& world, CausalLM& model, const Batches& batches,
                                    const std::function<bool()>& stop);

/// Overrides with which a config for any mesh can be read for any number of ranks.
inline const std::vector<std::string> kAnyMesh = {"parallel.dp_outer=1", "parallel.dp_shard=auto", "parallel.expert=1",
                                                  "parallel.strategy=fsdp"};

/// Local. Throws ConfigError, with what to do, if nothing of the data is held out. `or_else`: what else may be done.
void check_held_out(const Corpus& corpus, const Config& config, const std::string& or_else = "");

struct Evaluation {
  double loss = 0.0;        ///< mean over the held-out target tokens
  std::int64_t tokens = 0;  ///< target tokens
  bool byte_data = false;   ///< loss / ln 2 is bits per byte
};

/// Collective over world. Mean held-out loss, over the windows that training with `config` evaluates, of a checkpoint
/// of any mesh. The model is sharded over all ranks, whatever parallel says. Throws as load_weights() does, ConfigError
/// without held-out data.
Evaluation evaluate_checkpoint(World& world, Config config, const std::filesystem::path& checkpoint, Log& log);

}  // namespace meshard
