#include "sharding/unit.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshard {

Unit::Unit(std::string name, std::vector<Module*> modules, Keep keep, Groups groups)
    : name_(std::move(name)), modules_(std::move(modules)), keep_(keep), groups_(std::move(groups)) {
  has_values_ = std::ranges::none_of(groups_, [](auto& group) { return group->from_meta(); });
}

void Unit::start_gather() {
  for (auto& group : groups_) group->start_gather();
}

void Unit::finish_gather() {
  for (auto& group : groups_) group->finish_gather();
}

void Unit::release() {
  for (auto& group : groups_) group->release();
}

void Unit::check_can_run() const {
  if (!has_values_) throw LogicError(fmt::format("parameters of unit {} were never initialised", name_));
  if (state_ == State::Forward) throw LogicError(fmt::format("unit {} runs within itself", name_));
}

void Unit::begin_backward() {
  if (state_ == State::Forward) {
    throw LogicError(fmt::format("backward of unit {} began within its forward", name_));
  }
  for (auto& group : groups_) group->open_sinks();
  state_ = State::Backward;
}

void Unit::check_in_backward() const {
  if (state_ == State::Backward) return;
  throw LogicError(fmt::format("backward of unit {} ended without having begun", name_));
}

void Unit::end_backward() {
  for (auto& group : groups_) group->collect_gradients();
  release();
  state_ = State::Resting;
}

void Unit::start_reduce() {
  for (auto& group : groups_) group->start_reduce();
}

void Unit::finish_reduce() {
  for (auto& group : groups_) group->finish_reduce();
}

bool Unit::is_reducing() const {
  return std::ranges::any_of(groups_, [](auto& group) { return group->is_reducing(); });
}

void Unit::start_finalize() {
  for (auto& group : groups_) group->start_finalize();
}

void Unit::continue_finalize() {
  for (auto& group : groups_) group->continue_finalize();
}

void Unit::finish_finalize() {
  for (auto& group : groups_) group->finish_finalize();
}

bool Unit::copies_to_finalize() const {
  return std::ranges::any_of(groups_, [](auto& group) { return group->copies_to_finalize(); });
}

void Unit::refresh() {
  for (auto& group : groups_) group->refresh();
  has_values_ = true;
}

void Unit::zero_grad() {
  for (auto& group : groups_) group->zero_grad();
}

}  // namespace meshard
