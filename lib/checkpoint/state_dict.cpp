#include "checkpoint/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace meshard {

namespace {

std::int64_t bytes_of(const StateDict& state, const WrittenPiece& piece) {
  auto& values = state.tensors[piece.tensor].pieces[piece.piece].values;
  return values.numel() * values.element_size();
}

// Of pieces that all of `ranks` hold, those that fall to `rank`: each, by falling size, to whoever has least so far.
void take_share(const StateDict& state, std::vector<WrittenPiece> pieces, const std::vector<int>& ranks, int rank,
                std::vector<WrittenPiece>& mine) {
  std::ranges::stable_sort(pieces, std::greater{}, [&](auto& piece) { return bytes_of(state, piece); });
  std::vector<std::int64_t> loads(ranks.size(), 0);
  for (auto& piece : pieces) {
    auto least = std::ranges::min_element(loads) - loads.begin();
    loads[least] += bytes_of(state, piece);
    if (ranks[least] == rank) mine.push_back(piece);
  }
}

}  // namespace

std::string flat_key(const std::vector<PathElement>& path) {
  std::string key;
  for (auto& element : path) {
    if (!key.empty()) key += ".";
    key += std::holds_alternative<std::string>(element) ? std::get<std::string>(element)
                                                        : std::to_string(std::get<std::int64_t>(element));
  }
  return key;
}

at::Tensor part_of(at::Tensor values, const Box& box) {
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    values = values.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
  }
  return values;
}

StateTensor replicated_tensor(std::vector<PathElement> path, const at::Tensor& values, int world_size) {
  StateTensor tensor{flat_key(path), std::move(path), values.scalar_type(), values.sizes().vec(), {}, {}};
  tensor.pieces.push_back({whole(tensor.shape), values});
  tensor.replicas.resize(world_size);
  std::iota(tensor.replicas.begin(), tensor.replicas.end(), 0);
  return tensor;
}

StateTensor sharded_tensor(std::vector<PathElement> path, const at::Tensor& values, const TensorPart& part, int rank) {
  StateTensor tensor{flat_key(path), std::move(path), values.scalar_type(), part.whole_shape(), {}, {rank}};
  if (part.numel() > 0) tensor.pieces.push_back({part.box(), values});
  return tensor;
}

std::vector<WrittenPiece> pieces_to_write(const StateDict& state, int rank) {
  std::map<std::vector<int>, std::vector<WrittenPiece>> by_replicas;
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    auto& tensor = state.tensors[i];
    for (std::size_t j = 0; j < tensor.pieces.size(); ++j) by_replicas[tensor.replicas].push_back({i, j});
  }
  std::vector<WrittenPiece> mine;
  for (auto& [ranks, pieces] : by_replicas) take_share(state, pieces, ranks, rank, mine);
  std::ranges::stable_sort(mine, std::greater{}, [&](auto& piece) { return bytes_of(state, piece); });
  return mine;
}

}  // namespace meshard
