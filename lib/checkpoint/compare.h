#pragma once
// Where two checkpoints part, tensor by tensor, whatever meshes and whoever wrote them. Block by block: the memory that
// it takes does not grow with the model.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load.h"

namespace meshard {

struct CheckpointCompareOptions {
  /// Largest difference of two floating-point elements that counts as none, relative to the larger of the two or, where
  /// that is more, to the root mean square of their row (along the last dimension): what sums leave of terms that
  /// cancel has no precision of its own. Integers must be equal; NaN equals nothing.
  double rtol = 2e-5;
  bool exact = false;                     ///< elements must be equal to the bit, NaN too; rtol is not used
  std::int64_t block_elements = 4 << 20;  ///< of one tensor read at a time
};

/// One tensor that both have in one shape, and that differs.
struct TensorDifference {
  std::string key;
  std::string dtype_a, dtype_b;
  std::int64_t elements = 0, differing = 0;
  Shape first;                                        ///< index of the first element that differs
  double first_a = 0, first_b = 0;                    ///< its values
  double largest_absolute = 0, largest_relative = 0;  ///< of differing elements without NaN; relative as rtol is
  Shape absolute_at, relative_at;                     ///< empty if there is none, and for 0-d
  std::int64_t nan_a = 0, nan_b = 0;
  std::optional<std::int64_t> layer;  ///< of a key "...layers.N..."
  std::vector<std::int64_t> experts;  ///< those with a difference, for keys of experts and routers
};

/// One plain value (of the optimizer's param groups) that differs.
struct ValueDifference {
  std::string key, a, b;
};

struct CheckpointComparison {
  std::vector<std::string> only_a, only_b;  ///< keys
  std::vector<std::string> shapes;          ///< "key: [4, 4] against [4, 8]"; not compared further
  std::vector<std::string> dtypes;          ///< "key: Float against BFloat16"; values are compared
  std::vector<TensorDifference> tensors;    ///< in the order of names, numbers in them by value
  std::vector<ValueDifference> values;
  std::vector<std::string> nan_keys;  ///< tensors that have a NaN in both, in the same places; with `exact` only
  std::int64_t compared_tensors = 0, compared_elements = 0, compared_values = 0;
  bool same() const {
    return only_a.empty() && only_b.empty() && shapes.empty() && dtypes.empty() && tensors.empty() && values.empty();
  }
};

/// Local. Verifies both first, all of their data (so that it is read twice): damage is no difference. Throws IoError,
/// naming file and item, for it.
CheckpointComparison compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b,
                                         const CheckpointCompareOptions& options);

/// One pair of a comparison of two runs.
struct ComparedCheckpoints {
  std::filesystem::path a, b;
  std::string step;  ///< "step 100"; of checkpoints of two steps "step 100 against step 200"; empty: not known
  CheckpointComparison comparison;
};

/// Local. "step 100", or empty for a checkpoint that PyTorch wrote.
std::string step_text(const CheckpointReader& reader);

/// Local. For people: first where they part (of the first pair that does), then each pair in a line, then what the
/// first that differs has in one only, in another shape or dtype, and a table of the tensors and values that differ.
std::string comparison_text(const std::vector<ComparedCheckpoints>& pairs);

/// Local. Boxes of at most `most` elements that tile the shape, in row-major order; rows are cut only if one is larger.
/// None for a tensor without elements.
std::vector<Box> blocks_of(const Shape& shape, std::int64_t most);

/// Local. Where two values of item `key` differ: the innermost item, as `key[1]`, with both as Python prints them;
/// nothing if they are equal. Lists and tuples of the same items are, and numbers of the same value.
std::optional<ValueDifference> value_difference(const std::string& key, const pickle::Value& a, const pickle::Value& b,
                                                const CheckpointCompareOptions& options);

}  // namespace meshard
