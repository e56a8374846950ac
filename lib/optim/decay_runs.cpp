#include "optim/decay_runs.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

namespace meshard {

namespace {
constexpr std::int64_t kVectorBytes = 64;  // the widest of any CPU

struct Piece {
  std::int64_t begin = 0;
  std::int64_t size = 0;

  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, size); }
};

struct Pieces {
  std::vector<Piece> whole;
  std::vector<Piece> ends;
};

Pieces pieces_of(const FlatShard& shard, bool decay) {
  std::int64_t vector = shard.weight.is_cpu() ? kVectorBytes / shard.weight.element_size() : 1;
  Pieces pieces;
  for (auto& run : shard.runs) {
    if (run.decay != decay) continue;
    std::int64_t end = (run.end - run.begin) % vector;
    std::int64_t whole = run.end - run.begin - end;
    if (whole > 0) pieces.whole.push_back({run.begin, whole});
    if (end > 0) pieces.ends.push_back({run.end - end, end});
  }
  return pieces;
}

/// The ends one after another, padded with zeros to whole vectors.
at::Tensor gather_ends(const std::vector<Piece>& ends, const at::Tensor& flat) {
  std::vector<at::Tensor> parts;
  std::int64_t size = 0;
  for (auto& end : ends) {
    parts.push_back(end.of(flat));
    size += end.size;
  }
  std::int64_t vector = kVectorBytes / flat.element_size();
  parts.push_back(at::zeros({(vector - size % vector) % vector}, flat.options()));
  return at::cat(parts);
}

void scatter_ends(const at::Tensor& gathered, const std::vector<Piece>& ends, const at::Tensor& flat) {
  std::int64_t from = 0;
  for (auto& end : ends) {
    end.of(flat).copy_(gathered.narrow(0, from, end.size));
    from += end.size;
  }
}
}  // namespace

void update_runs(const FlatShard& shard, const std::vector<at::Tensor>& tensors,
                 const std::function<void(bool decay, const Columns& columns)>& update) {
  for (bool decay : {true, false}) {
    auto pieces = pieces_of(shard, decay);
    if (pieces.whole.empty() && pieces.ends.empty()) continue;
    Columns columns(tensors.size());
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      for (auto& piece : pieces.whole) columns[k].push_back(piece.of(tensors[k]));
      if (!pieces.ends.empty()) columns[k].push_back(gather_ends(pieces.ends, tensors[k]));
    }
    update(decay, columns);
    if (pieces.ends.empty()) continue;
    for (std::size_t k = 1; k < tensors.size(); ++k) scatter_ends(columns[k].back(), pieces.ends, tensors[k]);
  }
}

}  // namespace meshard
