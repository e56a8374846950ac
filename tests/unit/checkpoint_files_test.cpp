#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>

#include "base/error.h"
#include "checkpoint/retention.h"
#include "checkpoint/store.h"
#include "dcp/crc32c.h"
#include "support/faulty_files.h"

using namespace meshard;

namespace {
using Op = FaultyFiles::Op;
using Steps = std::vector<std::int64_t>;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("meshard-files-" + std::to_string(getpid()));
  FileSystem& files = posix_file_system();
  Folder() {
    files.remove_all(path);
    files.make_folder(path);
  }
  ~Folder() { files.remove_all(path); }

  std::string content(const std::string& name) const {
    auto bytes = read_file(files, path / name);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void write(const std::string& name, const std::string& text) const { write_file(files, path / name, bytes_of(text)); }

  /// As a save leaves it: data, and the commit record.
  void make_checkpoint(std::int64_t step) const {
    auto folder = CheckpointStore(files, path).folder(step);
    files.make_folder(folder);
    for (auto name : {".metadata", "__0_0.distcp", "meshard.json"}) write_file(files, folder / name, bytes_of("x"));
  }
};

template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.what();
  }
  return "accepted";
}

bool has(const std::string& text, std::initializer_list<const char*> parts) {
  return std::ranges::all_of(parts, [&](const char* part) {
    bool found = text.find(part) != std::string::npos;
    if (!found) BOOST_TEST_MESSAGE("missing `" << part << "` in: " << text);
    return found;
  });
}

/// Bit by bit, from the definition.
std::uint32_t slow_crc(std::span<const std::byte> bytes, std::uint32_t polynomial) {
  std::uint32_t crc = ~0u;
  for (auto byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937_64 random(7);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}
}  // namespace

// Catches: another polynomial, bit order or inversion than everyone else's.
BOOST_AUTO_TEST_CASE(checksums_are_the_known_ones) {
  BOOST_TEST(crc32c(bytes_of("123456789")) == 0xe3069283u);
  BOOST_TEST(crc32c(bytes_of(std::string(32, '\0'))) == 0x8a9136aau);  // RFC 3720, B.4
  BOOST_TEST(crc32c(bytes_of(std::string(32, '\xff'))) == 0x62a8ab43u);
  BOOST_TEST(crc32c({}) == 0u);
  BOOST_TEST(zip_crc32(bytes_of("123456789")) == 0xcbf43926u);
  BOOST_TEST(zip_crc32({}) == 0u);
}

