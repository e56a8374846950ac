#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "moe/routing_file.h"
#include "moe/selection.h"

using namespace meshard;
namespace fs = std::filesystem;

namespace {

const RoutingShape kTiny{.layers = 2, .experts = 8, .top_k = 2, .seq_len = 3, .global_batch_size = 4};

struct RoutingFolder {
  fs::path folder = fs::temp_directory_path() / ("meshard-routing-" + std::to_string(getpid()));
  fs::path file = folder / "routing.bin";
  RoutingFolder() { fs::create_directory(folder); }
  ~RoutingFolder() { fs::remove_all(folder); }

  std::string bytes() const {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void overwrite(const std::string& content) const { std::ofstream(file, std::ios::binary) << content; }
};

at::Tensor random_ids(const RoutingShape& shape, std::int64_t samples) {
  return at::randint(0, shape.experts, {samples * shape.seq_len, shape.top_k}, at::kLong);
}

at::Tensor zeros(const RoutingShape& shape, std::int64_t samples) {
  return at::full({samples * shape.seq_len, shape.top_k}, 0, at::kLong);
}

/// The ids of positions [first, first + samples) in [samples * seq_len, K] of position 0 onwards.
at::Tensor part(const at::Tensor& all, const RoutingShape& shape, std::int64_t first, std::int64_t samples) {
  return all.narrow(0, first * shape.seq_len, samples * shape.seq_len);
}

void record(RoutingTap& tap, std::int64_t first, std::int64_t samples, int layer, const at::Tensor& ids) {
  tap.begin(first, samples);
  BOOST_TEST(tap.pass(layer, ids).equal(ids));
}

at::Tensor replay(RoutingTap& tap, const RoutingShape& shape, std::int64_t first, std::int64_t samples, int layer) {
  tap.begin(first, samples);
  return tap.pass(layer, zeros(shape, samples));
}

template <typename Failure, typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Failure& error) {
    return error.what();
  }
  return "accepted";
}

bool says(const std::string& message, std::initializer_list<std::string> parts) {
  return std::ranges::all_of(parts, [&](const std::string& part) {
    bool found = message.find(part) != std::string::npos;
    if (!found) BOOST_TEST_MESSAGE("missing `" << part << "` in: " << message);
    return found;
  });
}

/// Files of this process may not grow beyond `bytes`; writes that do fail instead of killing it.
struct FileSizeLimit {
  rlimit old{};
  void (*handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &old);
    rlimit low{bytes, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &low);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
  }
};

}  // namespace

// Catches: a layout that is not the documented one, so that files of two versions disagree in silence.
BOOST_FIXTURE_TEST_CASE(the_bytes_are_the_documented_ones, RoutingFolder) {
  RoutingShape shape{.layers = 2, .experts = 300, .top_k = 2, .seq_len = 1, .global_batch_size = 4};
  create_routing_file(file, shape);
  auto tap = record_routing(file, shape);

  record(*tap, 0, 2, 1, at::tensor({0, 1, 2, 299}, at::kLong).view({2, 2}));

  std::string header = "meshard routing 1\nlayers 2\nexperts 300\ntop_k 2\nseq_len 1\nglobal_batch_size 4\n";
  header.resize(4096, '\0');
  const std::string body(
      "\0\0\0\0"
      "\1\0\2\0"
      "\0\0\0\0"
      "\3\0\x2c\1",
      16);
  BOOST_TEST(bytes() == header + body);
}

// Catches: a choice that comes back in another order, of another layer or sample.
BOOST_FIXTURE_TEST_CASE(what_was_recorded_is_replayed, RoutingFolder) {
  RoutingShape shape{.layers = 3, .experts = 65534, .top_k = 4, .seq_len = 5, .global_batch_size = 6};
  std::vector<at::Tensor> ids;
  for (int layer = 0; layer < 3; ++layer) ids.push_back(random_ids(shape, 12));
  ids[0][7][3] = 65533;
  create_routing_file(file, shape);
  {
    auto tap = record_routing(file, shape);
    for (std::int64_t first : {0, 6}) {
      for (int layer = 0; layer < 3; ++layer) record(*tap, first, 6, layer, part(ids[layer], shape, first, 6));
    }
  }
  auto tap = replay_routing(file, shape);
  for (int layer : {2, 0, 1}) BOOST_TEST(replay(*tap, shape, 0, 12, layer).equal(ids[layer]));
  BOOST_TEST(replay(*tap, shape, 7, 2, 1).equal(part(ids[1], shape, 7, 2)));
}

