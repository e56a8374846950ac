#pragma once
// The catalogue of historical faults that a run can be given on purpose (regression.fault). DESIGN.md section 10.

#include <string_view>

namespace meshard {

enum class Fault {
  None,
  ClobberRealBuffers,       ///< Megatron-LM #4155: materialising a model re-allocates its real tensors too
  BiasCastToParamDtype,     ///< Megatron-LM #1482: casting a model casts the expert bias
  CountsInBf16,             ///< Megatron-LM #7081: counters and their sum in bf16
  UpdatePerMicrobatch,      ///< torchtitan #1304: the bias moves once per microbatch
  NoOuterReduce,            ///< counts summed over dp_shard only
  CountInEval,              ///< torchtitan #4148: evaluation is counted
  DoubleCountRecompute,     ///< torchtitan #1593: recomputation counts again
  WeightsFromBiasedScores,  ///< the bias enters the combine weights
  ExpertGradUnscaled,       ///< Megatron-LM #5956, pytorch #160285: expert gradients not divided by ep
  CountsLostOnResume,       ///< Megatron-LM: counts zeroed in mid-accumulation
};

/// Local. The fault of a config's word ("clobber_real_buffers", "none"). ArgumentError for another word.
Fault fault_of(std::string_view word);

}  // namespace meshard
