#include "dcp/zip_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "dcp/crc32c.h"

namespace meshard {
namespace {

constexpr std::int64_t kWindow = 4096;  // of an item's begin and of its end: all there is to read of most heads
constexpr std::int64_t kLargestPickle = 256 << 20;
constexpr std::int64_t kBlock = 1 << 20;  // stays in the cache between reading and summing
constexpr std::int64_t kEndLength = 22, kLocatorLength = 20, kEnd64Length = 56, kEntryLength = 46, kHeaderLength = 30;
constexpr std::int64_t kAll16 = 0xffff, kAll32 = 0xffffffff;
constexpr std::uint16_t kSizesAfter = 0x0008, kKnownFlags = kSizesAfter | 0x0800;  // and names in UTF-8
constexpr std::uint32_t kFolder = 0x10;  // an attribute by which PyTorch reads nothing

template <typename T>
T field(std::span<const std::byte> from, std::size_t at) {
  T value;
  std::memcpy(&value, from.subspan(at, sizeof(T)).data(), sizeof(T));
  return value;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
}  // namespace

ZipReader::ZipReader(const ReadableFile& file, const ItemPlace& place, const std::string& what)
    : file_(file), place_(place), what_(what) {
  if (place.offset < 0 || place.length < 0 || place.offset > file.size() - place.length) {
    throw IoError(fmt::format("{}: bytes {} to {} + {} are not in a file of {} bytes; it is truncated or another one",
                              what, place.offset, place.offset, place.length, file.size()));
  }
  if (place.length < kEndLength) not_an_archive("it is too short");
  auto window = std::min(place.length, kWindow);
  tail_at_ = place.length - window;
  tail_ = raw(tail_at_, window);
  read_directory();
}

const ZipReader::Record* ZipReader::find(const std::string& name) const {
  auto found = std::ranges::find(records_, prefix_ + name, &Record::name);
  return found == records_.end() ? nullptr : &*found;
}

bool ZipReader::has_checksums() const {
  return std::ranges::any_of(records_, [](auto& record) { return record.crc != 0; });
}

void ZipReader::check(const Record& record) {
  auto begin = data_of(record);
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(record.length, kBlock)));
  std::uint32_t sum = 0;
  for (std::int64_t done = 0; done < record.length;) {
    auto count = std::min<std::int64_t>(record.length - done, std::ssize(block));
    auto part = std::span(block).first(static_cast<std::size_t>(count));
    file_.read(place_.offset + begin + done, part);
    sum = zip_crc32(part, sum);
    done += count;
  }
  require_sum(record, sum);
}

void ZipReader::require_sum(const Record& record, std::uint32_t sum) const {
  if (!has_checksums() || sum == record.crc) return;
  throw IoError(fmt::format("{}: its {} is damaged: checksum {:08x}, {:08x} when it was written", what_, record.name,
                            sum, record.crc));
}

std::int64_t ZipReader::data_of(const Record& record) {
  auto header = bytes(record.header, kHeaderLength);
  auto name_length = field<std::uint16_t>(header, 26);
  if (field<std::uint32_t>(header, 0) != 0x04034b50) not_an_archive("no record where its directory says");
  auto begin = record.header + kHeaderLength + name_length + field<std::uint16_t>(header, 28);
  if (as_text(bytes(record.header + kHeaderLength, name_length)) != record.name) {
    not_an_archive("a record is not the one that its directory says");
  }
  auto length = static_cast<std::uint32_t>(std::min(record.length, kAll32));
  auto sums = std::tuple(field<std::uint32_t>(header, 14), field<std::uint32_t>(header, 18),
                         field<std::uint32_t>(header, 22));
  bool after = (record.flags & kSizesAfter) != 0 && sums == std::tuple(0u, 0u, 0u);
  bool same = field<std::uint16_t>(header, 6) == record.flags && field<std::uint16_t>(header, 8) == 0 &&
              (after || sums == std::tuple(record.crc, length, length));
  if (!same) not_an_archive("a record and its directory do not say the same");
  if (begin > directory_ || record.length > directory_ - begin) not_an_archive("a record reaches into its directory");
  return begin;
}

std::vector<std::byte> ZipReader::pickled() {
  if (auto order = find("byteorder"); order && as_text(contents(*order, 16)) != "little") {
    throw IoError(what_ + ": it was written on a big-endian machine, which is not supported");
  }
  return contents(*find("data.pkl"), kLargestPickle);
}

std::vector<std::byte> ZipReader::contents(const Record& record, std::int64_t limit) {
  if (record.length > limit) {
    throw IoError(
        fmt::format("{}: its {} has {} bytes; at most {} are read", what_, record.name, record.length, limit));
  }
  auto contents = bytes(data_of(record), record.length);
  require_sum(record, zip_crc32(contents));
  return contents;
}

void ZipReader::not_an_archive(const char* why) const {
  throw IoError(fmt::format("{}: not a torch archive, or a damaged one: {}", what_, why));
}

std::int64_t ZipReader::length_at(Bytes from, std::size_t at) const {
  auto value = field<std::int64_t>(from, at);
  if (value < 0) not_an_archive("a length is absurd");
  return value;
}

std::vector<std::byte> ZipReader::raw(std::int64_t at, std::int64_t count) const {
  std::vector<std::byte> into(static_cast<std::size_t>(count));
  file_.read(place_.offset + at, into);
  return into;
}

