#pragma once
// CUDA's handles as owners, and its status codes as CommError.

#include <cuda_runtime_api.h>

#include <string_view>

namespace meshard {

/// Local. Throws CommError "cudaEventRecord: <CUDA's text>" unless `code` is cudaSuccess.
void check_cuda(cudaError_t code, std::string_view call);

/// An event of the current device.
class CudaEvent {
 public:
  CudaEvent();
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  /// Local. Marks the point that `stream` has come to.
  void record(cudaStream_t stream);
  /// Local. What is put on `stream` from now on waits for that point.
  void hold_back(cudaStream_t stream) const;
  /// Local. Any thread. The device has passed that point. Throws CommError if the device has failed.
  bool done() const;
  /// Local. Seconds on the device between two events that are done.
  double seconds_since(const CudaEvent& start) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace meshard
