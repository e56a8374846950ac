#include <cuda_runtime_api.h>

#include "nn/device/calls.h"
#include "nn/device/kernels.h"

namespace meshard::kernels {

namespace {

constexpr int kWarp = 32;
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 20;
constexpr std::size_t kMostShared = 48 << 10;  // what a block has without asking for more

// The sum over the threads of one row, in a fixed order; all of them get it.
__device__ float sum_of_lanes(float x, int lanes) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  if (lanes == kWarp) return x;
  __shared__ float warps[kBlock / kWarp];
  __syncthreads();  // the sum before this one has been read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < kBlock / kWarp; ++i) sum += warps[i];
  return sum;
}

// Threads (lane, row of the block). All lanes of a row take every step together.
template <class Body>
__global__ void __launch_bounds__(kBlock) over_rows(Body body, std::int64_t rows) {
  const int lane = threadIdx.x, lanes = blockDim.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows; row += step) {
    body.finish(row, lane, lanes, sum_of_lanes(body.partial(row, lane, lanes), lanes));
  }
}

template <class Body>
__global__ void __launch_bounds__(kBlock)
    over_groups(Body body, std::int64_t rows, std::int64_t groups, std::int64_t size, bool shared) {
  extern __shared__ float columns[];
  const int lane = threadIdx.x, lanes = blockDim.x;
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (group >= groups) return;  // whole rows of lanes: one row a block if they are more than a warp
  float* sums = shared ? columns + threadIdx.y * size : body.a.partials + group * size;
  body.clear(lane, lanes, sums);
  for (std::int64_t row = rows * group / groups; row < rows * (group + 1) / groups; ++row) {
    body.finish(row, lane, lanes, sum_of_lanes(body.partial(row, lane, lanes, sums), lanes));
  }
  if (shared) body.keep(group, lane, lanes, sums);
}

// Threads (column of 32, part of its sum).
__global__ void __launch_bounds__(kBlock)
    over_columns(const float* partials, std::int64_t rows, std::int64_t size, float* to) {
  constexpr int kParts = kBlock / kWarp;
  __shared__ float parts[kParts][kWarp];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  if (column < size) {
    parts[threadIdx.y][threadIdx.x] = column_part(partials, rows, size, column, threadIdx.y, kParts);
  }
  __syncthreads();
  if (threadIdx.y > 0 || column >= size) return;
  float sum = 0.0f;
  for (int part = 0; part < kParts; ++part) sum += parts[part][threadIdx.x];
  to[column] = sum;
}

template <class Body>
__global__ void __launch_bounds__(kBlock) over_vectors(Body body, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += step) body(i);
}

unsigned blocks_for(std::int64_t items, int a_block) {
  return static_cast<unsigned>(std::min((items + a_block - 1) / a_block, kMostBlocks));
}

const char* problem_of_launch() {
  const auto status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

struct CudaRunner {
  static int architecture() {
    int device = 0, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return 10 * major + minor;
  }

  template <class Body>
  static const char* rows(const Body& body, std::int64_t rows, int lanes, Stream stream) {
    if (rows == 0) return nullptr;
    const int side_by_side = kBlock / lanes;
    over_rows<<<blocks_for(rows, side_by_side), dim3(lanes, side_by_side), 0, stream>>>(body, rows);
    return problem_of_launch();
  }

  template <class Body>
  static const char* grouped(const Body& body, std::int64_t rows, std::int64_t groups, std::int64_t size, int lanes,
                             Stream stream) {
    if (rows == 0) return nullptr;
    const int side_by_side = kBlock / lanes;
    const auto bytes = static_cast<std::size_t>(side_by_side * size) * sizeof(float);
    const bool shared = bytes <= kMostShared - 1024;  // sum_of_lanes has some too
    over_groups<<<blocks_for(groups, side_by_side), dim3(lanes, side_by_side), shared ? bytes : 0, stream>>>(
        body, rows, groups, size, shared);
    return problem_of_launch();
  }

  static const char* columns(const float* partials, std::int64_t rows, std::int64_t size, float* to, Stream stream) {
    over_columns<<<blocks_for(size, kWarp), dim3(kWarp, kBlock / kWarp), 0, stream>>>(partials, rows, size, to);
    return problem_of_launch();
  }

  template <class Body>
  static const char* vectors(const Body& body, Stream stream) {
    const auto count = body.count();
    if (count == 0) return nullptr;
    over_vectors<<<blocks_for(count, kBlock), kBlock, 0, stream>>>(body, count);
    return problem_of_launch();
  }
};

}  // namespace

const Table* linked_table() {
  static constexpr auto table = Calls<CudaRunner>::table(/*on_host=*/false);
  return &table;
}

}  // namespace meshard::kernels
