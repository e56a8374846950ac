#include "train/data_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "train/resume.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;
using Files = std::vector<DataFile>;

constexpr std::size_t kTold = 20;

bool same_content(const DataFile& a, const DataFile& b) {
  return a.bytes == b.bytes && a.tokens == b.tokens && a.fingerprint == b.fingerprint;
}
bool same_name(const DataFile& a, const DataFile& b) {
  return a.name == b.name;
}
bool same_file(const DataFile& a, const DataFile& b) {
  return same_name(a, b) && same_content(a, b);
}

// For each file of `before` the one of `now` that it has become: the same one, the same under another name, another one
// under the same name.
std::vector<std::optional<std::size_t>> successors(const Files& before, const Files& now) {
  std::vector<std::optional<std::size_t>> found(before.size());
  std::vector<bool> taken(now.size());
  for (auto* alike : {same_file, same_content, same_name}) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      for (std::size_t j = 0; j < now.size() && !found[i]; ++j) {
        if (taken[j] || !alike(before[i], now[j])) continue;
        found[i] = j;
        taken[j] = true;
      }
    }
  }
  return found;
}

std::string change_of(const DataFile& before, const DataFile& now) {
  if (now.bytes == before.bytes) return fmt::format("{} has other content: {} bytes, as then", now.name, now.bytes);
  return fmt::format("{} has {}: {} bytes then, {} now", now.name, now.bytes > before.bytes ? "grown" : "shrunk",
                     before.bytes, now.bytes);
}

void add_files(std::vector<std::string>& lines, const Files& before, const Files& now) {
  auto found = successors(before, now);
  std::vector<bool> old(now.size());
  std::optional<std::size_t> last;  // of those that stayed, by its place in `before`
  std::string order;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!found[i]) {
      lines.push_back(fmt::format("{} is gone: {} bytes then", before[i].name, before[i].bytes));
      continue;
    }
    auto& successor = now[*found[i]];
    old[*found[i]] = true;
    if (!same_content(before[i], successor)) lines.push_back(change_of(before[i], successor));
    if (last && *found[*last] > *found[i] && order.empty()) {
      order = fmt::format("the order of the files is another: {} came before {} then, and comes after it now",
                          before[*last].name, before[i].name);
    }
    last = i;
  }
  for (std::size_t j = 0; j < now.size(); ++j) {
    if (!old[j]) lines.push_back(fmt::format("{} is new: {} bytes", now[j].name, now[j].bytes));
  }
  if (!order.empty()) lines.push_back(order);
}

// Keys that cut or order the same files otherwise: whoever changes one knows what he does, as far as he is told.
std::vector<std::string> keys_that_cut(const Config& before, const Config& now) {
  std::vector<std::string> keys;
  if (before.train.seq_len != now.train.seq_len) keys.push_back("train.seq_len");
  if (before.data.type != now.data.type) keys.push_back("data.type");
  if (before.data.validation_fraction != now.data.validation_fraction) keys.push_back("data.validation_fraction");
  if (before.run.seed != now.run.seed) keys.push_back("run.seed");
  return keys;
}

std::string samples_text(const DataRecord& before, const DataRecord& now) {
  return fmt::format("training and held-out samples: {} and {} then, {} and {} now", before.training_samples,
                     before.held_out_samples, now.training_samples, now.held_out_samples);
}

}  // namespace

DataRecord data_record(const Corpus& corpus) {
  DataRecord data{corpus.files(), corpus.train_samples(), corpus.eval_samples()};
  for (auto& file : data.files) file.name = printable(file.name);  // JSON cannot carry every name
  return data;
}

Json to_json(const DataRecord& data) {
  auto files = Json::array();
  for (auto& file : data.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {"tokens", file.tokens},
                     {"fingerprint", fmt::format("{:016x}", file.fingerprint)}});
  }
  return {{"training_samples", data.training_samples},
          {"held_out_samples", data.held_out_samples},
          {"files", std::move(files)}};
}

std::optional<DataRecord> data_record_of(const CheckpointReader& reader) {
  if (!reader.extra().is_object() || !reader.extra().contains("data")) return {};
  auto damaged = [&](std::string_view why) {
    return IoError(fmt::format("{} is damaged: its record of the data: {}",
                               (reader.folder() / "meshard.json").string(), printable(why)));
  };
  try {
    auto& json = reader.extra()["data"];
    DataRecord data;
    data.training_samples = json.at("training_samples").get<std::int64_t>();
    data.held_out_samples = json.at("held_out_samples").get<std::int64_t>();
    for (auto& row : json.at("files")) {
      auto& entry = data.files.emplace_back(printable(row.at("name").get<std::string>()),
                                            row.at("bytes").get<std::int64_t>(), row.at("tokens").get<std::int64_t>());
      auto digits = row.at("fingerprint").get<std::string>();
      auto end = digits.data() + digits.size();
      bool sound = digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos &&
                   std::from_chars(digits.data(), end, entry.fingerprint, 16).ptr == end;
      if (!sound) throw damaged(fmt::format("the fingerprint `{:.20}`; expected 16 hex digits", digits));
    }
    bool counts = data.training_samples >= 0 && data.held_out_samples >= 0 &&
                  std::ranges::all_of(data.files, [](auto& entry) { return entry.bytes >= 0 && entry.tokens >= 0; });
    if (!counts) throw damaged("a negative count");
    return data;
  } catch (const Json::exception& error) {
    throw damaged(error.what());
  }
}

std::vector<std::string> data_differences(const DataRecord& before, const DataRecord& now) {
  std::vector<std::string> lines;
  if (!std::ranges::equal(before.files, now.files, same_content)) add_files(lines, before.files, now.files);
  bool same_number =
      before.training_samples == now.training_samples && before.held_out_samples == now.held_out_samples;
  if (!same_number) lines.push_back(samples_text(before, now));
  return lines;
}

std::string data_notes(const CheckpointReader& reader, const Config& config, const DataRecord& now,
                       std::int64_t samples_done) {
  auto folder = reader.folder().string();
  auto saved = data_record_of(reader);
  if (!saved) {
    return "the checkpoint, of an earlier version, has no record of its data: whether they are the same is not known";
  }
  auto before = std::move(*saved);
  std::string note;
  auto keys = keys_that_cut(config_of(reader), config);
  if (!keys.empty()) {
    note = fmt::format(
        "{} changed, so the samples are others, of which the run goes on with number {}, and may meet text again ({})",
        fmt::join(keys, ", "), samples_done, samples_text(before, now));
    before.training_samples = now.training_samples;
    before.held_out_samples = now.held_out_samples;
  }
  auto lines = data_differences(before, now);
  if (lines.empty()) return note;
  if (lines.size() > kTold) {
    auto more = lines.size() - kTold;
    lines.resize(kTold);
    lines.push_back(fmt::format("and {} more", more));
  }
  auto text = fmt::format("the data are not those of {}:\n  {}", folder, fmt::join(lines, "\n  "));
  switch (config.data.on_change) {
    case DataConfig::OnChange::Stop:
      throw ConfigError(fmt::format(
          "{}\nSample {}, where the run would go on, is another one in these: it would meet some text twice or train "
          "on what was held out. Bring the files back; or go on all the same with --set data.on_change=warn; or begin "
          "a new run on these files with --init-from {}",
          text, samples_done, folder));
    case DataConfig::OnChange::Warn:
      return note + (note.empty() ? "" : "\n") + text + "\n  the run goes on all the same (data.on_change: warn)";
  }
  throw LogicError("unknown data.on_change");
}

}  // namespace meshard
