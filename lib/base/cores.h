#pragma once
// The cores that this process may use.

#include <vector>

namespace meshard {

/// Local. Numbers of the cores that this process may run on, rising.
std::vector<int> allowed_cores();

/// Local. The cores of this node shared among its `ranks`, but no more than this process may run on; at least 1. What
/// run.threads: auto means.
int cores_per_rank(int ranks);

}  // namespace meshard
