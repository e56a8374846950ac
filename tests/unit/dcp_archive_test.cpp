#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>

#include "base/error.h"
#include "dcp/torch_archive.h"
#include "support/torch_items.h"

using namespace meshard;
using pickle::Value;

namespace {
at::Tensor read_box_of(const MemoryFile& file, const Box& box, at::ScalarType dtype) {
  auto into = at::empty(box.sizes, dtype);
  read_box(file, head_of(file), box, into, "item");
  return into;
}
at::Tensor narrowed(at::Tensor tensor, const Box& box) {
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    tensor = tensor.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
  }
  return tensor;
}
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  auto x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}
bool same(const Value& a, const Value& b) {
  return pickle::write(a) == pickle::write(b);
}

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong,
                                            at::kInt,   at::kShort,    at::kChar, at::kByte,   at::kBool};
}  // namespace

// Catches: values, sizes or dtype lost on the way, for any dtype, 0-d and empty tensors included.
BOOST_AUTO_TEST_CASE(tensors_round_trip) {
  for (auto dtype : kTypes) {
    for (auto& shape : std::vector<Shape>{{}, {0}, {3, 0, 2}, {5}, {2, 3}, {3, 1, 4}}) {
      auto tensor = at::randint(0, dtype == at::kBool ? 2 : 100, shape, at::kFloat).to(dtype);
      BOOST_TEST(same_bytes(read_whole(MemoryFile(item_of(tensor))), tensor));
    }
  }
  for (auto dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kUInt16, at::kUInt32, at::kUInt64}) {
    auto tensor = at::arange(6, at::kFloat).reshape({2, 3}).to(dtype);
    BOOST_TEST(same_bytes(read_whole(MemoryFile(item_of(tensor))), tensor));
  }
}

