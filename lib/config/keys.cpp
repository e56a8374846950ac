#include "config/keys.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshard {
namespace {

std::string parent_of(const std::string& path) {
  auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string leaf_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

// Every key and section, in the order of the file.
std::vector<std::string> make_paths() {
  std::vector<std::string> all;
  auto add = [&](const std::string& path) {
    if (!path.empty() && std::ranges::find(all, path) == all.end()) all.push_back(path);
  };
  for (auto& row : key_table()) {
    add(parent_of(parent_of(row.doc.key)));
    add(parent_of(row.doc.key));
    add(row.doc.key);
  }
  return all;
}

const std::vector<std::string>& all_paths() {
  static auto paths = make_paths();
  return paths;
}

// Twice as long as the longest key, a text is none with a slip in it.
constexpr std::size_t kLongestSlip = 80;

}  // namespace

const Key* find_key(const std::string& path) {
  auto found = std::ranges::find(key_table(), path, [](const Key& row) { return row.doc.key; });
  return found == key_table().end() ? nullptr : &*found;
}

bool is_section(const std::string& path) {
  return path.empty() || std::ranges::any_of(key_table(), [prefix = path + "."](const Key& row) {
           return row.doc.key.starts_with(prefix);
         });
}

std::string unknown_key(const std::string& path) {
  if (path.size() > kLongestSlip) return "unknown key; expected one of those that README lists";
  auto leaf = leaf_of(path);
  auto& paths = all_paths();
  auto nearest_by = [&](auto distance) { return *std::ranges::min_element(paths, {}, distance); };
  auto whole = nearest_by([&](const std::string& p) { return edit_distance(p, path); });
  auto name = [&](const std::string& p) { return parent_of(p) == parent_of(path) ? leaf_of(p) : p; };
  if (is_slip(edit_distance(whole, path), leaf.size())) {
    return fmt::format("unknown key; did you mean `{}`?", name(whole));
  }
  auto elsewhere = nearest_by([&](const std::string& p) { return edit_distance(leaf_of(p), leaf); });
  if (is_slip(edit_distance(leaf_of(elsewhere), leaf), leaf.size())) {
    return fmt::format("unknown key; did you mean `{}`?", name(elsewhere));
  }
  return fmt::format("unknown key; the nearest valid key is `{}`", name(whole));
}

}  // namespace meshard
