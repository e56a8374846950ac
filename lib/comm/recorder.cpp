#include "comm/recorder.h"

#include <unistd.h>

#include <cstring>

namespace meshard {

namespace {
void mark_left(FlightRecord& ring, std::uint64_t sequence, double seconds_ago) {
  auto& entry = ring.entries[sequence % kFlightEntries];
  if (entry.sequence == sequence && entry.left == 0.0) entry.left = wall_seconds() - seconds_ago;
}
}  // namespace

Recorder::Recorder(const std::filesystem::path& folder, int rank, const std::string& host, std::uint64_t launch)
    : file_(std::make_unique<FlightRecorder>(folder, rank)) {
  ring().rank = rank;
  ring().pid = ::getpid();
  copy_text(ring().host, host);
  ring().launch = launch;
  enter_phase("start-up");
}

CallRecord Recorder::enter(std::string_view operation, const std::string& axis, std::int64_t bytes,
                           const CallInfo& info) {
  CallRecord call{.sequence = ring().sequence.load(std::memory_order_relaxed) + 1,
                  .operation = operation,
                  .axis = axis,
                  .control = info.control || axis == kControlAxis,
                  .entered = steady_seconds()};
  call.since = call.entered;
  ledger(call.control).add(operation, axis, bytes);
  // Nobody asks for the time of control traffic, and its ledger is never cleared.
  if (!call.control) ledger_.open(call.sequence, call.entered);
  auto& entry = ring().entries[call.sequence % kFlightEntries];
  entry.sequence = call.sequence;
  entry.bytes = bytes;
  entry.entered = wall_seconds();
  entry.left = 0.0;
  copy_text(entry.operation, operation);
  copy_text(entry.axis, axis);
  copy_text(entry.unit, info.unit);
  ring().sequence.store(call.sequence, std::memory_order_release);
  return call;
}

void Recorder::issued(const CallRecord& call) {
  if (!call.control) ledger_.add_exposed(call.axis, steady_seconds() - call.since);
}

void Recorder::begin_wait(CallRecord& call) {
  call.since = steady_seconds();
  ring().waiting_since = wall_seconds();
  ring().waiting.store(call.sequence, std::memory_order_release);
}

void Recorder::end_wait(CallRecord& call, bool complete) {
  ring().waiting.store(0, std::memory_order_release);
  if (!complete) return;
  issued(call);
  mark_left(ring(), call.sequence, 0.0);
}

void Recorder::complete(const CallRecord& call, const CallTimes& times) {
  if (!call.control) ledger_.close(call.axis, call.sequence, times);
  mark_left(ring(), call.sequence, steady_seconds() - times.end);
}

void Recorder::collect() {
  for (auto& collector : collectors_) collector();
}

void Recorder::enter_phase(std::string_view phase) {
  copy_text(ring().phase, phase);
  ring().phase_since = wall_seconds();
}

void Recorder::move(const std::filesystem::path& folder) {
  if (std::filesystem::weakly_canonical(folder) == std::filesystem::weakly_canonical(this->folder())) return;
  auto next = std::make_unique<FlightRecorder>(folder, ring().rank);
  std::lock_guard lock(mutex_);
  // Both mappings are plain memory of this process, and its only other writer, the heartbeat, is locked out.
  std::memcpy(static_cast<void*>(&next->ring()), static_cast<const void*>(&ring()), sizeof(FlightRecord));
  file_->remove();
  file_ = std::move(next);
}

std::filesystem::path Recorder::folder() const {
  std::lock_guard lock(mutex_);
  return file_->path().parent_path();
}

}  // namespace meshard
