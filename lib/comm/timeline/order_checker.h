#pragma once
// Whether what runs at the same time keeps its hands off each other's memory: a happens-before checker. Each lane has
// a vector clock; every operation says which bytes it reads and writes. Two accesses to a byte, one of them a write, of
// which neither is known to come after the other, are an error, whether or not it went well this time.
// comm/DESIGN.md section 10.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/timeline/lane.h"

namespace meshard {

/// [begin, end) in memory.
struct ByteRange {
  const char* begin = nullptr;
  const char* end = nullptr;
};

/// Local. The bytes from the first to the last element.
ByteRange range_of(const at::Tensor& tensor);

/// What is put on a lane, and which bytes it touches there.
struct Operation {
  std::string name;
  std::string unit;  ///< who asks; may be empty
  std::string axis;  ///< of a collective
  std::vector<ByteRange> reads, writes;
  std::vector<at::Tensor> tensors;  ///< held until it is over
};

/// The lane of the caller's own tensor operations.
inline constexpr auto kComputeLane = lane_name(Lane::Compute);

class OrderChecker {
 public:
  /// For each lane, by number, how many of its operations are known to come before.
  using Clock = std::vector<std::uint64_t>;

  OrderChecker() = default;
  ~OrderChecker();
  OrderChecker(const OrderChecker&) = delete;
  OrderChecker& operator=(const OrderChecker&) = delete;

  /// Local. The one that looks at this process; null: none does.
  static OrderChecker* active();
  /// Local. From now on it is this one, until it is destroyed.
  void activate();

  /// Local, any thread, as all below. The point that the lane has come to. Lanes come to be when they are named.
  Clock point(std::string_view lane);
  /// Local. What the lane does from now on comes after that point.
  void join(std::string_view lane, const Clock& clock);
  /// Local. What any lane that there is does from now on.
  void join_all(const Clock& clock);

  /// Local. The lane's next operation. What it finds is kept for raise(): it is called where nothing may be thrown.
  void access(std::string_view lane, const Operation& operation);
  /// Local. The memory is another's from now on: what was done to it no longer matters. First an access that writes, as
  /// whoever gets it will, named `how`.
  void retire(std::string_view lane, std::string_view how, ByteRange range);

  /// A lane of its own for an operation that nothing else is ordered by. Lanes that are given back are used again.
  std::string borrow_lane();
  void give_back_lane(const std::string& lane);

  /// Local. Throws LogicError with the first pair that was found, and how many more there were, now and ever after.
  void raise();
  /// Local. What raise() throws; empty: nothing. Forgets it.
  std::string take_found();

 private:
  struct Access {
    int lane = -1;  ///< none
    std::uint64_t number = 0;
    int name = 0;
  };
  struct Cell {
    const char* end;
    Access write;
    std::vector<Access> reads;  ///< the last of each lane since the write
  };
  using Cells = std::map<const char*, Cell>;

  int lane_of(std::string_view name);
  int name_of(std::string_view lane, const Operation& operation);
  Clock& clock_of(int lane);
  bool before(const Access& earlier, int lane);
  void split(const char* at);
  void touch(ByteRange range, const Access& access, bool write);
  std::string found_text() const;
  void check(const Access& earlier, const Access& later, const char* earlier_did, const char* later_does);

  std::mutex mutex_;
  std::map<std::string, int, std::less<>> lanes_;
  std::vector<Clock> clocks_;
  std::map<std::string, int, std::less<>> name_numbers_;
  std::vector<std::string> names_;
  Cells cells_;
  std::vector<std::string> free_lanes_;
  int borrowed_ = 0;
  std::string first_;
  std::int64_t found_ = 0;
};

/// Local. The compute lane writes the tensor, where something other than an operator of ATen does or allows it.
void note_write(std::string_view how, const at::Tensor& tensor);

}  // namespace meshard
