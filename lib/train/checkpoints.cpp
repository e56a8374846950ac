#include "train/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "checkpoint/retention.h"
#include "comm/world/together.h"
#include "train/training_state.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Json facts_of(const SavedParts& parts, const Progress& progress, int ranks) {
  Json facts{{"step", progress.step},
             {"samples", progress.samples},
             {"tokens", progress.tokens},
             {"ranks", ranks},
             {"fault", parts.config.regression.fault},
             {"config", resolved_yaml(parts.config)}};
  if (parts.data) facts["data"] = to_json(*parts.data);
  return facts;
}

}  // namespace

Checkpoints::Checkpoints(World& world, Log& log, FileSystem& files, const std::filesystem::path& root,
                         const SavedParts& parts)
    : world_(world),
      log_(log),
      store_(files, root),
      parts_(parts),
      saver_(world, files, parts.config.checkpoint.async) {
  on_rank_0(world, [&] { store_.clear_partials(); });
}

template <class Work>
void Checkpoints::guarded(const Work& work) {
  auto begin = Clock::now();
  try {
    work();
  } catch (const Error& error) {
    switch (parts_.config.checkpoint.on_error) {
      case CheckpointConfig::OnError::Stop:
        throw;
      case CheckpointConfig::OnError::Continue:
        log_.print(fmt::format("the checkpoint of step {} failed, training goes on: {}", in_flight_, error.what()));
        break;
    }
  }
  stall_ += seconds_from(begin);
}

void Checkpoints::save(const Progress& progress, double lr, bool now) {
  finish();
  if (newest_ == progress.step) return;
  world_.enter_phase(fmt::format("checkpoint of step {}", progress.step));
  save_begin_ = Clock::now();
  guarded([&] {
    in_flight_ = progress.step;
    auto state = training_state(parts_.runtime, parts_.optimizer, parts_.config, lr);
    saver_.save(store_.folder(progress.step), std::move(state), facts_of(parts_, progress, world_.size()));
    if (!saver_.in_flight()) committed(store_.folder(progress.step));
  });
  if (now) finish();
}

void Checkpoints::poll() {
  if (!saver_.in_flight()) return;
  guarded([&] {
    if (auto folder = saver_.poll()) committed(*folder);
  });
}

void Checkpoints::finish() {
  if (!saver_.in_flight()) return;
  world_.enter_phase(fmt::format("checkpoint of step {}", in_flight_));
  guarded([&] {
    if (auto folder = saver_.finish()) committed(*folder);
  });
}

void Checkpoints::settle() {
  try {
    finish();
  } catch (const Error& error) {
    log_.print(fmt::format("the checkpoint of step {} failed: {}", in_flight_, error.what()));
  }
}

void Checkpoints::committed(const std::filesystem::path& folder) {
  newest_ = in_flight_;
  slowest_save_ = std::max(slowest_save_, seconds_from(save_begin_));
  log_.print(fmt::format("checkpoint {}", folder.string()));
  if (world_.rank() != 0) return;
  try {
    retain(store_, parts_.config.checkpoint.keep_last, parts_.config.checkpoint.keep_every);
  } catch (const IoError& error) {
    log_.print(fmt::format("old checkpoints stay: {}", error.what()));
  }
}

double Checkpoints::seconds_to_stop() const {
  auto left = saver_.in_flight() ? std::max(slowest_save_ - seconds_from(save_begin_), 0.0) : 0.0;
  return slowest_save_ + left;
}

double Checkpoints::take_stall() {
  return std::exchange(stall_, 0.0);
}

}  // namespace meshard
