#include "comm/hang_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshard {

namespace {

std::string describe(const FlightEntry& entry) {
  return fmt::format("{} #{} on axis {}{}{} ({} bytes)", entry.operation, entry.sequence, entry.axis,
                     entry.unit[0] ? ", unit " : "", entry.unit, entry.bytes);
}

std::string name_of(const FlightSnapshot& ring) {
  return fmt::format("rank {} (host {}, pid {})", ring.rank, ring.host, ring.pid);
}

/// The entry of this sequence number in any rank's ring.
const FlightEntry* find_anywhere(const HangEvidence& evidence, std::uint64_t sequence) {
  for (auto& ring : evidence.rings) {
    if (ring && ring->find(sequence)) return ring->find(sequence);
  }
  return nullptr;
}

std::uint64_t furthest(const HangEvidence& evidence) {
  std::uint64_t sequence = 0;
  for (auto& ring : evidence.rings) sequence = std::max(sequence, ring ? ring->sequence : 0);
  return sequence;
}

/// The rank with the lowest sequence number among those that `pick` takes.
template <typename Pick>
const FlightSnapshot* lowest(const HangEvidence& evidence, Pick pick) {
  const FlightSnapshot* found = nullptr;
  for (auto& ring : evidence.rings) {
    if (ring && pick(*ring) && (!found || ring->sequence < found->sequence)) found = &*ring;
  }
  return found;
}

const FlightSnapshot* find_culprit(const HangEvidence& evidence) {
  auto silent = lowest(evidence, [&](auto& ring) { return evidence.silent[ring.rank]; });
  if (silent) return silent;
  auto last = lowest(evidence, [](auto&) { return true; });
  if (last && last->sequence < furthest(evidence)) return last;
  return lowest(evidence, [](auto& ring) { return ring.waiting == 0; });
}

std::string verdict(const HangEvidence& evidence) {
  auto culprit = find_culprit(evidence);
  if (!culprit) return "hang: no rank is behind; all are inside the same collective";
  auto sign_of_life = evidence.silent[culprit->rank] ? ", and it shows no sign of life" : "";
  auto missed = find_anywhere(evidence, culprit->sequence + 1);
  if (missed) return fmt::format("hang: {} did not enter {}{}", name_of(*culprit), describe(*missed), sign_of_life);
  auto last = culprit->find(culprit->waiting ? culprit->waiting : culprit->sequence);
  if (!last) return fmt::format("hang: {} entered no collective yet{}", name_of(*culprit), sign_of_life);
  return fmt::format("hang: {} {} {}{}", name_of(*culprit),
                     culprit->waiting ? "does not finish" : "entered, but does not wait for,", describe(*last),
                     sign_of_life);
}

std::string rank_line(const HangEvidence& evidence, const FlightSnapshot& ring) {
  auto line = fmt::format("  {}{}: phase {} for {:.1f} s, ", name_of(ring),
                          evidence.silent[ring.rank] ? ", silent" : "", ring.phase, evidence.now - ring.phase_since);
  if (auto waited = ring.find(ring.waiting)) {
    return line + fmt::format("waits since {:.1f} s for {}\n", evidence.now - ring.waiting_since, describe(*waited));
  }
  auto last = ring.find(ring.sequence);
  if (!last) return line + "no collective yet\n";
  if (last->left == 0.0) {
    return line + fmt::format("computes, has issued {} {:.1f} s ago\n", describe(*last), evidence.now - last->entered);
  }
  return line + fmt::format("computes since {} {:.1f} s ago\n", describe(*last), evidence.now - last->left);
}

}  // namespace

std::string hang_report(const HangEvidence& evidence) {
  auto text = verdict(evidence) + "\n";
  text += fmt::format("rank {} waited longer than comm.timeout_s = {:g} s. Rings in {}:\n", evidence.reporter,
                      evidence.timeout_seconds, evidence.folder);
  int unreadable = 0;
  for (auto& ring : evidence.rings) {
    if (ring) text += rank_line(evidence, *ring);
    unreadable += !ring;
  }
  if (unreadable > 0) {
    text += fmt::format(
        "the rings of {} of {} ranks could not be read: they are on other hosts, and this folder is not "
        "shared\n",
        unreadable, evidence.rings.size());
  }
  return text;
}

}  // namespace meshard
