#pragma once
// Scratch memory that is kept: fresh pages cost more than what is done in them. A steady state allocates nothing.

#include <cstddef>
#include <memory>
#include <vector>

namespace meshard {

class ScratchPool : public std::enable_shared_from_this<ScratchPool> {
 public:
  /// A block on loan; its destruction gives it back. Keeps the pool alive.
  class Lease {
   public:
    Lease() = default;
    Lease(std::shared_ptr<ScratchPool> pool, std::vector<char> block)
        : pool_(std::move(pool)), block_(std::move(block)) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (pool_) pool_->blocks_.push_back(std::move(block_));
    }
    char* data() { return block_.data(); }

   private:
    std::shared_ptr<ScratchPool> pool_;
    std::vector<char> block_;
  };

  /// Local. At least `bytes` bytes of undefined content, aligned for every dtype.
  Lease take(std::size_t bytes) {
    std::vector<char> block;
    if (!blocks_.empty()) {
      block = std::move(blocks_.back());
      blocks_.pop_back();
    }
    if (block.size() < bytes) block = std::vector<char>(bytes);
    return Lease(shared_from_this(), std::move(block));
  }

 private:
  std::vector<std::vector<char>> blocks_;
};

}  // namespace meshard
