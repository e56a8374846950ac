#pragma once
// The problems of one configuration, gathered so that the user sees all of them at once, each with its place.

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Where a key or value was written: line and column of the file (from 1), or an override. Line 0: the whole file.
struct Place {
  int line = 1;
  int column = 1;
  std::string override_key = {};  ///< `a.b` of `--set a.b=v`; empty for the file
  std::string via = {};           ///< the config.json that a value was taken from; empty for a value written here
};

class Report {
 public:
  /// Local. `file` as the user named it: the first line has all of it, each problem its last component.
  explicit Report(std::string file) : file_(std::move(file)) {}

  /// Local. Remembers where a key (or section) stands; `at` and `given` look there. "" is the document itself.
  void note(const std::string& path, const Place& place) { places_[path] = place; }
  bool given(const std::string& path) const { return places_.count(path) != 0; }

  /// Local. A problem at a place. `path` may be empty (the whole document).
  void add(const Place& place, const std::string& path, std::string what);
  /// Local. A problem of a key, at its own place, or at the nearest section above it that was written.
  void at(const std::string& path, std::string what);

  /// Local. Makes a key unfit for comparisons whose value is unknown because of a problem told elsewhere.
  void spoil(const std::string& path) { bad_.insert(path); }

  /// Local. Whether none of these keys, nor a section around one, has a problem: only then may they be compared.
  bool clean(std::initializer_list<std::string_view> paths) const;

  /// Local. Whether there are as many problems as a user is shown: of more it is enough to know how many.
  bool full() const { return problems_.size() >= kShown; }

  /// Local. All that a message of one problem has before its key: "config error: 1 problem in run.yaml", and the place.
  std::string before_key(const Place& place) const;

  /// Local. Throws ConfigError with every problem (the first kShown, and how many more), in the order of the file,
  /// overrides last. Nothing if there is none.
  void throw_if_any() const;

 private:
  struct Problem {
    Place place;
    std::string path;
    std::string what;
  };
  static constexpr std::size_t kShown = 50;

  std::string heading(std::size_t problems) const;
  std::string text_of(const Place& place) const;
  std::string line_of(const Problem& problem) const;

  std::string file_;
  std::map<std::string, Place> places_;
  std::set<std::string, std::less<>> bad_;
  std::vector<Problem> problems_;
};

/// Local. The beginning of a text too long to be shown whole, and `..`.
std::string shortened(std::string_view text);

}  // namespace meshard
