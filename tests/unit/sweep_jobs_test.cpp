#include <fmt/format.h>
#include <signal.h>

#include "sweep/batch.h"
#include "sweep/jobs.h"
#include "sweep/process.h"
#include "unit/sweep_fixture.h"

using namespace meshard;
using namespace meshard::testing;
namespace tt = boost::test_tools;

// Catches: indices that an array job gets too many or too few of.
BOOST_FIXTURE_TEST_CASE(array_jobs_are_noted_by_index, SweepFixture) {
  for (auto& [indices, text] : std::vector<std::pair<std::vector<int>, std::string>>{
           {{0}, "0"}, {{0, 1}, "0-1"}, {{0, 1, 2, 5, 7, 8}, "0-2,5,7-8"}, {{3, 10}, "3,10"}}) {
    BOOST_TEST(index_ranges(indices) == text);
    BOOST_TEST(indices_of(text) == indices, tt::per_element());
  }
  for (auto text : {"x", "1,", "1-", "1;2", "-1"})
    BOOST_TEST(refusal_of([&] { indices_of(text); }) != "accepted", text);
  SweepFolder sweep(out);
  BOOST_TEST(submitted_jobs(out).empty());
  sweep.add_job({"slurm", "12", {0, 1, 2}});
  sweep.add_job({"pbs", "7[].host", {4}});
  BOOST_TEST(read(out / "jobs.txt") == "slurm 12 0-2\npbs 7[].host 4\n");
  auto jobs = submitted_jobs(out);
  BOOST_TEST(jobs.size() == 2);
  BOOST_TEST((jobs[1].system == "pbs" && jobs[1].id == "7[].host" && jobs[1].indices == std::vector<int>{4}));
  write(out / "jobs.txt", "slurm 12\n");
  BOOST_TEST(says(refusal_of([&] { submitted_jobs(out); }), {"jobs.txt: `slurm 12`"}));
}

// Catches: settings of the site that are lost, or win over the size of a point; -J ranges that PBS refuses; settings of
// the environment that do not reach the jobs.
BOOST_FIXTURE_TEST_CASE(batch_commands_are_complete, SweepFixture) {
  BatchSettings settings{"/m/jobs", "/s/lr", {"acc", "part", 4, "300", {"--qos=long", "-x", "n1"}}, 3, {}};
  auto slurm = slurm_command(settings, {4, 2}, {0, 1, 2, 5});
  BOOST_TEST(slurm.command == (Texts{"sbatch", "--parsable", "--account=acc", "--partition=part", "--gpus-per-node=4",
                                     "--signal=B:USR1@300", "--cpus-per-task=2", "--qos=long", "-x", "n1",
                                     "--array=0-2,5%3", "--ntasks=4", "/m/jobs/slurm/array.sbatch", "/s/lr"}),
             tt::per_element());
  auto pbs = pbs_commands(settings, {2, 8}, {0, 1, 2, 5});
  BOOST_TEST(pbs.size() == 2);
  BOOST_TEST(pbs[0].command == (Texts{"qsub", "-A", "acc", "-q", "part", "--qos=long", "-x", "n1", "-l",
                                      "select=2:ncpus=8:mpiprocs=1:ompthreads=8:ngpus=1", "-J", "0-2", "-v",
                                      "SWEEP=/s/lr", "/m/jobs/pbs/array.pbs"}),
             tt::per_element());
  BOOST_TEST(pbs[1].indices == std::vector<int>{5}, tt::per_element());
  BOOST_TEST(pbs[1].command.at(11) == "SWEEP=/s/lr,INDEX=5");
  settings.given = {"MESHARD_MPI_OPTIONS", "PREFLIGHT"};
  BOOST_TEST(pbs_commands(settings, {2, 8}, {5})[0].command.at(11) ==
             "SWEEP=/s/lr,INDEX=5,MESHARD_MPI_OPTIONS,PREFLIGHT");
  BOOST_TEST(slurm_command(settings, {4, 2}, {0, 1, 2, 5}).command == slurm.command, tt::per_element());
  for (auto& [options, exports] :
       std::vector<std::pair<Texts, Texts>>{{{"--export=ALL,A=b"}, {}},
                                            {{"--export=NONE"}, {"--export=MESHARD_MPI_OPTIONS,PREFLIGHT"}},
                                            {{"--export", "A"}, {"--export=A,MESHARD_MPI_OPTIONS,PREFLIGHT"}}}) {
    settings.site.options = options;
    Texts told;
    for (auto& word : slurm_command(settings, {1, 0}, {0}).command) {
      if (word.starts_with("--export=") && word != options[0]) told.push_back(word);
    }
    BOOST_TEST(told == exports, tt::per_element());
  }
  settings.given.clear();
  settings.site = {};
  settings.at_a_time.reset();
  BOOST_TEST(slurm_command(settings, {1, 0}, {0}).command ==
                 (Texts{"sbatch", "--parsable", "--array=0", "--ntasks=1", "/m/jobs/slurm/array.sbatch", "/s/lr"}),
             tt::per_element());

  write(folder / "site.env",
        "MESHARD_ACCOUNT=a MESHARD_GPUS_PER_NODE=2 MESHARD_SUBMIT_OPTIONS='-b  *'\necho noise\n");
  auto site = site_settings(folder);
  BOOST_TEST((site.account == "a" && site.partition.empty() && site.gpus_per_node == 2 && site.stop_before_s.empty()));
  BOOST_TEST(site.options == (Texts{"-b", "*"}), tt::per_element());
  write(folder / "site.env", "MESHARD_GPUS_PER_NODE=two\n");
  BOOST_TEST(says(refusal_of([&] { site_settings(folder); }), {"MESHARD_GPUS_PER_NODE is 'two'"}));
  fs::remove(folder / "site.env");
  BOOST_TEST(says(refusal_of([&] { site_settings(folder); }), {"cannot read " + (folder / "site.env").string()}));
}

