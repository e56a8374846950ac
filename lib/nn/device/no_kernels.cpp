// In place of kernels.cu where CUDA is not there.
#include "nn/device/kernels.h"

namespace meshard::kernels {

const Table* linked_table() {
  return nullptr;
}

}  // namespace meshard::kernels
