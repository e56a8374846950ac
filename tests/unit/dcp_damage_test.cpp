#include <ATen/ops/arange.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <random>

#include "support/fuzz.h"
#include "support/torch_items.h"

using namespace meshard;
using pickle::Value;

namespace {
template <typename T>
std::string with(std::string text, std::size_t at, T value) {
  BOOST_REQUIRE(at + sizeof value <= text.size());
  std::memcpy(text.data() + at, &value, sizeof value);
  return text;
}
/// As PyTorch writes an item that it was told to write without checksums.
std::string without_checksums(std::string item) {
  for (auto at = item.find("PK\1\2"); at != std::string::npos; at = item.find("PK\1\2", at + 1)) {
    item = with(item, at + 16, std::uint32_t{0});
  }
  return item;
}
/// The item's pickle with `from` replaced by `to` of the same length, and no checksum to give it away.
std::string with_pickle(std::string item, const std::string& from, const std::string& to) {
  BOOST_REQUIRE(from.size() == to.size());
  BOOST_REQUIRE(item.find(from) != std::string::npos);
  item.replace(item.find(from), from.size(), to);
  return without_checksums(std::move(item));
}

/// Damages items in up to four places, mostly where lengths, offsets and opcodes are.
class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string mutated(std::string item) {
    if (below(2) == 0) item = without_checksums(std::move(item));  // the pickle is looked at, too
    for (auto times = 1 + below(4); times > 0 && !item.empty(); --times) mutate(item);
    return item;
  }
  std::size_t below(std::size_t end) { return random_() % end; }

 private:
  void mutate(std::string& item) {
    static constexpr std::array<std::uint64_t, 12> kOdd = {
        0, 1, 2, 63, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 0x100000000, 0x7fffffffffffffff, ~0ull};
    auto at = place_in(item.size());
    switch (below(8)) {
      case 0:
        item.resize(at);
        break;
      case 1:
        item.erase(at, 1 + below(16));
        break;
      case 2:
        item.insert(at, item.substr(below(item.size()), 1 + below(64)));
        break;
      case 3:
        item[at] = static_cast<char>(random_());
        break;
      case 4:
        item[at] = static_cast<char>(item[at] ^ (1 << below(8)));
        break;
      default: {
        auto odd = kOdd[below(kOdd.size())] + (below(4) == 0 ? item.size() : 0);
        std::memcpy(item.data() + at, &odd, std::min(item.size() - at, std::size_t{1} << below(4)));
      }
    }
  }
  std::size_t place_in(std::size_t size) {
    switch (below(4)) {
      case 0:
        return below(size);
      case 1:
        return std::min<std::size_t>(size - 1, 64 + below(240));  // data.pkl
      default:
        return size - 1 - below(std::min<std::size_t>(size, 600));  // directory
    }
  }
  std::mt19937_64 random_;
};

/// What a load does with an item: its head, a small box of it, or its value. Whether that was accepted.
bool loads(const MemoryFile& file) {
  bool accepted = false;
  auto ignore_refusal = [&](auto call) {
    try {
      call();
      accepted = true;
    } catch (const IoError&) {
    }
  };
  ignore_refusal([&] { read_value_item(file, file.place(), "item"); });
  ignore_refusal([&] {
    auto item = head_of(file);
    Box box = whole(item.sizes);
    for (auto& size : box.sizes) size = std::min<std::int64_t>(size, box.sizes.size() > 8 ? 1 : 4);
    auto into = at::empty(box.sizes, item.dtype);
    read_box(file, item, box, into, "item");
  });
  return accepted;
}
}  // namespace

