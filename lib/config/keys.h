#pragma once
// The one table of the configuration's keys. It reads, writes, documents and range-checks every key: a new key is a
// field in config.h and a row here.

#include <functional>
#include <string>
#include <vector>

#include "config/values.h"

namespace meshard {

struct Key {
  KeyDoc doc;
  bool takes_text = false;  ///< any text: what follows the `=` of an override is the value as it is
  bool required = false;    ///< must be given where its section is (an integer, so 0 is "not given")
  std::function<Problem(Config&, const YamlNode&)> read;
  /// The value as YAML, or nothing if a resolved config does not show the key.
  std::function<std::optional<std::string>(const Config&)> write;
};

/// Local. Every key in the order of the file; `model.moe` stands before the keys below it.
const std::vector<Key>& key_table();

/// Local. The key of that path, or nullptr.
const Key* find_key(const std::string& path);

/// Local. Whether keys lie below `path` ("" is the whole document).
bool is_section(const std::string& path);

/// Local. What to say of a key that does not exist: the nearest one that does.
std::string unknown_key(const std::string& path);

}  // namespace meshard
