#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>

#include "base/error.h"
#include "comm/hang_report.h"
#include "comm/ledger.h"
#include "comm/mpi/message_pieces.h"
#include "comm/mpi/reduce.h"
#include "comm/world/device_choice.h"
#include "comm/world/launcher.h"

using namespace meshard;

namespace {

std::uint16_t bf16(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}

template <typename T>
T fold(std::vector<T> values, at::ScalarType dtype, ReduceOp op) {
  std::vector<const void*> inputs;
  for (auto& value : values) inputs.push_back(&value);
  T out;
  reduce_in_order(&out, inputs, 1, dtype, op);
  return out;
}

using Variables = std::map<const char*, const char*>;

/// Environment variables of a launcher, set for the length of a test.
struct Environment {
  explicit Environment(const Variables& values) {
    for (auto name : kNames) ::unsetenv(name);
    for (auto [name, value] : values) ::setenv(name, value, 1);
  }
  ~Environment() {
    for (auto name : kNames) ::unsetenv(name);
  }
  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "PMIX_RANK",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "SLURM_PROCID",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_JOB_ID",
                                           "SLURM_RESTART_COUNT",
                                           "SLURM_ARRAY_JOB_ID",
                                           "SLURM_ARRAY_TASK_ID",
                                           "PBS_JOBID",
                                           "PBS_ENVIRONMENT",
                                           "MESHARD_CHAIN"};
};

}  // namespace

// Catches: a message cut so that bytes are lost, sent twice, or sent as an empty message.
BOOST_AUTO_TEST_CASE(long_messages_are_cut_into_pieces) {
  using Pieces = std::vector<MessagePiece>;
  BOOST_TEST((message_pieces(10, 4) == Pieces{{0, 4}, {4, 4}, {8, 2}}));
  BOOST_TEST((message_pieces(8, 4) == Pieces{{0, 4}, {4, 4}}));
  BOOST_TEST(message_pieces(0, 4).empty());
  std::int64_t huge = 3 * kMaxMessageBytes + 1;
  BOOST_TEST(message_pieces(huge, kMaxMessageBytes).back().bytes == 1);
  BOOST_TEST(kMaxMessageBytes <= std::numeric_limits<int>::max());
}

// Catches: byte formulas that differ from comm/DESIGN.md section 6.
BOOST_AUTO_TEST_CASE(bytes_by_formula) {
  static_assert(gather_bytes(400, 4) == 300);
  static_assert(all_reduce_bytes(400, 4) == 600);
  static_assert(gather_bytes(400, 1) == 0 && all_reduce_bytes(400, 1) == 0);
}

// Catches: two operations at once that count twice; time before the window or after its end; a call under way that is
// forgotten; the tail of a step that is booked on the next one.
BOOST_AUTO_TEST_CASE(time_belongs_to_the_window_of_the_ledger) {
  Ledger ledger;
  ledger.clear(10.0);
  ledger.open(1, 11.0);
  ledger.open(2, 12.0);
  ledger.close("dp_shard", 1, {.begin = 11.0, .end = 13.0, .exposed = 0.5});
  ledger.close("dp_outer", 2, {.begin = 12.0, .end = 14.0, .exposed = 0.25});
  ledger.open(3, 15.0);
  BOOST_TEST(ledger.busy(16.0) == 4.0);  // 11 to 14, 15 to 16
  BOOST_TEST(ledger.exposed() == 0.75);
  BOOST_TEST(ledger.exposed_by_axis().at("dp_outer") == 0.25);

  ledger.open(4, 15.0);
  ledger.clear(20.0);
  BOOST_TEST(ledger.entries().empty());
  BOOST_TEST(ledger.busy(21.0) == 1.0);                                       // both still under way
  ledger.close("dp_shard", 3, {.begin = 15.0, .end = 19.0, .exposed = 4.0});  // done before, known only now
  ledger.close("dp_shard", 4, {.begin = 15.0, .end = 22.0});
  BOOST_TEST(ledger.busy(25.0) == 2.0);
  BOOST_TEST(ledger.exposed() == 0.0);
  ledger.add_exposed("dp_shard", 1.0);
  BOOST_TEST(ledger.exposed() == 1.0);
  BOOST_TEST(ledger.entries().empty());
}

