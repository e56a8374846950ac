#pragma once
// Activation recomputation (Chen et al. 2016), reentrant: forward keeps a body's input and nothing of its inside;
// backward runs the body again and back-propagates through that.

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshard {

/// Local (a nested unit's hooks run, and may communicate, in both runs). body(input), its activations recomputed in
/// backward. Gradients are bitwise those without recomputation: the body must compute the same both times, and must not
/// count, draw or log the second time (in_recomputation()).
///
/// `body` is called again during backward and must stay valid until then. Leaf gradients inside it arrive in a nested
/// backward, so a leaf's hooks fire once, there. A module's own hooks belong outside: Module::operator() puts them
/// there. Without gradient mode it is body(input).
at::Tensor recompute(const at::Tensor& input, std::function<at::Tensor(const at::Tensor&)> body);

/// Local, of the calling thread. Whether a body is being run for the second time.
bool in_recomputation();

/// Local, of the calling thread. make(), but computed only once per recompute(): a body's second run gets the tensors
/// of its first, call by call in the same order. For choices that must not be made anew. Outside recompute(): make().
at::Tensor computed_once(const std::function<at::Tensor()>& make);

}  // namespace meshard
