#pragma once
// Items of checkpoints in memory, for tests: written by Meshard, or by PyTorch 2.13 (goldens/torch_items/).

#include <ATen/ops/empty.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <concepts>
#include <cstring>
#include <string>

#include "base/error.h"
#include "dcp/torch_archive.h"

namespace meshard {

/// A file in memory that counts what is read of it.
struct MemoryFile final : ReadableFile {
  std::string content;
  mutable std::int64_t calls = 0, bytes = 0;

  explicit MemoryFile(std::string text) : content(std::move(text)) {}
  std::int64_t size() const override { return std::ssize(content); }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    if (offset < 0 || offset > size() || std::ssize(into) > size() - offset) throw IoError("memory: it ends before");
    std::memcpy(into.data(), content.data() + offset, into.size());
    ++calls;
    bytes += std::ssize(into);
  }
  ItemPlace place() const { return {"memory", 0, size()}; }
};

inline std::string sunk(const std::function<std::int64_t(const ByteSink&)>& write) {
  std::string item;
  auto length = write([&](auto bytes) { item.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); });
  BOOST_TEST(length == std::ssize(item));
  return item;
}
inline std::string item_of(const at::Tensor& tensor) {
  return sunk([&](const ByteSink& sink) { return write_tensor_item(tensor, sink); });
}
inline std::string item_of(const pickle::Value& value) {
  return sunk([&](const ByteSink& sink) { return write_value_item(value, sink); });
}
inline TensorItem head_of(const MemoryFile& file) {
  return read_tensor_item(file, file.place(), "item");
}

inline at::Tensor read_whole(const MemoryFile& file) {
  auto item = head_of(file);
  auto into = at::empty(item.sizes, item.dtype);
  read_box(file, item, whole(item.sizes), into, "item");
  return into;
}
template <std::invocable Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.what();
  }
  return "accepted";
}
inline std::string refusal(const std::string& content) {
  return refusal([&] { head_of(MemoryFile(content)); });
}
inline bool says(const std::string& text, std::initializer_list<const char*> parts) {
  return std::ranges::all_of(parts, [&](const char* part) {
    bool found = text.find(part) != std::string::npos;
    if (!found) BOOST_TEST_MESSAGE("missing `" << part << "` in: " << text);
    return found;
  });
}

template <typename T>
T value_at(const std::string& text, std::size_t at) {
  T value;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

/// One of PyTorch's.
inline std::string torch_item(const std::string& name) {
  auto bytes = read_file(posix_file_system(), std::string(MESHARD_GOLDENS "/torch_items/") + name + ".pt");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace meshard
