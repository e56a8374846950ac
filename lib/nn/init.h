#pragma once
// First values of parameters, independent of how they are sharded: element i of a parameter is a pure function of
// (seed, hash of its FQN, i), so every rank fills what it owns and any mesh gives bitwise the same model.
// sharding/DESIGN.md section 7.
//
// Philox4x32-10 (Salmon et al. 2011): key = the seed; counter words 0-1 = i / 4, lane = i % 4, words 2-3 = the FQN's
// hash. Normals: u = (x + 0.5) * 2^-32, Box-Muller in double on lanes (0,1) and (2,3): even lane cosine, odd lane sine.
// On the host, one scalar path, without fused multiply-add: log and cos differ between libm and CUDA, and a vector body
// from its scalar tail.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "module/module.h"

namespace meshard {

/// Local. One block of the generator; words are least significant first.
std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// Local. Fills `rows_flat`, a 1-D contiguous host tensor (fp32, or bf16 = the fp32 value rounded) that holds elements
/// [begin, begin + numel) of the parameter. `fqn_hash` = hash_text of its first FQN. Filling a part gives the same bits
/// as that part of the whole. ShapeError for another kind of tensor.
void fill_initial(at::Tensor rows_flat, const Init& init, std::uint64_t seed, std::uint64_t fqn_hash,
                  std::int64_t begin);

}  // namespace meshard
