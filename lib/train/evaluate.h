#pragma once
// Evaluation of a checkpoint without training.

#include <filesystem>

#include "base/log.h"
#include "comm/world.h"
#include "config/config.h"

namespace meshard {

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
