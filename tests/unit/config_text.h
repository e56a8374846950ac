#pragma once
// The smallest valid configuration, and ways to spoil it in one place.

#include <string>

namespace meshard::testing {

/// Lines 1 to 16; a section appended to it begins at line 17.
inline const std::string kMinimal = R"(schema: 1

model:
  vocab_size: 264
  hidden_size: 128
  num_hidden_layers: 2
  num_attention_heads: 4
  intermediate_size: 64
data:
  files: [a.txt]
train:
  steps: 10
  global_batch_size: 8
  seq_len: 16
parallel:
  strategy: fsdp
)";

/// `text` without the line of the key `key`.
inline std::string without(std::string text, const std::string& key) {
  auto at = text.find("  " + key + ":");
  return text.erase(at, text.find('\n', at) + 1 - at);
}

/// `text` with `line` ("key: value") in place of that key's line, or, for a new key, right below its section's name.
inline std::string with(const std::string& section, const std::string& line, std::string text = kMinimal) {
  auto key = "  " + line.substr(0, line.find(':')) + ":";
  auto at = text.find("\n" + key);
  if (at == std::string::npos) {
    at = text.find("\n" + section + ":\n") + section.size() + 2;
    return text.insert(at + 1, "  " + line + "\n");
  }
  return text.replace(at + 1, text.find('\n', at + 1) - at - 1, "  " + line);
}

}  // namespace meshard::testing