// Catches: an order other than rank 0 to n-1.
BOOST_AUTO_TEST_CASE(sums_run_from_the_first_rank_to_the_last) {
  BOOST_TEST(fold<float>({1e8f, 1.0f, -1e8f}, at::kFloat, ReduceOp::Sum) == 0.0f);
  BOOST_TEST(fold<float>({1e8f, -1e8f, 1.0f}, at::kFloat, ReduceOp::Sum) == 1.0f);
  BOOST_TEST(fold<double>({1.0, 2.0}, at::kDouble, ReduceOp::Average) == 1.5);
}

// Catches: bf16 rounded at each addition, cut instead of rounded to even, or a NaN that becomes infinity.
BOOST_AUTO_TEST_CASE(bf16_is_summed_in_fp32_and_rounded_once) {
  // 256 + 1 + 1: with bf16's 8 bits each single addition would fall back to 256.
  BOOST_TEST(fold<std::uint16_t>({bf16(256), bf16(1), bf16(1)}, at::kBFloat16, ReduceOp::Sum) == bf16(258));
  BOOST_TEST(fold<std::uint16_t>({bf16(256), bf16(1)}, at::kBFloat16, ReduceOp::Sum) == bf16(256));
  BOOST_TEST(fold<std::uint16_t>({bf16(258), bf16(1)}, at::kBFloat16, ReduceOp::Sum) == bf16(260));
  BOOST_TEST(fold<std::uint16_t>({bf16(3), bf16(4)}, at::kBFloat16, ReduceOp::Average) == bf16(3.5));
  auto nan = fold<std::uint16_t>({bf16(1), 0x7fff}, at::kBFloat16, ReduceOp::Sum);
  BOOST_TEST(std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(nan) << 16)));
}

// Catches: a NaN that a maximum hides, on either side; a signed maximum taken of unsigned values.
BOOST_AUTO_TEST_CASE(maxima) {
  float nan = std::nanf("");
  BOOST_TEST(std::isnan(fold<float>({1.0f, nan, 2.0f}, at::kFloat, ReduceOp::Max)));
  BOOST_TEST(std::isnan(fold<float>({nan, 1.0f}, at::kFloat, ReduceOp::Max)));
  BOOST_TEST(fold<std::int64_t>({-5, 3, -7}, at::kLong, ReduceOp::Max) == 3);
  BOOST_TEST(fold<std::int32_t>({-5, -3}, at::kInt, ReduceOp::Max) == -3);
  BOOST_TEST(fold<std::uint8_t>({200, 100}, at::kByte, ReduceOp::Max) == 200);
}

// Catches: blocks whose last, shorter one is folded wrongly.
BOOST_AUTO_TEST_CASE(every_length_is_folded) {
  for (std::int64_t count : {1, 7, 1023, 1024, 1025, 5000}) {
    std::vector<float> a(count), b(count), out(count);
    for (std::int64_t i = 0; i < count; ++i) a[i] = i, b[i] = 2 * i;
    const void* inputs[] = {a.data(), b.data()};
    reduce_in_order(out.data(), inputs, count, at::kFloat, ReduceOp::Sum);
    for (std::int64_t i = 0; i < count; ++i) BOOST_REQUIRE(out[i] == 3.0f * i);
  }
}

// Catches: two ranks on one device; ranks that see one device each and take none; a rank beyond the devices.
BOOST_AUTO_TEST_CASE(devices_are_chosen_by_local_rank) {
  using Chosen = std::vector<std::optional<int>>;
  BOOST_TEST((choose_devices({{"a", "b"}, {"a", "b"}}) == Chosen{0, 1}));
  BOOST_TEST((choose_devices({{"a"}, {"b"}}) == Chosen{0, 0}));
  BOOST_TEST((choose_devices({{"a", "b"}, {"c", "d"}}) == Chosen{0, 1}));
  BOOST_TEST((choose_devices({{"b", "a"}, {"a", "b"}}) == Chosen{0, 0}));
  BOOST_TEST(
      (choose_devices({{"a", "b", "c", "d"}, {"a", "b", "c", "d"}, {"a", "b", "c", "d"}, {"a", "b", "c", "d"}}) ==
       Chosen{0, 1, 2, 3}));
  BOOST_TEST((choose_devices({{"a"}, {"b"}, {"c"}, {"d"}}) == Chosen{0, 0, 0, 0}));
  BOOST_TEST((choose_devices({{"a", "b"}, {"a", "b"}, {"c", "d"}, {"c", "d"}}) == Chosen{0, 1, 0, 1}));
  BOOST_TEST((choose_devices({{"a"}, {"a"}}) == Chosen{0, std::nullopt}));
  BOOST_TEST((choose_devices({{}, {"a"}}) == Chosen{std::nullopt, 0}));
  BOOST_TEST(why_no_device({{"a"}, {"a"}}, {4, 5}, 1) == "rank 5 has no CUDA device of its own: a is used by rank 4");
  BOOST_TEST(why_no_device({{}}, {3}, 0) == "rank 3 sees no CUDA device");
}

