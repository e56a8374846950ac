#include "comm/timeline/cuda_timeline.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"

namespace meshard {

namespace {

void check_cuda(cudaError_t code, std::string_view call) {
  if (code == cudaSuccess) return;
  throw CommError(fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)));
}

/// Events that are made once and used again: a step needs thousands.
class EventPool {
 public:
  ~EventPool() {
    for (auto event : free_) cudaEventDestroy(event);
  }
  cudaEvent_t take() {
    std::lock_guard lock(mutex_);
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      check_cuda(cudaEventCreate(&event), "cudaEventCreate");
    } else {
      event = free_.back();
      free_.pop_back();
    }
    return event;
  }
  void give_back(cudaEvent_t event) {
    std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class CudaToken : public Token {
 public:
  CudaToken(std::shared_ptr<EventPool> pool, cudaStream_t stream) : pool_(std::move(pool)), event_(pool_->take()) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  // A stream that was made to wait for the event keeps what it waits for: the next record moves the event, not the
  // wait.
  ~CudaToken() override { pool_->give_back(event_); }

  bool done() const override {
    auto code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    check_cuda(code, "cudaEventQuery");
    return true;
  }
  double seconds_since(const Token& start) const override {
    float milliseconds = 0.0f;
    check_cuda(cudaEventElapsedTime(&milliseconds, static_cast<const CudaToken&>(start).event_, event_),
               "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }
  void hold_back(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

class CudaTimeline : public Timeline {
 public:
  explicit CudaTimeline(c10::DeviceIndex index) : index_(index) {
    for (int lane = 1; lane < kLaneCount; ++lane) {
      streams_.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, index_));
    }
  }

  at::Device device() const override { return at::Device(at::kCUDA, index_); }
  void enter_thread() override { check_cuda(cudaSetDevice(index_), "cudaSetDevice"); }

 protected:
  TokenPtr do_mark(Lane lane) override {
    c10::cuda::CUDAGuard guard(index_);
    return std::make_shared<CudaToken>(events_, stream_of(lane));
  }

  TokenPtr do_enqueue(Lane lane, const Operation&, const Body& body) override {
    auto stream = stream_of(lane);
    // What ATen does in the body goes onto the lane, too.
    c10::cuda::CUDAStreamGuard guard(stream);
    body(stream.stream());
    return std::make_shared<CudaToken>(events_, stream);
  }

  void do_wait(Lane lane, Token& token) override {
    c10::cuda::CUDAGuard guard(index_);
    static_cast<CudaToken&>(token).hold_back(stream_of(lane));
  }

  void do_host_wait(Token& token) override {
    while (!token.done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  c10::cuda::CUDAStream stream_of(Lane lane) const {
    return lane == Lane::Compute ? c10::cuda::getCurrentCUDAStream(index_) : streams_[static_cast<int>(lane) - 1];
  }

  c10::DeviceIndex index_;
  std::vector<c10::cuda::CUDAStream> streams_;
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
};

}  // namespace

std::unique_ptr<Timeline> make_cuda_timeline(int index) {
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  return std::make_unique<CudaTimeline>(static_cast<c10::DeviceIndex>(index));
}

std::vector<std::string> cuda_devices() {
  int count = 0;
  // No driver or no device is an answer, not an error.
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<std::string> devices;
  for (int index = 0; index < count; ++index) {
    char bus[32] = "";
    check_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, index), "cudaDeviceGetPCIBusId");
    devices.emplace_back(bus);
  }
  return devices;
}

std::string cuda_version() {
  return fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
}

}  // namespace meshard