// Catches: damage that is not seen, or whose message does not say what it is.
BOOST_AUTO_TEST_CASE(damaged_items_are_refused_by_name) {
  auto good = item_of(at::arange(12, at::kFloat).reshape({3, 4}));
  auto directory = good.find("PK\1\2"), data_entry = good.rfind("PK\1\2", good.rfind("archive/data/0"));
  auto end64 = good.size() - 98;
  BOOST_REQUIRE(refusal(good) == "accepted");
  BOOST_TEST(says(refusal(""), {"item", "too short"}));
  BOOST_TEST(says(refusal(good.substr(0, good.size() - 1)), {"item", "end is missing"}));
  BOOST_TEST(says(refusal(good.substr(1)), {"item", "not a torch archive"}));
  BOOST_TEST(says(refusal(with<std::uint16_t>(good, data_entry + 8, 0x0809)), {"data/0", "encrypted"}));
  BOOST_TEST(says(refusal(with<std::uint16_t>(good, data_entry + 10, 8)), {"data/0", "compressed"}));
  BOOST_TEST(says(refusal(with<std::uint32_t>(good, data_entry + 20, 47)), {"two lengths"}));
  BOOST_TEST(says(refusal(with<std::uint32_t>(good, data_entry + 42, 1)), {"no record where"}));
  BOOST_TEST(says(refusal(with<std::uint32_t>(good, data_entry + 42, 0)), {"not the one"}));
  BOOST_TEST(says(refusal(with<std::uint64_t>(good, end64 + 48, good.size() + 5)), {"leads out"}));
  BOOST_TEST(says(refusal(with<std::int64_t>(good, end64 + 40, -1)), {"absurd"}));
  BOOST_TEST(says(refusal(with<std::uint64_t>(good, end64 + 32, 1'000'000)), {"too short"}));
  BOOST_TEST(says(refusal(with<std::uint32_t>(with<std::uint32_t>(good, data_entry + 20, 4096), data_entry + 24, 4096)),
                  {"4096 bytes", "48"}));
  BOOST_TEST(says(refusal(with<char>(good, 70, '?')), {"data.pkl", "checksum"}));
  BOOST_TEST(says(refusal(with<std::uint32_t>(good, directory + 16, 1)), {"data.pkl", "checksum"}));
  auto big = good;
  big.replace(big.find("little"), 6, "biggie");
  auto order_entry = big.rfind("PK\1\2", big.rfind("archive/byteorder"));
  BOOST_TEST(says(refusal(with<std::uint32_t>(big, order_entry + 16, 0)), {"byteorder", "checksum"}));
  BOOST_TEST(says(refusal(without_checksums(big)), {"big-endian"}));

  MemoryFile file(good);
  auto at = [&](std::int64_t offset, std::int64_t length) {
    return refusal([&] { read_tensor_item(file, {"memory", offset, length}, "item"); });
  };
  BOOST_TEST(says(at(1, file.size()), {"item", "truncated"}));
  BOOST_TEST(says(at(-1, file.size()), {"truncated"}));
  BOOST_TEST(says(at(0, -5), {"truncated"}));
  BOOST_TEST(says(at(INT64_MAX, INT64_MAX), {"truncated"}));
}

// Catches: a pickle that is believed: other functions run, sizes beyond the storage, overflowing products.
BOOST_AUTO_TEST_CASE(hostile_pickles_are_refused) {
  auto good = item_of(at::arange(12, at::kFloat).reshape({3, 4}));
  BOOST_TEST(says(refusal(with_pickle(good, "_rebuild_tensor_v2", "_rebuild_tensor_v9")), {"_rebuild_tensor_v9"}));
  BOOST_TEST(says(refusal(with_pickle(good, "FloatStorage", "ByteeStorage")), {"ByteeStorage"}));
  BOOST_TEST(says(refusal(with_pickle(good, "K\3K\4\x86", "K\4K\4\x86")), {"leave a storage of 48 bytes"}));
  BOOST_TEST(says(refusal(with_pickle(good, "K\4K\1\x86", "K\5K\1\x86")), {"leave a storage"}));
  BOOST_TEST(says(refusal(with_pickle(good, "K\3K\4\x86", "NK\4\x86N")), {"item"}));
  // Nine rows that are all the first one: what few bytes could ask for without end.
  BOOST_TEST(says(refusal(with_pickle(with_pickle(good, "K\3K\4\x86", "K\x9K\4\x86"), "K\4K\1\x86",
                                      std::string("K\0K\1\x86", 5))),
                  {"its 36 elements share a storage of 48 bytes"}));
  auto typed = Value::call(Value::global("torch._utils", "_rebuild_tensor_v2"), {Value::none()});
  BOOST_TEST(says(refusal(item_of(typed)), {"not that of a plain tensor"}));
  BOOST_TEST(says(refusal(item_of(Value::integer_of(3))), {"not that of a plain tensor"}));
}

// Catches: data, or any other record, whose changed bytes are not told, or told as another record's; an item without
// checksums taken for a damaged or for a checked one.
BOOST_AUTO_TEST_CASE(every_byte_of_every_record_is_checked) {
  auto check = [](const std::string& content) {
    MemoryFile file(content);
    return check_item(file, file.place(), "item");
  };
  for (auto& good : {item_of(at::arange(12, at::kFloat)), torch_item("plain"), torch_item("float8"),
                     torch_item("values"), torch_item("empty")}) {
    std::int64_t bytes = 0;
    for (auto at = good.find("PK\1\2"); at != std::string::npos; at = good.find("PK\1\2", at + 1)) {
      auto name = good.substr(at + 46, value_at<std::uint16_t>(good, at + 28));
      auto header = value_at<std::uint32_t>(good, at + 42);
      auto begin =
          header + 30u + value_at<std::uint16_t>(good, header + 26) + value_at<std::uint16_t>(good, header + 28);
      auto length = value_at<std::uint32_t>(good, at + 24);
      for (std::size_t i = begin; i < begin + length; ++i) {
        auto bad = with(good, i, static_cast<char>(good[i] ^ (1 << i % 8)));
        BOOST_TEST(says(refusal([&] { check(bad); }), {"item: its ", (name + " is damaged").c_str()}));
        BOOST_TEST(!check(without_checksums(bad)).has_checksums);
      }
      bytes += length;
    }
    BOOST_TEST(check(good).bytes == bytes);
    BOOST_TEST(check(good).has_checksums);
  }
  BOOST_TEST(!check(torch_item("no_checksums")).has_checksums);
  BOOST_TEST(check(torch_item("no_checksums")).bytes > 48);
}

