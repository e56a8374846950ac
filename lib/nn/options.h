#pragma once
// What a decoder is made of: its sizes and which of the known variants each part is. Whoever makes one fills this in
// (lib/model from a config); attention, blocks and language model read it.

#include <cstdint>

namespace meshard {

/// Field names are those of Hugging Face's config.json; `recompute` is ours.
struct DecoderOptions {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t max_position_embeddings = 0;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  double partial_rotary_factor = 1.0;  ///< of each head's elements, int(head_dim * factor) are rotated
  double initializer_range = 0.02;
  bool use_qk_norm = false;
  bool attention_bias = false;         ///< on q, k and v
  bool attention_output_bias = false;  ///< on o: Llama and Qwen with attention_bias, never GLM
  bool tie_word_embeddings = false;
  bool recompute = false;  ///< keep only each block's input for backward

  /// Local. Elements of a head that rotate. ArgumentError if that is odd or 0.
  std::int64_t rotary_dim() const;
};

}  // namespace meshard
