#include "train/checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "base/error.h"
#include "hf/import.h"
#include "train/assemble.h"
#include "train/training_state.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

Json facts_of(const Config& config, const Progress& progress, int ranks) {
  return {
      {"step", progress.step}, {"samples", progress.samples},      {"tokens", progress.samples * config.train.seq_len},
      {"ranks", ranks},        {"fault", config.regression.fault}, {"config", resolved_yaml(config)}};
}

std::string rank_lines(const std::vector<std::string>& problems) {
  std::string text;
  for (auto& problem : problems) text += (text.empty() ? "" : "\n  ") + problem;
  return text;
}

// Opens and verifies, each rank its share of the data. Empty reader: `problem` says why, the same on every rank.
std::unique_ptr<CheckpointReader> open_verified(World& world, FileSystem& files, const std::filesystem::path& folder,
                                                std::string& problem) {
  std::unique_ptr<CheckpointReader> reader;
  std::vector<std::string> mine;
  try {
    reader = std::make_unique<CheckpointReader>(files, folder);
    mine = reader->verify(world.rank(), world.size());
  } catch (const std::exception& error) {
    mine.push_back(error.what());
  }
  constexpr std::size_t kTold = 5;
  std::vector<std::string> distinct;
  std::size_t all = 0, rank = 0;
  for (auto& text : world.gather_texts(rank_lines(mine))) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line); ++all) {
      bool told = std::ranges::any_of(distinct, [&](auto& other) { return other.ends_with(line); });
      if (!told && distinct.size() < kTold) distinct.push_back(fmt::format("rank {}: {}", rank, line));
    }
    ++rank;
  }
  if (all > distinct.size() && distinct.size() == kTold) distinct.push_back("and more");
  problem = rank_lines(distinct);
  return problem.empty() ? std::move(reader) : nullptr;
}

// The differences to the config that the checkpoint was made with; refuses another model.
std::string config_notes(const CheckpointReader& reader, const Config& config) {
  if (reader.extra().is_null() || !reader.extra().contains("config")) return "";
  auto saved = config_of(reader);
  std::vector<std::string> other_model, changes;
  for (auto& change : config_changes(saved, config)) {
    (change.other_model ? other_model : changes)
        .push_back(fmt::format("{}: {} in the checkpoint, {} now", change.key, change.from, change.to));
  }
  if (!other_model.empty()) {
    throw ConfigError(
        fmt::format("{} is of another model:\n  {}", reader.folder().string(), fmt::join(other_model, "\n  ")));
  }
  return changes.empty() ? "" : fmt::format("changed since the checkpoint:\n  {}", fmt::join(changes, "\n  "));
}

std::string check_match(const CheckpointReader& reader, const StateDict& state, bool strict) {
  auto mismatch = reader.compare(state, "model.");
  bool whole_state = std::ranges::any_of(state.tensors, [](auto& t) { return t.key.starts_with("optimizer."); });
  if (whole_state) {
    auto more = reader.compare(state, "optimizer.state.").unexpected;
    mismatch.unexpected.insert(mismatch.unexpected.end(), more.begin(), more.end());
  }
  if (mismatch.empty()) return "";
  auto text =
      fmt::format("{} does not match this run's model and optimizer:{}", reader.folder().string(), mismatch.text());
  bool fatal = strict || !mismatch.shapes.empty();
  if (fatal) throw IoError(text + (mismatch.shapes.empty() ? "\n  checkpoint.strict: false loads what matches" : ""));
  return text;
}

std::string conversion_note(const CheckpointReader& reader, const StateDict& state) {
  std::int64_t converted = 0;
  for (auto& tensor : state.tensors) {
    auto found = reader.metadata().tensors.find(tensor.key);
    converted += found != reader.metadata().tensors.end() && found->second.dtype != tensor.dtype;
  }
  return converted == 0 ? "" : fmt::format("{} tensors were converted to the dtype of the main weights", converted);
}

void add_note(std::string& notes, const std::string& note) {
  if (!note.empty()) notes += (notes.empty() ? "" : "\n") + note;
}

// The values that PyTorch keeps per parameter group are made from the config, not read.
StateDict without_values(StateDict state) {
  state.values.clear();
  return state;
}

// A run's folder stands for its newest complete checkpoint.
std::filesystem::path newest_of_a_run(World& world, FileSystem& files, const std::filesystem::path& folder) {
  std::string newest;
  CheckpointStore store(files, folder / "checkpoints");
  if (world.rank() == 0 && !files.exists(folder / ".metadata")) {
    auto steps = store.complete();
    if (!steps.empty()) newest = store.folder(steps.front()).string();
  }
  newest = world.share_text(newest);
  return newest.empty() ? folder : std::filesystem::path(newest);
}

LoadedCheckpoint load_all(World& world, const CheckpointReader& reader, const TrainingParts& parts) {
  LoadedCheckpoint loaded;
  loaded.folder = reader.folder();
  std::string problem;
  ExitCode code = kExitFailure;
  try {
    add_note(loaded.notes, config_notes(reader, parts.config));
    parts.optimizer.allocate(parts.context.weight_shards());
    auto state = without_values(training_state(parts.context, parts.optimizer, parts.config, 0.0));
    add_note(loaded.notes, check_match(reader, state, parts.config.checkpoint.strict));
    add_note(loaded.notes, conversion_note(reader, state));
    if (reader.extra().is_null())
      add_note(loaded.notes, "there is no meshard.json: no checksums, no config to compare");
    reader.read(state);
    parts.optimizer.set_steps(optimizer_steps(state));
    auto& extra = reader.extra();
    auto steps = parts.optimizer.steps();
    loaded.progress.step = extra.is_null() ? steps : extra.value("step", steps);
    loaded.progress.samples =
        extra.is_null() ? steps * parts.config.train.global_batch_size : extra.value("samples", std::int64_t{0});
  } catch (const Error& error) {
    problem = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  world.raise_together(problem, code);
  parts.context.refresh_weights();
  return loaded;
}

}  // namespace