// Catches: a bit of an archive's headers, directory or end that nobody looks at, though PyTorch refuses the file for it
// (a second disk), or takes a record for a folder. All but these are looked at: versions, dates, attributes, padding,
// and what stands after the data of a record, where PyTorch looks at nothing.
BOOST_AUTO_TEST_CASE(every_bit_around_the_records_is_checked) {
  enum { Checked, Free, Data };
  for (auto& good : {item_of(at::arange(12, at::kFloat)), torch_item("plain"), torch_item("values"),
                     torch_item("no_checksums")}) {
    std::vector<int> kinds(good.size() * 8, Checked);
    auto set = [&](std::size_t at, std::size_t bytes, int kind = Free) {
      std::fill_n(kinds.begin() + static_cast<std::ptrdiff_t>(at * 8), bytes * 8, kind);
    };
    auto directory = static_cast<std::size_t>(value_at<std::uint64_t>(good, good.size() - 98 + 48));
    bool summed = check_item(MemoryFile(good), MemoryFile(good).place(), "item").has_checksums;
    for (auto at = directory; (at = good.find("PK\1\2", at)) != std::string::npos; ++at) {
      std::size_t header = value_at<std::uint32_t>(good, at + 42), length = value_at<std::uint32_t>(good, at + 24);
      auto name_end = header + 30 + value_at<std::uint16_t>(good, header + 26);
      auto extra = value_at<std::uint16_t>(good, header + 28);
      set(at + 4, 4);   // versions
      set(at + 12, 4);  // time and date
      set(at + 36, 6);  // attributes
      kinds[(at + 38) * 8 + 4] = Checked;
      set(header + 4, 2);
      set(header + 10, 4);
      set(name_end, extra);
      if (!summed) set(header + 28, 2, Data);  // where the data begin: only their sums tell
      auto after = name_end + extra + length;
      if (good.compare(after, 4, "PK\7\x8") == 0) set(after, 16);
      set(name_end + extra, length, Data);
    }
    set(good.size() - 98 + 12, 4);  // versions
    for (std::size_t bit = 0; bit < kinds.size(); ++bit) {
      if (kinds[bit] == Data) continue;
      auto bad = with(good, bit / 8, static_cast<char>(good[bit / 8] ^ (1 << bit % 8)));
      auto said = refusal([&] { check_item(MemoryFile(bad), MemoryFile(bad).place(), "item"); });
      if ((said == "accepted") == (kinds[bit] == Free)) continue;
      BOOST_ERROR("bit " << bit % 8 << " of byte " << bit / 8 << " (directory at " << directory << " of "
                         << good.size() << "): " << said);
    }
  }
}

// Catches: a large record whose later blocks are not read, or summed from anew.
BOOST_AUTO_TEST_CASE(large_records_are_checked_block_by_block) {
  auto good = item_of(at::arange(700'000, at::kFloat));
  BOOST_TEST(check_item(MemoryFile(good), MemoryFile(good).place(), "item").bytes > 2'800'000);
  for (std::size_t at : {1u << 20, (1u << 20) + 300, (2u << 20) + 5, 2'800'000u}) {
    MemoryFile bad(with(good, at, static_cast<char>(good[at] ^ 1)));
    BOOST_TEST(says(refusal([&] { check_item(bad, bad.place(), "item"); }), {"data/0 is damaged"}));
  }
}

// Catches: a crash, a hang, a huge allocation or another exception, for any damage to head, directory or pickle.
BOOST_AUTO_TEST_CASE(mutated_items_only_give_io_errors) {
  std::vector<std::string> items = {item_of(at::arange(12, at::kFloat).reshape({3, 4}))};
  for (auto name : {"strided", "parameter", "float8", "scalar", "empty", "values"}) items.push_back(torch_item(name));
  int inputs = fuzz_inputs(), accepted = 0;
  Mutator mutator(5);
  for (int i = 0; i < inputs; ++i) {
    BOOST_TEST_CONTEXT("input " << i) {
      accepted += loads(MemoryFile(mutator.mutated(items[mutator.below(items.size())])));
    }
  }
  BOOST_TEST_MESSAGE(accepted << " of " << inputs << " inputs were accepted");
  BOOST_TEST(accepted > inputs / 100);
  BOOST_TEST(accepted < inputs / 2);
}
