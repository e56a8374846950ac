#pragma once
// Weights of a Hugging Face folder into a model of any sharding.

#include "checkpoint/state_dict.h"
#include "hf/safetensors.h"
#include "model/options.h"

namespace meshard {

/// Local: each rank reads what it holds; whoever calls agrees on errors. Fills every piece of the "model." tensors of
/// `into`, a state of `model` (checkpoint/sharded_state.h), by name (hf/names.h), reading only the boxes that overlap.
/// Pieces may lie on a device. Values convert as read_box() says. Returns what a user should know, the same on every
/// rank: what was converted, that an expert bias was absent and keeps its declared value, and how many tensors of
/// multi-token-prediction layers were left out.
///
/// Strict: throws IoError with all that is missing, unexpected or of another shape (up to 20 of each), before anything
/// is read. Not unexpected: rotary_emb.inv_freq, shared experts of width 0, a tied head that equals the embedding, an
/// expert bias of zeros where the model's is off, and the num_nextn_predict_layers layers after the num_hidden_layers
/// of the folder's config.json.
std::vector<std::string> import_weights(const Safetensors& from, const ModelOptions& model, const StateDict& into);

}  // namespace meshard