// Catches: lanes, folded blocks or tails that are joined wrongly at some length, alignment or cut.
BOOST_AUTO_TEST_CASE(fast_checksums_equal_the_definition) {
  auto bytes = random_bytes(40'000);
  auto whole = std::span<const std::byte>(bytes);
  for (std::size_t length : {1, 7, 8, 15, 16, 63, 64, 65, 127, 128, 1000, 4096, 12287, 12288, 12289, 24'576, 39'990}) {
    for (std::size_t begin : {0, 1, 3, 8}) {
      auto part = whole.subspan(begin, length);
      BOOST_TEST(crc32c(part) == slow_crc(part, 0x82f63b78));
      BOOST_TEST(zip_crc32(part) == slow_crc(part, 0xedb88320));
      BOOST_TEST(crc32c(part.subspan(length / 3), crc32c(part.first(length / 3))) == crc32c(part));
      BOOST_TEST(zip_crc32(part.subspan(length / 3), zip_crc32(part.first(length / 3))) == zip_crc32(part));
    }
  }
}

// Catches: small and large appends that change places, or a buffer that is not flushed by close() or sync().
BOOST_FIXTURE_TEST_CASE(appends_arrive_in_order, Folder) {
  auto bytes = random_bytes(12 << 20);
  auto file = files.create(path / "data");
  std::size_t at = 0;
  std::mt19937 random(3);
  while (at < bytes.size()) {
    std::size_t count = std::min<std::size_t>(bytes.size() - at, random() % 8 ? random() % 5000 : random() % (3 << 20));
    file->append(std::span(bytes).subspan(at, count));
    at += count;
  }
  file->sync();
  BOOST_TEST(std::filesystem::file_size(path / "data") == bytes.size());
  file->append(bytes_of("end"));
  file->close();
  file->close();
  BOOST_TEST(std::filesystem::file_size(path / "data") == bytes.size() + 3);
  auto back = read_file(files, path / "data");
  BOOST_TEST((std::memcmp(back.data(), bytes.data(), bytes.size()) == 0));
  files.create(path / "data")->append(bytes_of("new"));
  BOOST_TEST(content("data") == "new");
}

// Catches: a read beyond the end that returns what was in the buffer.
BOOST_FIXTURE_TEST_CASE(reads_are_exact_or_refused, Folder) {
  write("data", "0123456789");
  auto file = files.open(path / "data");
  std::string part(4, '?');
  file->read(3, std::as_writable_bytes(std::span(part)));
  BOOST_TEST(part == "3456");
  BOOST_TEST(file->size() == 10);
  auto at = [&](std::int64_t offset) {
    return refusal([&] { file->read(offset, std::as_writable_bytes(std::span(part))); });
  };
  BOOST_TEST(has(at(7), {"data", "ends before byte 11"}));
  BOOST_TEST(has(at(1000), {"data", "ends before byte 1004"}));
  BOOST_TEST(has(at(-1), {"data", "negative"}));
  BOOST_TEST(has(refusal([&] { read_file(files, path / "data", 9); }), {"data", "10 bytes", "9"}));
}

// Catches: an error without path, operation or the system's reason; a full disk that does not say how full.
BOOST_FIXTURE_TEST_CASE(errors_say_what_and_where, Folder) {
  write("file", "x");
  BOOST_TEST(has(refusal([&] { files.open(path / "none"); }), {"open", "/none", "No such file"}));
  BOOST_TEST(has(refusal([&] { files.open(path); }), {"open", "meshard-files", "Is a directory"}));
  BOOST_TEST(has(refusal([&] { files.create(path / "none" / "file"); }), {"create", "/none/file", "No such file"}));
  BOOST_TEST(has(refusal([&] { files.make_folder(path / "file" / "x"); }), {"make folder", "file/x"}));
  BOOST_TEST(has(refusal([&] { files.rename(path / "none", path / "x"); }), {"rename", "/none", "/x", "No such file"}));
  BOOST_TEST(has(refusal([&] { files.sync_folder(path / "none"); }), {"folder", "/none", "No such file"}));
  BOOST_TEST(has(refusal([&] { files.list(path / "file"); }), {"list", "/file", "Not a directory"}));

  auto full = files.create("/dev/full");
  full->append(bytes_of("small"));
  BOOST_TEST(has(refusal([&] { full->sync(); }), {"write", "/dev/full", "No space left", "free space there"}));
  BOOST_TEST(has(refusal([&] { full->append(random_bytes(1 << 20)); }), {"write", "/dev/full", "No space left"}));
  full->append(bytes_of("small"));
  BOOST_TEST(has(refusal([&] { full->close(); }), {"write", "/dev/full", "No space left"}));
}

// Catches: what the contract says is fine and throws; a rename that replaces a full folder.
BOOST_FIXTURE_TEST_CASE(folders_behave_as_documented, Folder) {
  files.make_folder(path / "a" / "b");
  files.make_folder(path / "a" / "b");
  write("a/2", "x");
  write("a/1", "x");
  BOOST_TEST(files.list(path / "a") == (std::vector<std::string>{"1", "2", "b"}));
  BOOST_TEST(files.list(path / "none").empty());
  BOOST_TEST(files.list(path / "a" / "1" / "none").empty());  // below a file
  BOOST_TEST(files.exists(path / "a" / "b"));
  BOOST_TEST(!files.exists(path / "none"));
  std::filesystem::create_symlink("nowhere", path / "b");
  BOOST_TEST(files.exists(path / "b"));  // a link that leads nowhere is no absence: a file is lost
  files.remove_all(path / "b");
  BOOST_TEST(!files.exists(path / "b"));
  files.remove_all(path / "none");
  files.make_folder(path / "c");
  BOOST_TEST(has(refusal([&] { files.rename(path / "c", path / "a"); }), {"not empty"}));
  files.rename(path / "a", path / "c");
  files.sync_folder(path);
  BOOST_TEST(files.list(path) == (std::vector<std::string>{"c"}));
}

// Catches: a small file that can be seen half-written, or a failure of one step that goes unnoticed.
BOOST_FIXTURE_TEST_CASE(a_small_file_is_old_or_new, Folder) {
  write("file", "old");
  for (auto op : {Op::Create, Op::Append, Op::Sync, Op::Close, Op::Rename}) {
    FaultyFiles faulty;
    faulty.fail(op, 1, "Input/output error");
    BOOST_TEST(has(refusal([&] { write_file(faulty, path / "file", bytes_of("new")); }), {"Input/output error"}));
    BOOST_TEST(content("file") == "old");
  }
  FaultyFiles faulty;
  faulty.disk_full_after(2);
  BOOST_TEST(has(refusal([&] { write_file(faulty, path / "file", bytes_of("new")); }), {"No space left on device"}));
  BOOST_TEST(content("file") == "old");
  write("file", "new");
  BOOST_TEST(content("file") == "new");
  BOOST_TEST(faulty.count(Op::Rename) == 0);
}

// Catches: a fault that does not reach the reader.
BOOST_FIXTURE_TEST_CASE(faulty_reads_are_faulty, Folder) {
  write("file", "abc");
  FaultyFiles faulty;
  faulty.flip_bit("file", 1, 0);
  BOOST_TEST((read_file(faulty, path / "file")[1] == std::byte{'c'}));
  faulty.short_reads(2);
  BOOST_TEST(has(refusal([&] { read_file(faulty, path / "file"); }), {"ends before"}));
}

// Catches: a foreign, partial or uncommitted folder that is taken for a checkpoint; text order instead of numbers'.
BOOST_FIXTURE_TEST_CASE(complete_checkpoints_newest_first, Folder) {
  CheckpointStore store(files, path);
  BOOST_TEST(CheckpointStore(files, path / "none").complete().empty());
  for (std::int64_t step : Steps{5, 100, 99'999'999, 100'000'000, 123'456'789'012}) make_checkpoint(step);
  BOOST_TEST(store.folder(5).filename() == "step-00000005");
  BOOST_TEST(store.folder(123'456'789'012).filename() == "step-123456789012");
  for (auto name : {"step-00000007.partial", "step-7", "step-000000008", "step-0000000x", "step-+0000009",
                    "step--0000009", "step-99999999999999999999", "step-", "other", "step-00000100 "}) {
    files.make_folder(path / name);
    write(std::string(name) + "/.metadata", "x");
  }
  files.make_folder(path / "step-00000200");
  write("step-00000300", "a file");

  BOOST_TEST(store.complete() == (Steps{123'456'789'012, 100'000'000, 99'999'999, 100, 5}));
}

// Catches: a user's folder cleared with the partial ones.
BOOST_FIXTURE_TEST_CASE(only_partial_checkpoints_are_cleared, Folder) {
  CheckpointStore store(files, path);
  make_checkpoint(5);
  for (auto name : {"step-00000006.partial/x", "step-00000005.partial", "notes.partial", "step-6.partial"}) {
    files.make_folder(path / name);
  }
  store.clear_partials();
  BOOST_TEST(files.list(path) == (std::vector<std::string>{"notes.partial", "step-00000005", "step-6.partial"}));
}

// Catches: the newest ones removed, keep_every counted rather than divided, partial folders in the count.
BOOST_FIXTURE_TEST_CASE(retention_keeps_the_newest_and_every_nth, Folder) {
  CheckpointStore store(files, path);
  for (std::int64_t step = 10; step <= 100; step += 10) make_checkpoint(step);
  files.make_folder(path / "step-00000110.partial");
  retain(store, 20, std::nullopt);
  BOOST_TEST(store.complete().size() == 10u);
  retain(store, 3, 40);
  BOOST_TEST(store.complete() == (Steps{100, 90, 80, 40}));
  retain(store, 1, std::nullopt);
  BOOST_TEST(files.list(path) == (std::vector<std::string>{"step-00000100", "step-00000110.partial"}));
  BOOST_CHECK_THROW(retain(store, 0, std::nullopt), ArgumentError);
  BOOST_CHECK_THROW(retain(store, 1, 0), ArgumentError);
}

// Catches: a process killed between any two operations of a removal that leaves a folder which counts as complete and
// is not, or which the next save does not clear.
BOOST_FIXTURE_TEST_CASE(a_killed_removal_leaves_no_half_checkpoint, Folder) {
  CheckpointStore store(files, path);
  int moments = 0;
  for (bool died = true; died; ++moments) {
    for (std::int64_t step : {1, 2, 3}) make_checkpoint(step);
    files.make_folder(path / "step-00000001.partial");
    FaultyFiles dying;
    dying.die_after(moments);
    died = refusal([&] { retain(CheckpointStore(dying, path), 1, std::nullopt); }) != "accepted";
    BOOST_TEST(died == dying.dead());

    BOOST_TEST(store.complete().front() == 3);
    for (auto step : store.complete()) BOOST_TEST(files.list(store.folder(step)).size() == 3u);
    store.clear_partials();
    retain(store, 1, std::nullopt);
    BOOST_TEST(files.list(path) == (std::vector<std::string>{"step-00000003"}));
  }
  BOOST_TEST(moments > 12);
}
