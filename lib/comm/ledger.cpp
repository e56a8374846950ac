#include "comm/ledger.h"

namespace meshard {

void Ledger::add(std::string_view operation, std::string_view axis, std::int64_t bytes) {
  auto& traffic = entries_[Key(operation, axis)];
  traffic.count += 1;
  traffic.bytes += bytes;
}

void Ledger::add_seconds(std::string_view operation, std::string_view axis, double seconds) {
  // The ledger may have been cleared between issue and completion: time alone makes no entry.
  auto entry = entries_.find(Key(operation, axis));
  if (entry != entries_.end()) entry->second.seconds += seconds;
}

Traffic Ledger::at(std::string_view operation, std::string_view axis) const {
  auto entry = entries_.find(Key(operation, axis));
  return entry == entries_.end() ? Traffic{} : entry->second;
}

double Ledger::seconds() const {
  double sum = 0.0;
  for (auto& [key, traffic] : entries_) sum += traffic.seconds;
  return sum;
}

}  // namespace meshard
