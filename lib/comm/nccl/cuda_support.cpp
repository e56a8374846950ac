#include "comm/nccl/cuda_support.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

void check_cuda(cudaError_t code, std::string_view call) {
  if (code == cudaSuccess) return;
  throw CommError(fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)));
}

CudaEvent::CudaEvent() {
  check_cuda(cudaEventCreate(&event_), "cudaEventCreate");
}

CudaEvent::~CudaEvent() {
  cudaEventDestroy(event_);
}

void CudaEvent::record(cudaStream_t stream) {
  check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
}

void CudaEvent::hold_back(cudaStream_t stream) const {
  check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
}

bool CudaEvent::done() const {
  auto code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) return false;
  check_cuda(code, "cudaEventQuery");
  return true;
}

double CudaEvent::seconds_since(const CudaEvent& start) const {
  float milliseconds = 0.0f;
  check_cuda(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

}  // namespace meshard
