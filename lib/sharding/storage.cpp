#include "sharding/storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>
#include <c10/core/StorageImpl.h>

#include <bit>

#include "comm/timeline/order_checker.h"

namespace meshard {

namespace {
void replace_memory(const at::Tensor& tensor, at::DataPtr memory, std::size_t bytes) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(bytes);
}
}  // namespace

at::Tensor tensor_without_memory(std::int64_t numel, const at::TensorOptions& options) {
  auto tensor = at::empty({0}, options);
  auto bytes = static_cast<std::size_t>(numel) * tensor.element_size();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, tensor.device()), nullptr, false);
  tensor.set_(storage, 0, {numel}, {1});
  return tensor;
}

void attach_memory(const at::Tensor& tensor, const at::Tensor& block) {
  auto keep_alive = new at::Tensor(block);
  at::DataPtr memory(
      block.data_ptr(), keep_alive, [](void* context) { delete static_cast<at::Tensor*>(context); }, block.device());
  replace_memory(tensor, std::move(memory), block.nbytes());
}

void detach_memory(const at::Tensor& tensor) {
  replace_memory(tensor, at::DataPtr(nullptr, tensor.device()), 0);
}

std::int64_t BlockSizes::take(std::int64_t bytes) {
  auto found = free_.lower_bound(bytes);
  if (found != free_.end() && *found < 2 * std::max<std::int64_t>(bytes, 1)) {
    auto block = *found;
    free_.erase(found);
    return block;
  }
  auto step = std::max<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes)) / 64, 1);
  auto block = (bytes + step - 1) / step * step;
  allocated_ += block;
  return block;
}

at::Tensor BufferPool::acquire(std::int64_t bytes) {
  auto size = sizes_.take(bytes);
  auto found = free_.find(size);
  if (found == free_.end()) return at::empty({size}, at::TensorOptions(at::kByte).device(device_));
  auto block = std::move(free_.extract(found).mapped());
  note_write("a block of the pool that is taken", block);
  return block;
}

void BufferPool::give_back(at::Tensor block) {
  note_write("a block of the pool that is given back", block);
  auto size = block.numel();
  sizes_.give_back(size);
  free_.emplace(size, std::move(block));
}

}  // namespace meshard
