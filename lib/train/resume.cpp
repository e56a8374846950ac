#include "train/resume.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "base/error.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "checkpoint/store.h"
#include "comm/world/together.h"
#include "hf/export.h"
#include "hf/import.h"
#include "hf/names.h"
#include "train/evaluate.h"
#include "train/options.h"
#include "train/training_state.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

// A whole number that every run writes; CheckpointReader has seen to its range.
std::int64_t fact(const CheckpointReader& reader, const char* name) {
  auto& extra = reader.extra();
  if (extra.contains(name)) return extra[name].get<std::int64_t>();
  throw IoError(fmt::format("{}: `{}` is missing: no run wrote it", (reader.folder() / "meshard.json").string(), name));
}

std::string rank_lines(const std::vector<std::string>& problems) {
  std::string text;
  for (auto& problem : problems) text += (text.empty() ? "" : "\n  ") + problem;
  return text;
}

// Of the first step count of the optimizer's, as all are alike.
void check_steps(const CheckpointReader& reader, std::int64_t step) {
  auto& tensors = reader.metadata().tensors;
  auto counts = [](auto& entry) {
    return entry.first.starts_with("optimizer.state.") && entry.first.ends_with(".step");
  };
  auto found = std::ranges::find_if(tensors, counts);
  if (found == tensors.end() || !found->second.shape.empty()) return;
  auto count = at::empty({}, at::kFloat);
  reader.read(StateTensor{found->first, {}, at::kFloat, {}, {{whole({}), count}}, {}});
  auto steps = count.item<float>();
  if (steps <= static_cast<float>(step)) return;  // fewer: steps that were skipped
  throw IoError(fmt::format("{} says step {}, but its optimizer has done {} steps",
                            (reader.folder() / "meshard.json").string(), step, steps));
}

// By its index and the length of its files; null: `problem` says why.
std::unique_ptr<CheckpointReader> open_with_data(FileSystem& files, const std::filesystem::path& folder,
                                                 std::string& problem) {
  try {
    auto reader = std::make_unique<CheckpointReader>(files, folder);
    reader->require_extents();
    return reader;
  } catch (const Error& error) {
    problem = error.what();
    return nullptr;
  }
}

// A checkpoint that was opened and verified, the same on every rank.
struct Opened {
  std::unique_ptr<CheckpointReader> reader;  // none: `problem` says why
  std::string problem, note;
};