// Catches: ranks that overwrite each other's blocks, and positions that depend on the mesh or the batch size.
BOOST_FIXTURE_TEST_CASE(two_ranks_record_and_another_split_replays, RoutingFolder) {
  auto all = random_ids(kTiny, 8);
  create_routing_file(file, kTiny);
  auto rank0 = record_routing(file, kTiny), rank1 = record_routing(file, kTiny);
  for (int layer : {0, 1}) {
    record(*rank1, 2, 2, layer, part(all, kTiny, 2, 2));
    record(*rank0, 0, 2, layer, part(all, kTiny, 0, 2));
    record(*rank0, 4, 2, layer, part(all, kTiny, 4, 2));
    record(*rank1, 6, 2, layer, part(all, kTiny, 6, 2));
  }

  auto other = kTiny;
  other.global_batch_size = 8;
  auto one = replay_routing(file, other);
  BOOST_TEST(replay(*one, other, 0, 8, 1).equal(all));
  for (std::int64_t position = 0; position < 8; ++position) {
    BOOST_TEST(replay(*one, other, position, 1, 0).equal(part(all, kTiny, position, 1)));
  }
}

// Catches: ids of a tensor that is not contiguous written in the order of memory.
BOOST_FIXTURE_TEST_CASE(a_transposed_tensor_is_recorded_as_it_reads, RoutingFolder) {
  create_routing_file(file, kTiny);
  auto ids = at::arange(6, at::kLong).view({2, 3}).t();
  record(*record_routing(file, kTiny), 0, 1, 0, ids);

  auto tap = replay_routing(file, kTiny);
  BOOST_TEST(replay(*tap, kTiny, 0, 1, 0).equal(at::tensor({0, 3, 1, 4, 2, 5}, at::kLong).view({3, 2})));
}

// Catches: samples that were never recorded replayed as expert -1, inside the file or past its end.
BOOST_FIXTURE_TEST_CASE(a_position_that_was_not_recorded_is_named, RoutingFolder) {
  create_routing_file(file, kTiny);
  auto recorder = record_routing(file, kTiny);
  record(*recorder, 0, 4, 0, zeros(kTiny, 4));
  record(*recorder, 0, 4, 1, zeros(kTiny, 4));
  record(*recorder, 6, 1, 1, zeros(kTiny, 1));

  auto shape = kTiny;
  shape.global_batch_size = 64;
  auto tap = replay_routing(file, shape);
  auto missing = [&](std::int64_t first, int layer) {
    return message_of<IoError>([&] { replay(*tap, shape, first, 1, layer); });
  };
  BOOST_TEST(missing(3, 1) == "accepted");
  BOOST_TEST(says(missing(5, 1), {file.string(), "position 5 (step 2), MoE layer 1", "4 samples a step"}));
  BOOST_TEST(says(missing(6, 0), {"position 6 (step 2), MoE layer 0"}));
  BOOST_TEST(says(missing(7, 0), {"position 7 (step 2), MoE layer 0", "record a longer run"}));
  BOOST_TEST(says(missing(4000000000, 1), {"position 4000000000 (step 1000000001)"}));
}

// Catches: a file of another model replayed, or a refusal that names only the first difference.
BOOST_FIXTURE_TEST_CASE(every_difference_of_shape_is_named, RoutingFolder) {
  create_routing_file(file, kTiny);
  RoutingShape other{.layers = 3, .experts = 16, .top_k = 1, .seq_len = 4, .global_batch_size = 5};
  for (auto open : {replay_routing, record_routing}) {
    auto message = message_of<ConfigError>([&] { open(file, other); });
    BOOST_TEST(says(message, {file.string(), "layers 2 in the file, 3 in this run", "experts 8 in the file, 16",
                              "top_k 2 in the file, 1", "seq_len 3 in the file, 4"}));
    BOOST_TEST(message.find("global_batch_size") == std::string::npos);
  }
  auto shape = kTiny;
  shape.top_k = 4;
  auto message = message_of<ConfigError>([&] { replay_routing(file, shape); });
  BOOST_TEST(says(message, {"model: top_k 2 in the file, 4 in this run; use"}));
}

// Catches: any file of the right length taken for a routing file, and a header that is damaged.
BOOST_FIXTURE_TEST_CASE(other_files_are_refused, RoutingFolder) {
  auto refusal = [&](const std::string& content) {
    overwrite(content);
    return message_of<ConfigError>([&] { replay_routing(file, kTiny); });
  };
  create_routing_file(file, kTiny);
  auto good = bytes();
  auto changed = [&](const std::string& from, const std::string& to) {
    auto copy = good;
    return refusal(copy.replace(copy.find(from), from.size(), to));
  };

  BOOST_TEST(refusal(good) == "accepted");
  BOOST_TEST(says(refusal(""), {file.string(), "0 bytes", "regression.record_routing"}));
  BOOST_TEST(says(refusal(good.substr(0, 4095)), {"4095 bytes"}));
  BOOST_TEST(says(refusal(std::string(8192, 'x')), {"does not begin with \"meshard routing 1\""}));
  BOOST_TEST(says(changed("routing 1", "routing 2"), {"does not begin with"}));
  BOOST_TEST(says(changed("top_k 2", "top_k 0"), {"no valid top_k"}));
  BOOST_TEST(says(changed("seq_len", "seq-len"), {"no valid seq_len"}));
  fs::remove(file);
  auto message = message_of<IoError>([&] { replay_routing(file, kTiny); });
  BOOST_TEST(says(message, {"cannot open", file.string(), "No such file"}));
}

