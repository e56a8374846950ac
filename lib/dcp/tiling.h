#pragma once
// Whether the chunks of a tensor make up the tensor. Pure arithmetic.

#include <span>
#include <string>

#include "base/box.h"

namespace meshard {

/// Local. Empty if the boxes cover a tensor of this shape exactly once; else what is wrong: a box outside, two that
/// overlap, or the first place, in order, that none covers or more than one. Boxes without elements do not count. Time
/// O(n d), in n boxes of d dimensions, and O(n d (log n + d)) if something is wrong, whatever the boxes are. Of at most
/// 64 dimensions, boxes that tile are never refused, others pass with a probability below 2^-54, a new one each time.
std::string tiling_problem(const Shape& shape, std::span<const Box> boxes);

}  // namespace meshard