// Each rank verifies its share of the data.
Opened open_verified(World& world, FileSystem& files, const std::filesystem::path& folder) {
  Opened opened;
  Verification found;
  auto& mine = found.problems;
  try {
    opened.reader = std::make_unique<CheckpointReader>(files, folder);
    found = opened.reader->verify(world.rank(), world.size());
    auto problem = world.rank() == 0 && found.sound() ? contradiction(*opened.reader) : "";
    if (!problem.empty()) mine.push_back(problem);
  } catch (const std::exception& error) {
    mine.push_back(message_of(error));
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
  opened.problem = rank_lines(distinct);
  if (!opened.problem.empty()) opened.reader = nullptr;
  auto unsummed = static_cast<std::int64_t>(sum_over_ranks(world, static_cast<double>(found.unsummed.items)));
  if (unsummed > 0) {
    opened.note = fmt::format("{} items could not be checked: PyTorch was told to write no CRC-32", unsummed);
  }
  return opened;
}

Opened open_whole(World& world, FileSystem& files, const std::filesystem::path& folder) {
  auto opened = open_verified(world, files, folder);
  if (opened.reader) return opened;
  throw IoError(fmt::format("{} cannot be loaded:\n  {}", folder.string(), opened.problem));
}

// What this run's config changes of what `folder` was made with; refuses another model. `source`: where the old values
// stand.
std::string change_notes(const std::vector<ConfigChange>& changes, const std::filesystem::path& folder,
                         std::string_view source) {
  std::vector<std::string> other_model, others;
  for (auto& change : changes) {
    (change.other_model ? other_model : others)
        .push_back(fmt::format("{}: {} in {}, {} now", change.key, change.from, source, change.to));
  }
  if (!other_model.empty()) {
    throw ConfigError(fmt::format("{} is of another model:\n  {}", folder.string(), fmt::join(other_model, "\n  ")));
  }
  return others.empty() ? "" : fmt::format("changed since {}:\n  {}", source, fmt::join(others, "\n  "));
}

std::string config_notes(const CheckpointReader& reader, const Config& config) {
  if (reader.extra().is_null() || !reader.extra().contains("config")) return "";
  return change_notes(config_changes(config_of(reader), config), reader.folder(), "the checkpoint");
}

std::string note_mismatch(const CheckpointReader& reader, const Mismatch& mismatch, bool strict) {
  if (mismatch.empty()) return "";
  auto text =
      fmt::format("{} does not match this run's model and optimizer:{}", reader.folder().string(), mismatch.text());
  bool can_skip = mismatch.shapes.empty() && mismatch.dtypes.empty();
  if (strict || !can_skip) throw IoError(text + (can_skip ? "\n  checkpoint.strict: false loads what matches" : ""));
  return text;
}

std::string check_match(const CheckpointReader& reader, const StateDict& state, bool strict) {
  auto mismatch = reader.compare(state, "model.");
  bool whole_state = std::ranges::any_of(state.tensors, [](auto& t) { return t.key.starts_with("optimizer."); });
  if (whole_state) {
    auto more = reader.compare(state, "optimizer.state.").unexpected;
    mismatch.unexpected.insert(mismatch.unexpected.end(), more.begin(), more.end());
  }
  return note_mismatch(reader, mismatch, strict);
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

// A run's folder stands for its newest complete checkpoint.
std::filesystem::path newest_of_a_run(FileSystem& files, const std::filesystem::path& folder) {
  if (files.exists(folder / ".metadata")) return folder;
  CheckpointStore store(files, folder / "checkpoints");
  auto steps = store.complete();
  return steps.empty() ? folder : store.folder(steps.front());
}

bool is_hugging_face(FileSystem& files, const std::filesystem::path& folder) {
  return !files.exists(folder / ".metadata") && files.exists(folder / "config.json");
}

std::string number_text(const pickle::Value& value) {
  using Kind = pickle::Value::Kind;
  if (value.kind == Kind::Int) return std::to_string(value.integer);
  if (value.kind == Kind::Float) return fmt::format("{}", value.number);
  if (value.kind != Kind::Tuple && value.kind != Kind::List) return "another type";
  std::vector<std::string> parts;
  for (auto& item : value.items()) parts.push_back(number_text(item));
  return fmt::format("({})", fmt::join(parts, ", "));
}

// What a checkpoint that PyTorch wrote was trained with, where the config says otherwise.
std::string hyperparameter_note(const CheckpointReader& reader, const StateDict& state) {
  std::vector<std::string> different;
  for (auto& value : state.values) {
    auto name = std::get<std::string>(value.path.back());
    bool counts = name == "betas" || name == "eps" || name == "weight_decay" || name == "momentum";
    if (!counts || !reader.metadata().values.contains(value.key)) continue;
    auto saved = number_text(reader.read_value(value.key)), now = number_text(value.value);
    if (saved != now) different.push_back(fmt::format("{}: {} in the checkpoint, {} now", value.key, saved, now));
  }
  return different.empty() ? "" : fmt::format("the config's optimizer is used:\n  {}", fmt::join(different, "\n  "));
}

// Steps and samples; one that PyTorch wrote knows only how often its optimizer stepped.
Progress progress_of(const CheckpointReader& reader, std::int64_t steps, const Config& config) {
  if (reader.extra().is_null()) {
    auto samples = steps * config.train.global_batch_size;
    return {steps, samples, samples * config.train.seq_len};
  }
  return {fact(reader, "step"), fact(reader, "samples"), fact(reader, "tokens")};
}

LoadedCheckpoint load_all(World& world, const Opened& opened, const SavedParts& parts) {
  auto& reader = *opened.reader;
  auto loaded = together(world, [&] {
    LoadedCheckpoint loaded;
    loaded.folder = reader.folder();
    bool foreign = reader.extra().is_null();
    add_note(loaded.notes, config_notes(reader, parts.config));
    if (parts.data && world.rank() == 0 && !foreign) {
      add_note(loaded.notes, data_notes(reader, parts.config, *parts.data, fact(reader, "samples")));
    }
    parts.optimizer.allocate(parts.runtime.weight_shards());
    auto state = training_state(parts.runtime, parts.optimizer, parts.config, 0.0);
    if (foreign) add_note(loaded.notes, "there is no meshard.json: no config to compare");
    add_note(loaded.notes, opened.note);
    if (foreign) add_note(loaded.notes, hyperparameter_note(reader, state));
    state.values.clear();  // what PyTorch keeps per parameter group is made from the config, not read
    add_note(loaded.notes, check_match(reader, state, parts.config.checkpoint.strict));
    add_note(loaded.notes, conversion_note(reader, state));
    std::erase_if(state.tensors, [&](auto& tensor) { return !reader.metadata().tensors.contains(tensor.key); });
    reader.read(state);
    parts.optimizer.set_steps(optimizer_steps(state, reader.folder().string()));
    loaded.progress = progress_of(reader, parts.optimizer.steps(), parts.config);
    return loaded;
  });
  parts.runtime.refresh_weights();
  return loaded;
}

}  // namespace

std::optional<LoadedCheckpoint> resume_newest(World& world, FileSystem& files, const std::filesystem::path& root,
                                              const SavedParts& parts) {
  CheckpointStore store(files, root);
  std::string notes, listed;
  for (auto step : store.complete()) listed += fmt::format("{} ", step);
  std::istringstream steps(world.share_text(listed));
  std::int64_t step = 0;
  while (steps >> step) {
    auto opened = open_verified(world, files, store.folder(step));
    auto& [reader, problem, _] = opened;
    bool renamed = reader && !reader->extra().is_null() && reader->extra().value("step", Json()) != step;
    if (renamed) problem = fmt::format("it is of step {}", json_text(reader->extra().value("step", Json())));
    if (reader && !renamed) {
      auto loaded = load_all(world, opened, parts);
      loaded.notes = notes.empty() ? loaded.notes : notes + (loaded.notes.empty() ? "" : "\n" + loaded.notes);
      return loaded;
    }
    add_note(notes, fmt::format("{} is {}, trying the one before:\n  {}", store.folder(step).string(),
                                renamed ? "another step's" : "damaged", problem));
  }
  if (!notes.empty()) {
    throw IoError(fmt::format("no checkpoint below {} is whole; move them away, or start anew with --overwrite\n{}",
                              root.string(), notes));
  }
  return {};
}

LoadedCheckpoint resume_from(World& world, FileSystem& files, const std::filesystem::path& folder,
                             const SavedParts& parts) {
  if (!files.exists(folder / ".metadata") && files.exists(folder / "checkpoints")) {
    auto loaded = resume_newest(world, files, folder / "checkpoints", parts);
    if (loaded) return *loaded;
    throw ConfigError(fmt::format("{} holds no complete checkpoint", (folder / "checkpoints").string()));
  }
  return load_all(world, open_whole(world, files, folder), parts);
}

std::string fault_note(const CheckpointReader& reader) {
  auto& extra = reader.extra();
  bool given = extra.is_object() && extra.contains("fault") && extra["fault"].is_string() && extra["fault"] != "none";
  return given ? fmt::format("{} was made with the fault {} on", reader.folder().string(),
                             extra["fault"].get<std::string>())
               : "";
}

Config config_of(const CheckpointReader& reader, const std::vector<std::string>& overrides) {
  auto& extra = reader.extra();
  if (extra.is_null() || !extra.contains("config")) {
    throw ConfigError(
        fmt::format("{} has no config in it, as PyTorch wrote it; give one with --config", reader.folder().string()));
  }
  auto name = (reader.folder() / "meshard.json").string();
  auto ranks = fact(reader, "ranks");
  auto text = extra["config"].is_string() ? extra["config"].get<std::string>() : "";
  Config saved;
  try {
    saved = parse_config(text, name, {}, static_cast<int>(ranks));
  } catch (const ConfigError& error) {  // of a file that nobody writes by hand
    throw IoError(fmt::format("the config in {} is damaged: {}", name, error.what()));
  }
  return overrides.empty() ? saved : parse_config(text, name, overrides, static_cast<int>(ranks));
}

LoadedCheckpoint load_weights(World& world, FileSystem& files, const std::filesystem::path& folder,
                              const SavedParts& parts) {
  bool hugging_face = is_hugging_face(files, folder);
  Opened opened;
  if (!hugging_face) {
    auto newest = world.share_text(world.rank() == 0 ? newest_of_a_run(files, folder).string() : "");
    opened = open_whole(world, files, newest);
  }
  auto& reader = opened.reader;
  auto loaded = together(world, [&] {
    LoadedCheckpoint loaded;
    loaded.folder = reader ? reader->folder() : folder;
    auto state = model_state(parts.runtime);
    if (hugging_face) {
      auto changes = changes_from_hugging_face(folder / "config.json", parts.config);
      add_note(loaded.notes, change_notes(changes, folder, "config.json"));
      Safetensors weights(files, folder);
      for (auto& note : import_weights(weights, model_options(parts.config), state)) add_note(loaded.notes, note);
      return loaded;
    }
    add_note(loaded.notes, fault_note(*reader));
    add_note(loaded.notes, opened.note);
    add_note(loaded.notes, config_notes(*reader, parts.config));
    add_note(loaded.notes, check_match(*reader, state, parts.config.checkpoint.strict));
    add_note(loaded.notes, conversion_note(*reader, state));
    reader->read(state);
    return loaded;
  });
  parts.runtime.refresh_weights();
  return loaded;
}

std::string contradiction(const CheckpointReader& reader) {
  auto& facts = reader.extra();
  bool of_a_run = facts.is_object() && facts.contains("config") && facts.contains("ranks") && facts.contains("step");
  if (!of_a_run) return "";
  try {
    auto mismatch = fit_of(reader, model_options(config_of(reader)));
    if (!mismatch.empty()) {
      return fmt::format("the config in {} makes another model than its tensors are:{}",
                         (reader.folder() / "meshard.json").string(), mismatch.text());
    }
    check_steps(reader, fact(reader, "step"));
    data_record_of(reader);  // throws if it is damaged
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void require_fit(FileSystem& files, const std::filesystem::path& source, const Config& config,
                 const DataRecord* data) {
  if (!is_hugging_face(files, source)) {
    auto folder = newest_of_a_run(files, source);
    if (auto why = why_no_checkpoint(files, folder); !why.empty()) throw ConfigError(why);
    std::string problem;
    auto reader = open_with_data(files, folder, problem);
    if (!reader) throw IoError(fmt::format("{} cannot be loaded:\n  {}", folder.string(), problem));
    config_notes(*reader, config);
    if (data && !reader->extra().is_null()) data_notes(*reader, config, *data, fact(*reader, "samples"));
    note_mismatch(*reader, fit_of(*reader, model_options(config)), config.checkpoint.strict);
    return;
  }
  change_notes(changes_from_hugging_face(source / "config.json", config), source, "config.json");
  StateDict state;  // without pieces: nothing is read
  for (auto& [fqn, shape] : model_tensors(model_options(config))) {
    state.tensors.push_back({"model." + fqn, {}, at::kFloat, shape, {}, {}});
  }
  import_weights(Safetensors(files, source), model_options(config), state);
}

bool require_newest_fit(FileSystem& files, const std::filesystem::path& root, const Config& config) {
  CheckpointStore store(files, root);
  for (auto step : store.complete()) {
    std::string problem;
    auto reader = open_with_data(files, store.folder(step), problem);
    if (!reader || !contradiction(*reader).empty()) continue;
    require_fit(files, store.folder(step), config);
    return true;
  }
  return false;
}

}  // namespace meshard