// Catches: half a block replayed, with what the buffer held before.
BOOST_FIXTURE_TEST_CASE(a_block_that_is_cut_off_is_named, RoutingFolder) {
  create_routing_file(file, kTiny);
  auto recorder = record_routing(file, kTiny);
  for (int layer : {0, 1}) record(*recorder, 0, 6, layer, random_ids(kTiny, 6));
  fs::resize_file(file, fs::file_size(file) - 5);

  auto tap = replay_routing(file, kTiny);
  BOOST_TEST(message_of<IoError>([&] { replay(*tap, kTiny, 0, 6, 0); }) == "accepted");
  auto message = message_of<IoError>([&] { replay(*tap, kTiny, 0, 6, 1); });
  BOOST_TEST(says(message, {file.string(), "cut off, position 5 (step 2), MoE layer 1: 7 of 12 bytes"}));
}

// Catches: an index out of bounds in the experts.
BOOST_FIXTURE_TEST_CASE(a_damaged_id_is_named, RoutingFolder) {
  create_routing_file(file, kTiny);
  record(*record_routing(file, kTiny), 0, 4, 0, at::full({12, 2}, 7, at::kLong));
  auto tap = replay_routing(file, kTiny);
  BOOST_TEST(replay(*tap, kTiny, 0, 4, 0).equal(at::full({12, 2}, 7, at::kLong)));

  auto content = bytes();
  content[4096 + 2 * 2 * 12 + 6] = 9;  // position 2, layer 0, token 1
  overwrite(content);
  auto message = message_of<IoError>([&] { replay(*tap, kTiny, 0, 4, 0); });
  BOOST_TEST(says(message, {file.string(), "damaged, position 2 (step 1), MoE layer 0", "expert 8 of 8"}));
}

// Catches: a dropped pair or a wrong id stored as some other expert, and shapes or layers that would write elsewhere.
BOOST_FIXTURE_TEST_CASE(calls_that_break_the_contract_are_refused, RoutingFolder) {
  create_routing_file(file, kTiny);
  auto tap = record_routing(file, kTiny);
  BOOST_CHECK_THROW(tap->pass(0, zeros(kTiny, 1)), LogicError);
  BOOST_CHECK_THROW(tap->begin(-1, 1), ArgumentError);
  BOOST_CHECK_THROW(tap->begin(0, 0), ArgumentError);

  tap->begin(0, 1);
  for (std::int64_t id : {kDroppedPair, std::int64_t{8}}) {
    auto ids = zeros(kTiny, 1);
    ids[1][1] = id;
    BOOST_CHECK_THROW(tap->pass(0, ids), ArgumentError);
  }
  BOOST_CHECK_THROW(tap->pass(2, zeros(kTiny, 1)), ArgumentError);
  BOOST_CHECK_THROW(tap->pass(-1, zeros(kTiny, 1)), ArgumentError);
  BOOST_CHECK_THROW(tap->pass(0, zeros(kTiny, 2)), ShapeError);
  BOOST_CHECK_THROW(tap->pass(0, zeros(kTiny, 1).t()), ShapeError);
  BOOST_CHECK_THROW(tap->pass(0, zeros(kTiny, 1).to(at::kInt)), ShapeError);
  BOOST_TEST(bytes().size() == 4096);

  auto large = kTiny;
  large.experts = 65535;
  BOOST_CHECK_THROW(create_routing_file(file, large), ArgumentError);
}

// Catches: an old file's choices that show through a new recording.
BOOST_FIXTURE_TEST_CASE(an_old_file_is_replaced, RoutingFolder) {
  create_routing_file(file, kTiny);
  record(*record_routing(file, kTiny), 0, 4, 0, zeros(kTiny, 4));
  create_routing_file(file, kTiny);
  BOOST_TEST(bytes().size() == 4096);
  auto message = message_of<IoError>([&] { create_routing_file(folder / "none" / "x.bin", kTiny); });
  BOOST_TEST(says(message, {"cannot open", "none/x.bin", "No such file"}));
}

// Catches: a full disk that is taken for success, a short write that is not continued, or an error without a place.
BOOST_FIXTURE_TEST_CASE(a_full_disk_is_said, RoutingFolder) {
  fs::create_symlink("/dev/full", folder / "full");
  auto message = message_of<IoError>([&] { create_routing_file(folder / "full", kTiny); });
  BOOST_TEST(says(message, {"cannot write", "full: No space left", "the disk is full", "regression.record_routing"}));

  create_routing_file(file, kTiny);
  auto tap = record_routing(file, kTiny);
  tap->begin(4, 2);
  {
    FileSizeLimit limit(4096 + (5 * 2 + 1) * 12 + 7);  // ends in the second sample's block of layer 1
    message = message_of<IoError>([&] { tap->pass(1, zeros(kTiny, 2)); });
  }
  BOOST_TEST(says(message, {"cannot write", file.string(), "position 5 (step 2), MoE layer 1", "File too large"}));
  BOOST_TEST(bytes().size() == 4096 + 11 * 12 + 7);
}
