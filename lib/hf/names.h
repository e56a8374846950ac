#pragma once
// Our tensors and those of Hugging Face's files. config/FAMILIES.md section 6, and dcp/FORMAT.md section 4 for stacked
// experts.
//
// Ours are FQNs: the keys of a checkpoint without their first "model.". Files have the same names and shapes, but for
// the routed experts, which we stack per layer and they keep apart:
//   mlp.experts.gate_up_proj [E, 2F, H]   mlp.experts.{e}.gate_proj.weight and mlp.experts.{e}.up_proj.weight, [F, H]
//   mlp.experts.down_proj [E, H, F]       mlp.experts.{e}.down_proj.weight [H, F]
// transformers 5 reads both forms, 4 only the second one (given the first, it runs with random experts): we write the
// second and read both.

#include <string>
#include <vector>

#include "base/box.h"
#include "model/options.h"

namespace meshard {

/// A tensor of ours: FQN and whole shape.
struct ModelTensor {
  std::string fqn;
  Shape shape;
};

/// A tensor of a file, and the box of ours that it holds. Of an expert's matrix, the box has one dimension more, of
/// size 1; the elements lie in the same order.
struct FileTensor {
  std::string name;
  Shape shape;
  std::string fqn;  ///< empty: no tensor of ours, all zeros
  Box box;
};

/// Local. Every parameter and persistent buffer of the model, in its order; a head tied to the embedding under its own
/// name, too; the expert bias of every MoE layer, used or not.
std::vector<ModelTensor> model_tensors(const ModelOptions& model);

/// Local. The tensors of files that together hold `tensor`: one for each expert and projection, or the one of its name.
/// Their boxes tile it.
std::vector<FileTensor> file_tensors(const ModelTensor& tensor);

/// Local. All that an export of the model consists of. A tied head is left out; so is the bias of softmax routing,
/// which no class has. What Glm4MoeForCausalLM has and the model does not is zeros: the expert bias where it is off,
/// shared experts of width 0 ([0, H], [0, H], [H, 0]).
std::vector<FileTensor> exported_tensors(const ModelOptions& model);

/// Local. "...mlp.gate.e_score_correction_bias": fp32 in every file, whatever the rest is.
bool is_expert_bias(const std::string& fqn);

}  // namespace meshard