std::vector<std::byte> ZipReader::bytes(std::int64_t at, std::int64_t count) {
  if (count > place_.length || at > place_.length - count) not_an_archive("an offset leads out of it");
  auto part = [&](const std::vector<std::byte>& window, std::int64_t begin) {
    return std::vector(window.begin() + (at - begin), window.begin() + (at - begin + count));
  };
  if (at >= tail_at_) return part(tail_, tail_at_);
  if (at + count > std::min(kWindow, place_.length)) return raw(at, count);
  if (head_.empty()) head_ = raw(0, std::min(kWindow, place_.length));
  return part(head_, 0);
}

void ZipReader::read_directory() {
  auto directory_end = place_.length - kEndLength;
  auto end = bytes(directory_end, kEndLength);
  if (field<std::uint32_t>(end, 0) != 0x06054b50) not_an_archive("its end is missing");
  std::int64_t count = field<std::uint16_t>(end, 10), length = field<std::uint32_t>(end, 12);
  directory_ = field<std::uint32_t>(end, 16);
  bool one_disk = field<std::uint32_t>(end, 4) == 0 && field<std::uint16_t>(end, 8) == count;
  bool agree = field<std::uint16_t>(end, 20) == 0;  // no comment, as it ends here
  if (place_.length >= kEndLength + kLocatorLength) {
    auto locator = bytes(directory_end - kLocatorLength, kLocatorLength);
    if (field<std::uint32_t>(locator, 0) == 0x07064b50) {
      auto end64_at = length_at(locator, 8);
      auto end64 = bytes(end64_at, kEnd64Length);
      if (field<std::uint32_t>(end64, 0) != 0x06064b50) not_an_archive("its ZIP64 end is missing");
      auto narrow = {std::tuple(count, length_at(end64, 32), kAll16), {length, length_at(end64, 40), kAll32},
                     {directory_, length_at(end64, 48), kAll32}};
      for (auto [value, wide, full] : narrow) agree = agree && (value == full || value == wide);
      agree = agree && field<std::int64_t>(end64, 4) == kEnd64Length - 12;
      agree = agree && end64_at == directory_end - kLocatorLength - kEnd64Length;
      directory_end = end64_at;
      count = length_at(end64, 32);
      length = length_at(end64, 40);
      directory_ = length_at(end64, 48);
      one_disk = one_disk && field<std::uint32_t>(locator, 4) == 0 && field<std::uint32_t>(locator, 16) == 1 &&
                 field<std::uint64_t>(end64, 16) == 0 && field<std::int64_t>(end64, 24) == count;
    }
  }
  auto directory = bytes(directory_, length);
  if (count > length / kEntryLength) not_an_archive("its directory is too short");
  if (!one_disk) not_an_archive("its end speaks of other disks");
  if (!agree || directory_ + length != directory_end) not_an_archive("what its end says does not agree");
  Bytes rest = directory;
  for (; count > 0; --count) records_.push_back(next_record(rest));
  if (!rest.empty()) not_an_archive("its directory is longer than its records");
  auto pickled = std::ranges::find_if(records_, [](auto& record) { return record.name.ends_with("data.pkl"); });
  if (pickled == records_.end()) not_an_archive("it has no data.pkl");
  prefix_ = pickled->name.substr(0, pickled->name.size() - std::strlen("data.pkl"));
}

ZipReader::Record ZipReader::next_record(Bytes& rest) const {
  if (std::ssize(rest) < kEntryLength || field<std::uint32_t>(rest, 0) != 0x02014b50) {
    not_an_archive("its directory is damaged");
  }
  std::size_t name_length = field<std::uint16_t>(rest, 28), extra_length = field<std::uint16_t>(rest, 30);
  auto whole = kEntryLength + name_length + extra_length + field<std::uint16_t>(rest, 32);
  if (rest.size() < whole) not_an_archive("its directory is damaged");
  if (field<std::uint16_t>(rest, 32) != 0) not_an_archive("a record has a comment");
  if (field<std::uint16_t>(rest, 34) != 0) not_an_archive("a record is on another disk");
  if (field<std::uint32_t>(rest, 38) & kFolder) not_an_archive("a record is a folder");
  Record record;
  record.name = as_text(rest.subspan(kEntryLength, name_length));
  record.flags = field<std::uint16_t>(rest, 8);
  if (record.flags & 1) throw IoError(fmt::format("{}: its {} is encrypted", what_, record.name));
  if (field<std::uint16_t>(rest, 10) != 0) {
    throw IoError(fmt::format("{}: its {} is compressed, which torch.save never does", what_, record.name));
  }
  if (record.flags & ~kKnownFlags) not_an_archive("a record has flags that torch.save never sets");
  record.crc = field<std::uint32_t>(rest, 16);
  std::int64_t stored = field<std::uint32_t>(rest, 20);
  record.length = field<std::uint32_t>(rest, 24);
  record.header = field<std::uint32_t>(rest, 42);
  widen(rest.subspan(kEntryLength + name_length, extra_length), {&record.length, &stored, &record.header});
  if (stored != record.length) not_an_archive("a stored record has two lengths");
  rest = rest.subspan(whole);
  return record;
}

/// Fields of 32 bits that are full stand in the ZIP64 extra field, in this order.
void ZipReader::widen(Bytes extra, std::initializer_list<std::int64_t*> fields) const {
  while (extra.size() >= 4) {
    std::size_t length = field<std::uint16_t>(extra, 2);
    if (length > extra.size() - 4) not_an_archive("an extra field is too long");
    auto wide = extra.subspan(4, length);
    if (field<std::uint16_t>(extra, 0) == 1) {
      for (auto* narrow : fields) {
        if (*narrow != kAll32) continue;
        if (wide.size() < 8) not_an_archive("a ZIP64 field is too short");
        *narrow = length_at(wide, 0);
        wide = wide.subspan(8);
      }
      return;
    }
    extra = extra.subspan(4 + length);
  }
}

}  // namespace meshard
