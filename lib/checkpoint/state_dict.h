#pragma once
// What is saved or loaded, as one rank holds it: named tensors, of which it has some boxes, and plain values.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "dcp/metadata.h"
#include "dcp/pickle.h"
#include "module/tensor_part.h"

namespace meshard {

/// A box of a tensor and its values, of the box's sizes; contiguous. Shares memory with what it came from: loading
/// writes there.
struct Piece {
  Box box;
  at::Tensor values;
};

/// Local. The part of a tensor that lies in `box`; shares its memory.
at::Tensor part_of(at::Tensor values, const Box& box);

struct StateTensor {
  std::string key;                ///< flat key: "model.model.norm.weight"
  std::vector<PathElement> path;  ///< ("model", "model.norm.weight")
  at::ScalarType dtype = at::kFloat;
  Shape shape;                ///< of the whole tensor
  std::vector<Piece> pieces;  ///< none: this rank holds nothing of it
  std::vector<int> replicas;  ///< world ranks that hold exactly these pieces, ascending, this one among them
};

struct StateValue {
  std::string key;
  std::vector<PathElement> path;
  pickle::Value value;  ///< the same on every rank
};

/// Every rank lists the same keys in the same order.
struct StateDict {
  std::vector<StateTensor> tensors;
  std::vector<StateValue> values;
};

/// Local. A tensor that every rank holds whole (a buffer, a counter): `values` may be 0-d.
StateTensor replicated_tensor(std::vector<PathElement> path, const at::Tensor& values, int world_size);
/// Local. A tensor of which this rank, and nobody else, holds `part`: `values`, of the box's sizes, contiguous.
StateTensor sharded_tensor(std::vector<PathElement> path, const at::Tensor& values, const TensorPart& part, int rank);
/// Local. "model.layers.0.weight" of ("model", "layers.0.weight").
std::string flat_key(const std::vector<PathElement>& path);

/// Local. Which pieces this rank writes: of pieces that several ranks hold, each is written by one of them, chosen by a
/// greedy balance of bytes that every rank works out alike, without communication. Indices (tensor, piece) in the order
/// of writing: by size, large ones first.
struct WrittenPiece {
  std::size_t tensor;
  std::size_t piece;
};
std::vector<WrittenPiece> pieces_to_write(const StateDict& state, int rank);

}  // namespace meshard