namespace {

/// What the check says of this environment; empty if nothing.
template <class Check>
std::string refusal(const Variables& values, const Check& check) {
  Environment environment(values);
  try {
    check();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

bool holds(const std::string& text, std::initializer_list<const char*> parts) {
  return std::ranges::all_of(parts, [&](auto part) { return text.find(part) != std::string::npos; });
}

}  // namespace

// Catches: processes that do not find each other and would each train alone; a refusal of a launch that is right; the
// wrong number in the command that is given.
BOOST_AUTO_TEST_CASE(launchers_that_make_no_world_are_refused) {
  auto commands = {"mpirun -n 8", "srun --mpi=pmix -n 8"};
  auto before = check_launcher_environment;
  BOOST_TEST(holds(refusal({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "5"}}, before), commands));
  BOOST_TEST(holds(refusal({{"PMI_RANK", "0"}, {"PMI_SIZE", "8"}}, before), commands));
  BOOST_TEST(holds(refusal({{"PMI_RANK", "0"}, {"PMI_SIZE", "8"}}, before), {"another MPI"}));
  BOOST_TEST(refusal({{"SLURM_STEP_NUM_TASKS", "8"}, {"PMIX_RANK", "3"}}, before).empty());
  BOOST_TEST(refusal({{"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_RANK", "3"}}, before).empty());
  BOOST_TEST(refusal({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}, before).empty());
  BOOST_TEST(refusal({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, before).empty());

  Variables srun{{"SLURM_STEP_NUM_TASKS", "8"}, {"PMIX_RANK", "3"}};
  Variables mpirun{{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}};
  for (auto& launch : {srun, mpirun}) {
    BOOST_TEST(holds(refusal(launch, [] { check_launched_world(1); }), commands));
    BOOST_TEST(refusal(launch, [] { check_launched_world(8); }).empty());
  }
  BOOST_TEST(refusal({}, [] { check_launched_world(1); }).empty());
}

// Catches: an error that every process of a step prints; the shell of a batch job taken for one of its tasks.
BOOST_AUTO_TEST_CASE(the_rank_is_known_before_mpi_is) {
  auto launch_of = [](const Variables& values) {
    Environment environment(values);
    auto launch = launch_of_environment();
    return std::pair(launch.rank, launch.size.value_or(0));
  };
  using Launched = std::pair<int, int>;
  BOOST_TEST((launch_of({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}}) == Launched(3, 8)));
  BOOST_TEST((launch_of({{"PMIX_RANK", "3"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "3"}}) == Launched(3, 8)));
  BOOST_TEST((launch_of({{"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "8"}}) == Launched(5, 8)));
  BOOST_TEST((launch_of({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}) == Launched(2, 4)));
  BOOST_TEST((launch_of({{"SLURM_PROCID", "0"}}) == Launched(0, 1)));
  BOOST_TEST((launch_of({}) == Launched(0, 1)));
}

// Catches: a job that is taken for another one, or its restart for a first start: it would empty what it has made, or
// find its own folder locked.
BOOST_AUTO_TEST_CASE(the_batch_job_is_known) {
  auto job_of = [](const Variables& values) {
    Environment environment(values);
    auto job = batch_job_of_environment();
    return job.id + ", " + job.chain + ", " + (job.restarts ? std::to_string(*job.restarts) : "unknown");
  };
  BOOST_TEST(job_of({{"SLURM_JOB_ID", "12"}}) == "slurm 12, slurm 12, 0");
  BOOST_TEST(job_of({{"SLURM_JOB_ID", "12"}, {"SLURM_RESTART_COUNT", "2"}}) == "slurm 12, slurm 12, 2");
  BOOST_TEST(job_of({{"SLURM_JOB_ID", "14"}, {"SLURM_ARRAY_JOB_ID", "12"}, {"SLURM_ARRAY_TASK_ID", "3"}}) ==
             "slurm 12_3, slurm 12_3, 0");
  BOOST_TEST(job_of({{"PBS_JOBID", "12.pbs"}}) == "pbs 12.pbs, pbs 12.pbs, unknown");
  BOOST_TEST(job_of({{"PBS_JOBID", "12[3].pbs"}, {"MESHARD_CHAIN", "9[3].pbs"}}) ==
             "pbs 12[3].pbs, pbs 9[3].pbs, unknown");
  BOOST_TEST(job_of({{"PBS_JOBID", "12.pbs"}, {"PBS_ENVIRONMENT", "PBS_INTERACTIVE"}}) == "pbs 12.pbs, pbs 12.pbs, 0");
  BOOST_TEST(job_of({{"MESHARD_CHAIN", "9.pbs"}}) == ", , unknown");
}

namespace {

/// A rank whose last collective is an all_gather of this sequence number, inside which it waits if `waits`.
FlightSnapshot ring(int rank, std::uint64_t sequence, bool waits) {
  FlightSnapshot ring;
  ring.rank = rank;
  ring.pid = 100 + rank;
  ring.host = "node7";
  ring.phase = "training";
  ring.phase_since = 900;
  ring.sequence = sequence;
  ring.waiting = waits ? sequence : 0;
  ring.waiting_since = 990;
  for (auto each = sequence; each > 0 && each + 3 > sequence; --each) {
    auto& entry = ring.entries[each % kFlightEntries];
    entry.sequence = each;
    entry.bytes = 4096;
    entry.entered = 980;
    entry.left = each < sequence ? 985.0 : 0.0;
    copy_text(entry.operation, "all_gather");
    copy_text(entry.axis, "dp_shard");
    copy_text(entry.unit, "model.layers.1");
  }
  return ring;
}

std::string first_line(std::vector<std::optional<FlightSnapshot>> rings, std::vector<bool> silent) {
  auto text = hang_report({1000, 10, 0, "/dump", std::move(rings), std::move(silent)});
  return text.substr(0, text.find('\n'));
}

}  // namespace

// Catches: a summary that blames a rank that waits, or names the collective before or after the missing one.
BOOST_AUTO_TEST_CASE(the_rank_that_is_behind_is_named) {
  BOOST_TEST(first_line({ring(0, 57, true), ring(1, 56, false), ring(2, 57, true)}, {false, false, false}) ==
             "hang: rank 1 (host node7, pid 101) did not enter all_gather #57 on axis dp_shard, unit model.layers.1 "
             "(4096 bytes)");
  BOOST_TEST(first_line({ring(0, 57, true), ring(1, 57, true)}, {false, true}) ==
             "hang: rank 1 (host node7, pid 101) does not finish all_gather #57 on axis dp_shard, unit model.layers.1 "
             "(4096 bytes), and it shows no sign of life");
  BOOST_TEST(first_line({ring(0, 57, true), ring(1, 57, false)}, {false, false})
                 .starts_with("hang: rank 1 (host node7, pid 101) entered, but does not wait for, all_gather #57"));
  BOOST_TEST(first_line({ring(0, 57, true), ring(1, 57, true)}, {false, false}) ==
             "hang: no rank is behind; all are inside the same collective");
  BOOST_TEST(first_line({ring(0, 2, true), ring(1, 0, false)}, {false, false})
                 .starts_with("hang: rank 1 (host node7, pid 101) did not enter all_gather #1 "));
}

// Catches: a report that keeps silent about rings on hosts it cannot see.
BOOST_AUTO_TEST_CASE(rings_out_of_reach_are_counted) {
  auto text =
      hang_report({1000, 10, 0, "/dump", {ring(0, 3, true), std::nullopt, std::nullopt}, {false, false, false}});
  BOOST_TEST(text.find("the rings of 2 of 3 ranks could not be read") != std::string::npos);
  BOOST_TEST(text.find("waits since 10.0 s") != std::string::npos);
}

// Catches: a ring of an earlier start in the same folder taken for one of this start; text that overruns its field.
BOOST_AUTO_TEST_CASE(a_ring_is_read_back) {
  auto folder = std::filesystem::temp_directory_path() / ("meshard-ring-" + std::to_string(::getpid()));
  {
    FlightRecorder file(folder, 2);
    file.ring().launch = 7;
    file.ring().rank = 2;
    copy_text(file.ring().phase, std::string(100, 'p'));
    file.ring().sequence = 5;
    BOOST_TEST(read_flight_record(folder, 2, 7)->sequence == 5u);
    BOOST_TEST(read_flight_record(folder, 2, 7)->phase == std::string(31, 'p'));
    BOOST_TEST(!read_flight_record(folder, 2, 8));
    BOOST_TEST(!read_flight_record(folder, 3, 7));
  }
  std::filesystem::remove_all(folder);
  BOOST_CHECK_THROW(FlightRecorder("/dev/null/folder", 0), IoError);
}
