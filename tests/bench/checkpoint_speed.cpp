// What saving and loading costs, beside a plain write and a plain copy of the same bytes, each from barrier to barrier.
// Prints one line of JSON: bytes of all ranks, medians in seconds. Usage: checkpoint_speed CONFIG FOLDER REPEATS

#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <fstream>
#include <map>

#include "base/error.h"
#include "comm/world/world.h"
#include "config/config.h"
#include "dcp/metadata.h"
#include "train/initialise.h"
#include "train/options.h"
#include "train/resume.h"
#include "train/sharded_model.h"
#include "train/training_state.h"

using namespace meshard;
namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Peak resident memory since the last reset, in bytes.
std::int64_t peak_memory(bool reset) {
  if (reset) std::ofstream("/proc/self/clear_refs") << "5";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  throw IoError("/proc/self/status has no VmHWM");
}

void plain_write(const fs::path& path, std::int64_t bytes) {
  constexpr std::int64_t kBlock = 4 << 20;
  static const std::vector<char> block(kBlock, 'x');
  int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  for (; bytes > 0; bytes -= kBlock) {
    auto count = static_cast<std::size_t>(std::min(bytes, kBlock));
    if (::write(file, block.data(), count) != static_cast<ssize_t>(count))
      throw IoError("cannot write " + path.string());
  }
  if (::fsync(file) != 0) throw IoError("cannot sync " + path.string());
  ::close(file);
}

void drop_cache(const fs::path& folder) {
  for (auto& entry : fs::directory_iterator(folder)) {
    int file = ::open(entry.path().c_str(), O_RDONLY);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

class CheckpointBench {
 public:
  CheckpointBench(World& world, const Config& config, fs::path folder)
      : world_(world),
        config_(config),
        folder_(std::move(folder)),
        mesh_(world, mesh_shape(config, world.size())),
        sharded_(shard_model(config, mesh_)),
        optimizer_(make_optimizer(config)),
        parts_{config_, *sharded_.runtime, *optimizer_} {
    initialise_sharded(*sharded_.runtime, config.run.seed);
    optimizer_->allocate(sharded_.runtime->weight_shards());
    auto state = state_dict();
    for (auto& tensor : state.tensors) {
      for (auto& piece : tensor.pieces) {
        reference_.push_back(piece.values.clone());
        own_bytes_ += static_cast<std::int64_t>(piece.values.nbytes());
      }
    }
  }

  void round(int number) {
    auto at = folder_ / fmt::format("step-{:08}", number);
    prime();
    peak_memory(/*reset=*/true);
    auto before = peak_memory(false);
    timed("save", [&] {
      Saver saver(world_, posix_file_system(), /*async=*/false);
      saver.save(at, state_dict(), {{"step", 0}, {"samples", 0}, {"ranks", world_.size()}});
    });
    extra_memory_ = std::max(extra_memory_, peak_memory(false) - before);
    load("load_cold", at, /*cold=*/true);
    load("load_warm", at, /*cold=*/false);
    prime();
    {
      Saver saver(world_, posix_file_system(), /*async=*/true);
      auto later = folder_ / fmt::format("step-{:08}", 1000 + number);
      timed("stall", [&] { saver.save(later, state_dict(), {}); });
      saver.finish();
      if (world_.rank() == 0) fs::remove_all(later);
    }
    timed("copy", [&] {
      std::vector<at::Tensor> copies;
      for (auto& tensor : reference_) copies.push_back(tensor.clone());
    });
    prime();
    auto scratch = folder_ / fmt::format("plain-{}", world_.rank());
    timed("plain_write", [&] { plain_write(scratch, own_bytes_); });
    fs::remove(scratch);
    if (world_.rank() == 0) fs::remove_all(at);
    world_.control().barrier();
  }

  void index(int chunks) {
    CheckpointMetadata metadata;
    for (int tensor = 0; tensor < chunks / 100; ++tensor) {
      auto& entry = metadata.tensors[fmt::format("model.model.layers.{}.mlp.experts.gate_up_proj", tensor)];
      entry.shape = {6400, 1024};
      for (int part = 0; part < 100; ++part) {
        ItemPlace place{fmt::format("__{}_0.distcp", part), tensor * 300'000LL, 262'900};
        entry.chunks.push_back({{{part * 64, 0}, {64, 1024}}, std::move(place)});
      }
    }
    timed("index", [&] {
      auto pickled = encode_metadata(metadata, "bench", "bench");
      auto again = decode_metadata(std::as_bytes(std::span(pickled)), "bench");
      if (again.tensors.size() != metadata.tensors.size()) throw LogicError("the index lost tensors");
    });
  }

  std::string json() {
    auto bytes = at::full({1}, static_cast<double>(own_bytes_), at::kDouble);
    world_.control().all_reduce(bytes, ReduceOp::Sum).wait();
    auto text = fmt::format("{{\"bytes\": {:.0f}, \"extra_memory\": {}", bytes.item<double>(), extra_memory_);
    for (auto& [name, all] : seconds_) {
      std::ranges::sort(all);
      text += fmt::format(", \"{}\": {:.4f}", name, all[all.size() / 2]);
    }
    return text + "}";
  }

 private:
  StateDict state_dict() { return training_state(*sharded_.runtime, *optimizer_, config_, 1e-3); }

  template <class Work>
  void timed(const char* name, const Work& work) {
    world_.control().barrier();
    auto begin = Clock::now();
    work();
    world_.control().barrier();
    seconds_[name].push_back(seconds_since(begin));
  }

  // Pages of the cache that were never used before cost several times what reused ones do (peer/bench.py, prime).
  void prime() {
    auto scratch = folder_ / "prime";
    if (world_.rank() == 0) {
      plain_write(scratch, own_bytes_ * world_.size());
      fs::remove(scratch);
    }
    world_.control().barrier();
  }

  void load(const char* name, const fs::path& at, bool cold) {
    if (cold && world_.rank() == 0) drop_cache(at);
    for (auto& tensor : state_dict().tensors) {
      for (auto& piece : tensor.pieces) piece.values.zero_();
    }
    timed(name, [&] { resume_from(world_, posix_file_system(), at, parts_); });
    auto reference = reference_.begin();
    for (auto& tensor : state_dict().tensors) {
      for (auto& piece : tensor.pieces) {
        if (!at::equal(piece.values, *reference++)) throw LogicError(tensor.key + " was not loaded as it was saved");
      }
    }
  }

  World& world_;
  Config config_;
  fs::path folder_;
  Mesh mesh_;
  ShardedModel sharded_;
  std::unique_ptr<Optimizer> optimizer_;
  SavedParts parts_;
  std::vector<at::Tensor> reference_;
  std::int64_t own_bytes_ = 0, extra_memory_ = 0;
  std::map<std::string, std::vector<double>> seconds_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return kExitUsage;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as app/main.cpp does
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  World world;
  try {
    CheckpointBench bench(world, load_config(argv[1], {}, world.size()), argv[2]);
    for (int i = 0; i < std::stoi(argv[3]); ++i) {
      bench.round(i);
      bench.index(100'000);
    }
    auto json = bench.json();
    if (world.rank() == 0) fmt::print("{}\n", json);
  } catch (const std::exception& error) {
    world.abandon(error.what(), kExitFailure);
  }
}
