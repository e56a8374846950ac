#pragma once
// How a rank waits for MPI. One engine per World: all waits of a rank go through it.
//
// An operation is a small state machine of nonblocking MPI calls. Whoever waits for one operation drives all of them,
// because a peer may wait for them in another order and need the later messages of this rank.
//
// A waiting rank tests briefly at full speed, then offers its core to others, then sleeps in growing steps: with more
// ranks than cores it must not take the core that a computing rank needs.

#include <vector>

namespace meshard {

/// One collective of this rank. Its buffers live as long as it does.
class MpiOperation {
 public:
  virtual ~MpiOperation() = default;
  /// Local. Goes on as far as it gets without blocking. True once complete; not called again then. Throws CommError.
  virtual bool step() = 0;
};

class MpiEngine {
 public:
  MpiEngine();

  /// Local. Drives all operations until `operation`, one of them, is complete. Throws what a step throws.
  void finish(MpiOperation& operation);

  void add(MpiOperation& operation) { active_.push_back(&operation); }
  void remove(MpiOperation& operation) { std::erase(active_, &operation); }
  bool active(const MpiOperation& operation) const;

 private:
  std::vector<MpiOperation*> active_;  ///< in order of issue
};

}  // namespace meshard
