#pragma once
// Numbers for people: ranks, cores, experts.

#include <cstddef>
#include <string>

namespace meshard {

/// Local. "0-3,8" of ascending integers.
template <class Numbers>
std::string number_ranges(const Numbers& numbers) {
  std::string text;
  for (std::size_t first = 0; first < numbers.size();) {
    auto last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(numbers[first]);
    if (last > first) text.append("-").append(std::to_string(numbers[last]));
    first = last + 1;
  }
  return text;
}

}  // namespace meshard