// Catches: a lock whose batch job is taken for another; a lock that is removed although somebody else has taken it.
BOOST_FIXTURE_TEST_CASE(locks_of_batch_jobs_are_told, SweepFixture) {
  for (auto& [text, system, id] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"slurm 12_3", "slurm", "12"}, {"slurm 12", "slurm", "12"}, {"pbs 5[3].server", "pbs", "5[3].server"}}) {
    auto job = job_of_lock(text, 3);
    BOOST_REQUIRE(job.has_value());
    BOOST_TEST((job->system == system && job->id == id && job->indices == std::vector{3}), text);
  }
  for (auto text : {"", "slurm", "slurm ", "lsf 3"}) BOOST_TEST(!job_of_lock(text, 0).has_value(), text);

  write(folder / "lock", R"({"host":"far","pid":1,"start":"1","job":"pbs 5[3].server"})");
  auto holder = FolderLock::holder(folder);
  BOOST_REQUIRE(holder.has_value());
  BOOST_TEST((holder->job == "pbs 5[3].server" && !holder->here));
  write(folder / "lock", R"({"host":"far","pid":1,"start":"1","job":"pbs 6.server"})");
  BOOST_TEST(!FolderLock::remove(folder, *holder));
  BOOST_TEST(FolderLock::remove(folder, *FolderLock::holder(folder)));
  BOOST_TEST(!fs::exists(folder / "lock"));
}

// Catches: a command whose output or exit code is lost, or that waits for input.
BOOST_AUTO_TEST_CASE(commands_are_run_to_their_end) {
  auto result = run_command({"sh", "-c", "cat; echo out; echo err >&2; exit 3"});
  BOOST_TEST(result.exit == 3);
  BOOST_TEST(result.out == "out\n");
  BOOST_TEST(result.err == "err\n");
  BOOST_TEST(run_command({"sh", "-c", "kill -TERM $$"}).exit == 128 + SIGTERM);
  auto missing = run_command({"no-such-program-of-meshard"});
  BOOST_TEST(missing.exit == 127);
  BOOST_TEST(says(missing.err, {"cannot start no-such-program-of-meshard: No such file"}));
}

namespace {

/// Notes what it hears, as "started 0".
class Recorder : public JobWatcher {
 public:
  Texts heard;
  std::vector<JobTurn> turns;
  std::size_t running = 0, most = 0;
  int ticks = 0, stop_at_tick = 0, signal = SIGTERM;

  JobTurn turn(std::size_t job) override { return job < turns.size() ? turns[job] : JobTurn::Start; }
  void started(std::size_t job) override {
    most = std::max(most, ++running);
    heard.push_back(fmt::format("started {}", job));
  }
  void ended(std::size_t job, int exit) override {
    --running;
    heard.push_back(fmt::format("ended {} with {}", job, exit));
  }
  void skipped(std::size_t job) override { heard.push_back(fmt::format("skipped {}", job)); }
  void refused(std::size_t job, const std::string&) override { heard.push_back(fmt::format("refused {}", job)); }
  void tick(bool) override {
    if (++ticks == stop_at_tick) raise(signal);
    if (ticks == 5) std::ranges::replace(turns, JobTurn::Wait, JobTurn::Start);
  }
};

LocalJob shell(const std::string& script, const fs::path& log = "/dev/null") {
  return {{"bash", "-c", script}, log};
}

}  // namespace

// Catches: more points at a time than asked for, a failed one that stops the others, an exit code that is lost.
BOOST_FIXTURE_TEST_CASE(local_jobs_run_so_many_at_a_time, SweepFixture) {
  auto log = folder / "log";
  std::vector<LocalJob> jobs;
  for (int exit : {0, 70, 75, 0}) jobs.push_back(shell(fmt::format("sleep 0.1; echo {0}; exit {0}", exit), log));
  jobs.push_back(shell("exit 1", folder / "nowhere/log"));
  Recorder recorder;
  BOOST_TEST(!run_local_jobs(jobs, 2, recorder));
  BOOST_TEST(recorder.most == 2);
  for (auto text : {"ended 0 with 0", "ended 1 with 70", "ended 2 with 75", "ended 3 with 0", "refused 4"}) {
    BOOST_TEST(std::ranges::count(recorder.heard, text) == 1, text);
  }
  BOOST_TEST(recorder.heard.size() == 9);
  BOOST_TEST(lines_of(read(log)).size() == 4);

  Recorder one;
  one.turns = {JobTurn::Wait, JobTurn::Skip, JobTurn::Start};
  run_local_jobs({shell(""), shell(""), shell("")}, 1, one);
  BOOST_TEST(one.heard == (Texts{"started 0", "ended 0 with 0", "skipped 1", "started 2", "ended 2 with 0"}),
             tt::per_element());
}

// Catches: a stop that kills points, starts further ones, or ends before they do.
BOOST_AUTO_TEST_CASE(a_stop_is_passed_on_and_waited_for) {
  for (auto [signal, exit] : {std::pair{SIGTERM, 15}, {SIGINT, 2}, {SIGUSR1, 15}}) {
    auto trapping = shell("trap 'sleep 0.3; exit 15' TERM; trap 'sleep 0.3; exit 2' INT; while :; do sleep 0.05; done");
    Recorder recorder;
    recorder.stop_at_tick = 12;  // the traps are set by then
    recorder.signal = signal;
    BOOST_TEST(run_local_jobs({trapping, shell("")}, 1, recorder));
    BOOST_TEST(recorder.heard == (Texts{"started 0", fmt::format("ended 0 with {}", exit)}), tt::per_element());
  }
}