Checkpoints::Checkpoints(World& world, Log& log, FileSystem& files, const std::filesystem::path& root,
                         const TrainingParts& parts)
    : world_(world),
      log_(log),
      store_(files, root),
      parts_(parts),
      saver_(world, files, parts.config.checkpoint.async) {
  std::string problem;
  try {
    if (world.rank() == 0) store_.clear_partials();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  world.raise_together(problem);
}

template <class Work>
void Checkpoints::guarded(const Work& work) {
  auto begin = Clock::now();
  try {
    work();
  } catch (const Error& error) {
    if (parts_.config.checkpoint.on_error == CheckpointConfig::OnError::Stop) throw;
    log_.print(fmt::format("the checkpoint of step {} failed, training goes on: {}", in_flight_, error.what()));
  }
  stall_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

void Checkpoints::save(const Progress& progress, double lr, bool now) {
  finish();
  if (newest_ == progress.step) return;
  world_.enter_phase(fmt::format("checkpoint of step {}", progress.step));
  guarded([&] {
    in_flight_ = progress.step;
    auto state = training_state(parts_.context, parts_.optimizer, parts_.config, lr);
    saver_.save(store_.folder(progress.step), std::move(state), facts_of(parts_.config, progress, world_.size()));
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

void Checkpoints::committed(const std::filesystem::path& folder) {
  newest_ = in_flight_;
  log_.print(fmt::format("checkpoint {}", folder.string()));
  if (world_.rank() != 0) return;
  try {
    store_.retain(parts_.config.checkpoint.keep_last, parts_.config.checkpoint.keep_every);
  } catch (const IoError& error) {
    log_.print(fmt::format("old checkpoints stay: {}", error.what()));
  }
}

double Checkpoints::take_stall() {
  return std::exchange(stall_, 0.0);
}

std::optional<LoadedCheckpoint> resume_newest(World& world, FileSystem& files, const std::filesystem::path& root,
                                              const TrainingParts& parts) {
  CheckpointStore store(files, root);
  std::string notes, listed;
  for (auto step : store.complete()) listed += fmt::format("{} ", step);
  std::istringstream steps(world.share_text(listed));
  std::int64_t step = 0;
  while (steps >> step) {
    std::string problem;
    if (auto reader = open_verified(world, files, store.folder(step), problem)) {
      auto loaded = load_all(world, *reader, parts);
      loaded.notes = notes.empty() ? loaded.notes : notes + (loaded.notes.empty() ? "" : "\n" + loaded.notes);
      return loaded;
    }
    add_note(notes, fmt::format("{} is damaged, trying the one before:\n  {}", store.folder(step).string(), problem));
  }
  if (!notes.empty()) {
    throw IoError(fmt::format("no checkpoint below {} is whole; move them away, or start anew with --overwrite\n{}",
                              root.string(), notes));
  }
  return {};
}

LoadedCheckpoint resume_from(World& world, FileSystem& files, const std::filesystem::path& folder,
                             const TrainingParts& parts) {
  if (!files.exists(folder / ".metadata") && files.exists(folder / "checkpoints")) {
    auto loaded = resume_newest(world, files, folder / "checkpoints", parts);
    if (loaded) return *loaded;
    throw ConfigError(fmt::format("{} holds no complete checkpoint", (folder / "checkpoints").string()));
  }
  std::string problem;
  auto reader = open_verified(world, files, folder, problem);
  if (!reader) throw IoError(fmt::format("{} cannot be loaded:\n  {}", folder.string(), problem));
  return load_all(world, *reader, parts);
}

Config config_of(const CheckpointReader& reader, const std::vector<std::string>& overrides) {
  auto& extra = reader.extra();
  if (extra.is_null() || !extra.contains("config")) {
    throw ConfigError(
        fmt::format("{} has no config in it, as PyTorch wrote it; give one with --config", reader.folder().string()));
  }
  auto name = (reader.folder() / "meshard.json").string();
  return parse_config(extra["config"].get<std::string>(), name, overrides, extra.value("ranks", 1));
}

LoadedCheckpoint load_weights(World& world, FileSystem& files, const std::filesystem::path& folder,
                              const TrainingParts& parts) {
  LoadedCheckpoint loaded;
  loaded.folder = folder;
  std::string problem;
  std::unique_ptr<CheckpointReader> reader;
  bool hugging_face = !files.exists(folder / ".metadata") && files.exists(folder / "config.json");
  if (!hugging_face) {
    loaded.folder = newest_of_a_run(world, files, folder);
    reader = open_verified(world, files, loaded.folder, problem);
    if (!reader) throw IoError(fmt::format("{} cannot be loaded:\n  {}", loaded.folder.string(), problem));
  }
  ExitCode code = kExitFailure;
  try {
    auto state = model_state(parts.context);
    if (hugging_face) {
      Safetensors weights(files, folder);
      for (auto& note : import_weights(weights, hf_model(parts.config), state)) add_note(loaded.notes, note);
    } else {
      add_note(loaded.notes, config_notes(*reader, parts.config));
      add_note(loaded.notes, check_match(*reader, state, parts.config.checkpoint.strict));
      add_note(loaded.notes, conversion_note(*reader, state));
      reader->read(state);
    }
  } catch (const Error& error) {
    problem = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  world.raise_together(problem, code);
  parts.context.refresh_weights();
  return loaded;
}

}  // namespace meshard
