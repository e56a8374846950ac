#pragma once
// The records of one item of a checkpoint, which is an uncompressed zip. Private to this room. Nothing that the bytes
// say is believed before it is compared with the item's length.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dcp/file_system.h"
#include "dcp/metadata.h"

namespace meshard {

class ZipReader {
 public:
  /// Local. Reads the directory. Throws IoError, beginning with `what`: the item is not in the file, not a zip as
  /// torch.save writes it (of one disk, without comments), compressed or encrypted. Keeps references to its arguments.
  ZipReader(const ReadableFile& file, const ItemPlace& place, const std::string& what);

  struct Record {
    std::string name;
    std::int64_t header = 0, length = 0;
    std::uint32_t crc = 0;
    std::uint16_t flags = 0;
  };

  /// Local. By its name in the archive's one folder ("data/0"); null if there is none.
  const Record* find(const std::string& name) const;
  /// Local. Every one, in the order of the directory.
  const std::vector<Record>& records() const { return records_; }
  /// Local. Whether its writer computed checksums. PyTorch may be told not to, and then writes 0 for every record.
  bool has_checksums() const;
  /// Local. Reads the data of a record, block by block; IoError if they are not those of its checksum.
  void check(const Record& record);
  /// Local. Where the data of a record begins, in the item; it lies in the item whole, and the header before it says
  /// what the directory says.
  std::int64_t data_of(const Record& record);
  /// Local. data.pkl, if `byteorder` is little or absent.
  std::vector<std::byte> pickled();

 private:
  using Bytes = std::span<const std::byte>;

  [[noreturn]] void not_an_archive(const char* why) const;
  std::int64_t length_at(Bytes from, std::size_t at) const;
  std::vector<std::byte> raw(std::int64_t at, std::int64_t count) const;
  std::vector<std::byte> bytes(std::int64_t at, std::int64_t count);
  std::vector<std::byte> contents(const Record& record, std::int64_t limit);
  void require_sum(const Record& record, std::uint32_t sum) const;
  void read_directory();
  Record next_record(Bytes& rest) const;
  void widen(Bytes extra, std::initializer_list<std::int64_t*> fields) const;

  const ReadableFile& file_;
  const ItemPlace& place_;
  const std::string& what_;
  std::int64_t directory_ = 0, tail_at_ = 0;
  std::vector<std::byte> head_, tail_;
  std::vector<Record> records_;
  std::string prefix_;
};

}  // namespace meshard
