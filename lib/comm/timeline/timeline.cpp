#include "comm/timeline/timeline.h"

namespace meshard {

TokenPtr Timeline::mark(Lane lane) {
  auto token = do_mark(lane);
  if (auto* checker = OrderChecker::active()) token->clock_ = checker->point(lane_name(lane));
  return token;
}

TokenPtr Timeline::enqueue(Lane lane, const Operation& operation, const Body& body) {
  auto token = do_enqueue(lane, operation, body);
  token->held_ = operation.tensors;
  token->before_ = std::exchange(waited_[static_cast<int>(lane)], {});
  if (auto* checker = OrderChecker::active()) {
    checker->access(lane_name(lane), operation);
    token->clock_ = checker->point(lane_name(lane));
  }
  return token;
}

void Timeline::wait(Lane lane, const TokenPtr& token) {
  do_wait(lane, *token);
  if (auto* checker = OrderChecker::active()) checker->join(lane_name(lane), token->clock_);
  if (lane == Lane::Compute) {
    let_go(*token);
  } else {
    waited_[static_cast<int>(lane)].push_back(token);
  }
}

void Timeline::host_wait(const TokenPtr& token) {
  ++host_waits_;
  do_host_wait(*token);
  // Whatever any lane is given from now on is given after it.
  if (auto* checker = OrderChecker::active()) checker->join_all(token->clock_);
  let_go(*token);
}

void Timeline::let_go(Token& token) {
  token.held_.clear();
  for (auto& each : std::exchange(token.before_, {})) let_go(*each);
}

}  // namespace meshard