// Catches: a large tensor whose pieces are torn, or that is copied whole before the sink sees it.
BOOST_AUTO_TEST_CASE(large_tensors_are_streamed) {
  auto tensor = at::randn({1100, 1000});
  std::string item;
  std::size_t largest = 0;
  bool from_tensor = false;
  auto* first = tensor.const_data_ptr();
  write_tensor_item(tensor, [&](std::span<const std::byte> bytes) {
    largest = std::max(largest, bytes.size());
    from_tensor = from_tensor || bytes.data() == first;
    item.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  BOOST_TEST(largest <= 4u << 20);
  BOOST_TEST(from_tensor);
  BOOST_TEST(same_bytes(read_whole(MemoryFile(item)), tensor));
}

// Catches: a layout that PyTorch's mmap, or its readers that skip local headers, cannot use.
BOOST_AUTO_TEST_CASE(records_lie_as_pytorch_lays_them) {
  auto tensor = at::arange(6, at::kFloat).reshape({2, 3});
  auto item = item_of(tensor);
  BOOST_TEST(head_of(MemoryFile(item)).data_offset % 64 == 0);
  std::vector<std::string> names;
  for (std::size_t at = item.find("PK\1\2"); at != std::string::npos; at = item.find("PK\1\2", at + 1)) {
    names.push_back(item.substr(at + 46, value_at<std::uint16_t>(item, at + 28)));
    auto header = value_at<std::uint32_t>(item, at + 42);
    auto begin = header + 30u + value_at<std::uint16_t>(item, header + 26) + value_at<std::uint16_t>(item, header + 28);
    BOOST_TEST(begin % 64 == 0u);
  }
  BOOST_TEST(names == (std::vector<std::string>{"archive/data.pkl", "archive/.format_version",
                                                "archive/.storage_alignment", "archive/byteorder", "archive/data/0",
                                                "archive/version", "archive/.data/serialization_id"}));
  BOOST_TEST(item.substr(item.size() - 98, 4) == "PK\6\6");
  BOOST_TEST(item == item_of(tensor));
}

// Catches: a file of PyTorch's read as if it lay contiguously from its first element, or refused.
BOOST_AUTO_TEST_CASE(what_pytorch_wrote_is_read) {
  auto rows = at::arange(12, at::kFloat).reshape({3, 4});
  auto read = [](const std::string& name) { return read_whole(MemoryFile(torch_item(name))); };
  BOOST_TEST(same_bytes(read("plain"), rows));
  BOOST_TEST(same_bytes(read("transposed"), rows.t()));
  BOOST_TEST(same_bytes(read("strided"), rows.slice(0, 1, 3).slice(1, 1, 4, 2)));
  BOOST_TEST(same_bytes(read("parameter"), rows.to(at::kBFloat16)));
  BOOST_TEST(same_bytes(read("float8"), at::arange(3, at::kFloat).to(at::kFloat8_e4m3fn)));
  BOOST_TEST(same_bytes(read("scalar"), at::scalar_tensor(7, at::kLong)));
  BOOST_TEST(same_bytes(read("empty"), at::empty({0, 3}, at::kHalf)));
  BOOST_TEST(same_bytes(read("no_checksums"), rows));

  MemoryFile values(torch_item("values"));
  auto value = read_value_item(values, values.place(), "item");
  BOOST_TEST(same(value, Value::list({Value::none(), Value::boolean(true), Value::integer_of(-3), Value::real(0.5),
                                      Value::string("text"), Value::tuple({Value::real(0.9), Value::real(0.95)})})));
}

// Catches: a plain value that changes its kind or digits.
BOOST_AUTO_TEST_CASE(values_round_trip) {
  for (auto& value :
       {Value::none(), Value::boolean(false), Value::integer_of(1LL << 40), Value::integer_of(-1), Value::real(1e-8),
        Value::string("a"), Value::tuple({}), Value::list({Value::string("x"), Value::tuple({Value::real(0.9)})}),
        Value::dict({{Value::string("k"), Value::integer_of(3)}})}) {
    MemoryFile file(item_of(value));
    BOOST_TEST(same(read_value_item(file, file.place(), "item"), value));
  }
  MemoryFile tensor(item_of(at::zeros({2})));
  BOOST_TEST(says(refusal([&] { read_value_item(tensor, tensor.place(), "item"); }), {"item", "_rebuild_tensor_v2"}));
}

// Catches: a box taken from the wrong place, for any combination of layouts in the file and in memory.
BOOST_AUTO_TEST_CASE(boxes_of_any_layout_are_read_exactly) {
  std::mt19937 random(11);
  auto pick = [&](std::int64_t below) { return static_cast<std::int64_t>(random() % below); };
  for (int round = 0; round < 300; ++round) {
    Shape shape{1 + pick(6), 1 + pick(7), 1 + pick(5)};
    auto stored = at::randn({shape[0] * shape[1] * shape[2] * 2 + 8});
    auto item = head_of(MemoryFile(item_of(stored)));
    auto order = std::vector<std::int64_t>{0, 1, 2};
    std::ranges::shuffle(order, random);
    item.sizes = shape;
    item.strides.assign(3, 0);
    item.storage_offset = pick(8);
    std::int64_t step = 1 + pick(2);
    for (auto d : order) {
      item.strides[d] = step;
      step *= shape[d];
    }
    if (pick(5) == 0) item.strides[pick(3)] = 0;
    Box box{{pick(shape[0]), pick(shape[1]), pick(shape[2])}, {}};
    for (std::size_t d = 0; d < 3; ++d) box.sizes.push_back(pick(shape[d] - box.offsets[d] + 1));
    auto place = at::full({12, 12, 12}, -1.0, at::kFloat);
    std::ranges::shuffle(order, random);
    auto into = narrowed(place.permute(order), {{1, 2, 3}, box.sizes});

    read_box(MemoryFile(item_of(stored)), item, box, into, "item");

    auto expected = narrowed(stored.as_strided(item.sizes, item.strides, item.storage_offset), box);
    BOOST_TEST(same_bytes(into, expected));
    BOOST_TEST(place.eq(-1.0).sum().item<std::int64_t>() >= place.numel() - box.numel());
  }
}

// Catches: blocks, gaps and runs longer than the staging buffer, which small boxes never are.
BOOST_AUTO_TEST_CASE(large_boxes_are_read_exactly) {
  auto tensor = at::randn({700, 3000});
  MemoryFile file(item_of(tensor));
  for (const Box& box : std::vector<Box>{{{0, 0}, {700, 3000}},
                                         {{13, 0}, {600, 3000}},
                                         {{0, 1}, {700, 2998}},
                                         {{5, 1000}, {690, 20}},
                                         {{0, 7}, {700, 1}},
                                         {{3, 0}, {1, 3000}}}) {
    auto expected = narrowed(tensor, box);
    BOOST_TEST(same_bytes(read_box_of(file, box, at::kFloat), expected));
    BOOST_TEST(same_bytes(read_box_of(file, box, at::kBFloat16), expected.to(at::kBFloat16)));
    auto transposed = at::empty({box.sizes[1], box.sizes[0]}).t();
    read_box(file, head_of(file), box, transposed, "item");
    BOOST_TEST(same_bytes(transposed, expected));
  }
}

// Catches: contiguous runs that are read piecewise, and narrow columns read an element at a time or with all between.
BOOST_AUTO_TEST_CASE(reads_are_few_and_no_longer_than_needed) {
  auto tensor = at::randn({512, 512});
  MemoryFile file(item_of(tensor));
  auto item = head_of(file);
  auto cost = [&](const Box& box) {
    auto into = at::empty(box.sizes);
    file.calls = file.bytes = 0;
    read_box(file, item, box, into, "item");
    BOOST_TEST(same_bytes(into, narrowed(tensor, box)));
    return std::pair(file.calls, file.bytes);
  };
  BOOST_TEST((cost({{0, 0}, {512, 512}}) == std::pair<std::int64_t, std::int64_t>(1, 512 * 512 * 4)));
  BOOST_TEST((cost({{17, 0}, {100, 512}}) == std::pair<std::int64_t, std::int64_t>(1, 100 * 512 * 4)));
  BOOST_TEST((cost({{17, 3}, {1, 100}}) == std::pair<std::int64_t, std::int64_t>(1, 400)));
  BOOST_TEST(cost({{0, 0}, {512, 8}}).first <= 2);
  file.calls = 0;
  read_tensor_item(file, file.place(), "item");
  BOOST_TEST(file.calls == 2);
}

// Catches: a conversion that is not the one of the values, or one that loses them and is done in silence.
BOOST_AUTO_TEST_CASE(dtypes_convert_as_documented) {
  auto tensor = at::randn({40, 30});
  for (auto dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    MemoryFile file(item_of(tensor.to(dtype)));
    BOOST_TEST(same_bytes(read_box_of(file, {{3, 2}, {30, 20}}, at::kFloat),
                          narrowed(tensor.to(dtype).to(at::kFloat), {{3, 2}, {30, 20}})));
  }
  MemoryFile whole_numbers(item_of(at::arange(4, at::kLong)));
  BOOST_TEST(says(refusal([&] { read_box_of(whole_numbers, whole({4}), at::kFloat); }), {"item", "Long", "Float"}));
  MemoryFile file(item_of(tensor));
  BOOST_TEST(says(refusal([&] { read_box_of(file, whole({40, 30}), at::kHalf); }), {"item", "Float", "Half"}));
  BOOST_TEST(says(refusal([&] { read_box_of(file, {{20, 0}, {21, 30}}, at::kFloat); }), {"item", "no box"}));
  BOOST_CHECK_THROW(read_box(file, head_of(file), whole({40, 30}), at::empty({40, 31}), "item"), ShapeError);
  BOOST_CHECK_THROW(write_tensor_item(tensor.t(), [](auto) {}), ArgumentError);
}
