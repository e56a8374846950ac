#pragma once
// What computation tells the checker of order: every call of an ATen operator is an access of the compute lane, and
// memory that is freed is retired. Kernels of our own that take raw pointers are not seen; what goes in and out of them
// by way of ATen is.

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

#include "comm/timeline/order_checker.h"

namespace meshard {

class OrderObserver {
 public:
  /// Local. A checker is active from now on, and hears of all threads' operators and of the frees of this thread and of
  /// those of autograd.
  OrderObserver();
  ~OrderObserver();
  OrderObserver(const OrderObserver&) = delete;
  OrderObserver& operator=(const OrderObserver&) = delete;

  OrderChecker& checker() { return checker_; }

 private:
  OrderChecker checker_;
  at::CallbackHandle handle_;
  std::unique_ptr<c10::DebugInfoGuard> memory_;
};

}  // namespace meshard
