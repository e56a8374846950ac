#pragma once
// From the config to the parts of a trainer.

#include <memory>

#include "comm/world/world.h"
#include "config/config.h"
#include "data/corpus.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace meshard {

/// Local.
std::unique_ptr<Optimizer> make_optimizer(const Config& config);
/// Local.
ScheduleOptions schedule_options(const Config& config);
/// Local.
CorpusOptions corpus_options(const Config& config);
/// Local. Backend and patience.
WorldOptions world_options(const Config& config);

}  // namespace meshard
