#pragma once
// The choices of a run's routers on disk, to be forced on another run: two runs on different meshes can then be
// compared without the flips that tiny rounding differences cause. DESIGN.md section 9.
//
// One file for all ranks, addressed by MoE layer and by the position of a sample in the global order of training
// (data/sampler.h), which no mesh changes; so any mesh can replay any other's. Choices of evaluation are not kept.
//
//   bytes 0..4095  text: "meshard routing 1\n", then "layers L\nexperts E\ntop_k K\nseq_len S\nglobal_batch_size B\n",
//                  zeros
//   from 4096      little-endian uint16 [position][layer][token of the sample][k]: expert + 1; 0 = never recorded

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace meshard {

struct RoutingShape {
  std::int64_t layers = 0;  ///< MoE layers
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t seq_len = 0;
  std::int64_t global_batch_size = 0;  ///< to say the step of a position; a replay may have another
  bool operator==(const RoutingShape&) const = default;
};

/// Where a router shows its choice and takes the one to use.
class RoutingTap {
 public:
  virtual ~RoutingTap() = default;
  /// Local. The next forward's samples are those at positions [first, first + samples) of the global order.
  void begin(std::int64_t first, std::int64_t samples);
  /// Local. `ids` [samples * seq_len, K] int64 on the host: the choice of MoE layer `layer`; the result is to be used.
  /// Throws IoError naming the file, and what to do.
  virtual at::Tensor pass(int layer, at::Tensor ids) = 0;

 protected:
  std::int64_t first_ = 0, samples_ = 0;
};

/// Local. Writes every choice. Rank 0 must have made the file with create_routing_file() before any rank opens it.
std::unique_ptr<RoutingTap> record_routing(const std::filesystem::path& file, const RoutingShape& shape);
/// Local. Returns the recorded choices. ConfigError if the file is not one, or of another shape (each difference
/// named); IoError in pass() for a position that was not recorded (its step named) or an id out of range.
std::unique_ptr<RoutingTap> replay_routing(const std::filesystem::path& file, const RoutingShape& shape);

/// Local. Positions up to the end of the file: a run that trains on more samples cannot be replayed from it. IoError if
/// there is no such file.
std::int64_t recorded_positions(const std::filesystem::path& file, const RoutingShape& shape);

/// Local. Why create_routing_file() must not be called, or empty: no folder, something else of this name that is not a
/// routing file (a user's file must not be lost to a slip), too many experts.
std::string recording_problem(const std::filesystem::path& file, const RoutingShape& shape);

/// Local, for rank 0. A new file with its header; an old routing file of this name is replaced. IoError if it cannot be
/// written; ArgumentError for more than 65,534 experts.
void create_routing_file(const std::filesystem::path& file, const RoutingShape& shape);

}  // namespace meshard
