#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "report/sources.h"
#include "unit/report_folder.h"

using namespace meshard;
using namespace meshard::report_test;
namespace tt = boost::test_tools;

namespace {

std::vector<std::string> names_of(const RunsReport& report) {
  std::vector<std::string> names;
  for (auto& run : report.runs) names.push_back(run.name);
  return names;
}

std::string remarks_of(const RunReport& run) {
  std::string text;
  for (auto& remark : run.remarks) text += remark + "\n";
  return text;
}

template <typename Call>
std::string refusal_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

using Names = std::vector<std::string>;

}  // namespace

// Catches: a folder taken for another kind, points in another order or lost, a run that stands twice.
BOOST_FIXTURE_TEST_CASE(runs_sweeps_and_folders_are_found, ReportFolder) {
  run("runs/b", {kHeader});
  run("runs/a", {kHeader});
  fs::create_directories(folder / "runs/empty");
  write("runs/notes.txt", "");
  write("runs/lr/sweep.json", R"({"points":[{"name":"p2","settings":{"x.y":2}},{"name":"a","settings":{"x.y":"t"}}]})");
  write("runs/lr/points.txt", "p2\na\np3\n");
  run("runs/lr/a", {kHeader});
  auto sources = find_runs({folder / "runs", folder / "runs/lr", folder / "runs/b/"});
  Names names;
  for (auto& source : sources) names.push_back(fs::relative(source.folder, folder).string() + " " + source.name);
  auto full = [&](const char* name) { return (folder / name).string(); };
  BOOST_TEST(names == (Names{"runs/a " + full("runs/a"), "runs/b b", "runs/lr/p2 p2", "runs/lr/a " + full("runs/lr/a"),
                             "runs/lr/p3 p3"}),
             tt::per_element());
  BOOST_TEST((sources[2].settings == Settings{{"x.y", "2"}}));
  BOOST_TEST((sources[3].settings == Settings{{"x.y", "t"}}));
  BOOST_TEST(sources[4].settings.empty());
}

// Catches: a wrong argument that gives an empty report, or a message without its name.
BOOST_FIXTURE_TEST_CASE(what_is_no_run_is_refused, ReportFolder) {
  auto refusal = [&](const fs::path& path) { return refusal_of([&] { make_report({path}, kVersion); }); };
  BOOST_TEST(says(refusal(folder / "nowhere"), {"nowhere: No such file", "expected a run's folder"}));
  BOOST_TEST(says(refusal(write("file.txt", "x")), {"file.txt: Not a directory"}));
  fs::create_directories(folder / "empty/inside");
  BOOST_TEST(says(refusal(folder / "empty"), {"empty: no run", "sweep.json"}));
  write("s/points.txt", "a\n");
  for (auto text : {"", "{", "{\"points\":1}", "{\"points\":[{\"name\":1}]}", "[]"}) {
    write("s/sweep.json", text);
    BOOST_TEST(says(refusal(folder / "s"), {"s/sweep.json is no list of a sweep's points"}));
  }
  write("s/sweep.json", R"({"points":[]})");
  write("s/points.txt", "\n");
  BOOST_TEST(says(refusal(folder / "s"), {"s/points.txt names no point"}));
  BOOST_TEST(says(refusal(run("other", {"# steps", "1 2 3"})), {"other is no run", "no line of one"}));
}

// Catches: a state, a fault or a missing part that goes unsaid, or makes the whole report fail.
BOOST_FIXTURE_TEST_CASE(faults_of_a_run_are_remarks, ReportFolder) {
  auto remarks = [&](const std::vector<std::string>& lines, const std::string& config = "{}") {
    return remarks_of(report({run("r", lines, config).filename()}).runs.at(0));
  };
  const std::vector<std::string> good{kHeader, step_line(1, 3.0), step_line(2, 2.0), kDone};
  BOOST_TEST(remarks(good) == "");
  BOOST_TEST(remarks({kHeader}) == "no step logged\n");
  BOOST_TEST(
      says(remarks({kHeader, step_line(1, 3.0), "{\"st"}), {"1 line that is none of a run's, first metrics.jsonl:3"}));
  BOOST_TEST(says(remarks({R"({"header":{"versions":"meshard 9.8.7\n"}})", step_line(1, 3.0)}),
                  {"written by version 9.8.7; this is 0.1.0"}));
  BOOST_TEST(says(remarks({R"({"header":{"versions":3,"steps_done":"x","places":[1]}})", step_line(1, 3.0)}),
                  {"a version that its header does not name"}));
  BOOST_TEST(says(remarks({step_line(1, 3.0)}), {"no header line"}));
  BOOST_TEST(says(remarks({kHeader, step_line(1, NAN), step_line(2, NAN), step_line(3, 1.0)}),
                  {"not finite at 2 logged steps, first step 1"}));
  BOOST_TEST(says(remarks({R"({"header":{"fault":"count_in_eval"}})", kHeader, step_line(1, 1.0)}),
                  {"fault on: count_in_eval"}));
  BOOST_TEST(
      says(remarks({kHeader, R"({"end":{"exit":70,"step":3,"reason":"rank 1: disk full"}})"}), {"rank 1: disk full"}));
  BOOST_TEST(says(remarks({kHeader, R"({"step":1,"loss":1,"moe":{"layers":[{"layer":1,"dead":2,"dropped":7}]}})"}),
                  {"7 pairs dropped", "2 experts without a token at the end"}));
  BOOST_TEST(says(remarks(good, "a: [b"), {"config.yaml cannot be read"}));
  BOOST_TEST(says(remarks(good, "text"), {"config.yaml is no config"}));

  write("torn/metrics.jsonl", kHeader + "\n" + step_line(1, 3.0) + "\n{\"step\":2,\"lo");
  auto torn = report({"torn"}).runs.at(0);
  BOOST_TEST(remarks_of(torn) == "its last line is cut off\nthere is no config.yaml\n");
  BOOST_TEST(torn.state_name == "died");
  BOOST_TEST(torn.state.step == 1);
}

// Catches: a checkpoint that was deleted and is not missed, or one that is missed although it is there.
BOOST_FIXTURE_TEST_CASE(deleted_checkpoints_are_missed, ReportFolder) {
  auto remarks = [&](const std::string& end, const std::string& config) {
    return remarks_of(
        report({run("r", {kHeader, step_line(10, 3.0), step_line(20, 3.0), end}, config).filename()}).runs.at(0));
  };
  const std::string stopped = R"({"end":{"exit":75,"step":20,"reason":"its checkpoint is complete"}})",
                    failed = R"({"end":{"exit":70}})";
  const std::string every = "checkpoint: {interval: 10}", none = "checkpoint: {interval: 0}";
  auto gone = "its checkpoints are gone: nothing to resume from or to evaluate\n";
  BOOST_TEST(remarks(stopped, none) == gone);
  BOOST_TEST(remarks(kDone, every) == gone);
  BOOST_TEST(says(remarks(failed, every), {gone}));
  BOOST_TEST(remarks(kDone, none) == "");
  write("r/checkpoints/step-00000010/.metadata", "");
  write("r/checkpoints/step-00000020.partial/.metadata", "");
  write("r/checkpoints/step-00000020/data", "");
  BOOST_TEST(remarks(stopped, none) == "the checkpoint of its last step, 20, is gone; the newest is of step 10\n");
  BOOST_TEST(!says(remarks(failed, every), {"gone"}));
  write("r/checkpoints/step-00000020/.metadata", "");
  BOOST_TEST(remarks(stopped, none) == "");
  BOOST_TEST(remarks(kDone, every) == "");
}

/// Five runs and a missing point: names in the order they should have.
struct SweepFolder : ReportFolder {
  SweepFolder() {
    auto config = [](const char* lr) { return fmt::format("optimizer: {{lr: {}}}\nrun: {{name: x{}}}\n", lr, lr); };
    write("s/sweep.json", R"({"points":[{"name":"gone","settings":{"optimizer.lr":0.5,"run.seed":1}}]})");
    write("s/points.txt", "gone\nfailed\nno eval\nworse\nbest\nrunning\n");
    run("s/failed",
        {kHeader, step_line(1, 1.0), eval_line(1, 0.1), R"({"end":{"exit":70,"step":1,"reason":"bad, \"very\""}})"},
        config("0.1"));
    run("s/no eval", {kHeader, step_line(1, 0.5), kDone}, config("0.2"));
    run("s/worse",
        {kHeader, step_line(1, 3.0), eval_line(1, 2.5), kHeader, step_line(2, 3.0), eval_line(2, 2.75), kDone},
        config("1.0e-05"));
    run("s/best", {kHeader, step_line(1, 3.0), eval_line(1, 1.5), kDone}, config("1e-5"));
    run("s/running", {kHeader, step_line(1, 3.0)}, config("0.2"));
    write("s/running/lock", Json{{"host", "another"}, {"pid", 1}, {"start", "1"}}.dump());
  }
};

// Catches: a failed run on top, a missing one left out, an order that depends on the threads.
BOOST_FIXTURE_TEST_CASE(the_best_run_comes_first, SweepFolder) {
  auto report = this->report({"s"});
  BOOST_TEST(names_of(report) == (Names{"best", "worse", "no eval", "running", "failed", "gone"}), tt::per_element());
  Names states;
  for (auto& run : report.runs) states.push_back(run.state_name);
  BOOST_TEST(states == (Names{"done", "done", "done", "running", "failed", "missing"}), tt::per_element());
  BOOST_TEST(report.settings == (Names{"optimizer.lr"}), tt::per_element());  // the seed of one run differs from none
  BOOST_TEST((report.runs[0].settings == Settings{{"optimizer.lr", "1e-05"}}));
  BOOST_TEST((report.runs[5].settings == Settings{{"optimizer.lr", "0.5"}}));
}

// Catches: a table that wraps, whose columns shift, that tells a number of another run or hides what is wrong.
BOOST_FIXTURE_TEST_CASE(the_table_is_one_line_a_run, SweepFolder) {
  BOOST_TEST(
      report_table(report({"s"}), 120) ==
      "run      state      steps  held-out  at    last    bpb    loss  tok/s  memory  requeues  in steps     lr\n"
      "best     done           1    1.5000   1  1.5000  4.500  3.0000    100    0 MB         0      0:00  1e-05\n"
      "worse    done           2    2.5000   1  2.7500  7.500  3.0000    100    0 MB         1      0:00  1e-05\n"
      "no eval  done           1         -   -       -  1.000  0.5000    100    0 MB         0      0:00    0.2\n"
      "running  running        1         -   -       -  6.000  3.0000    100    0 MB         0      0:00    0.2\n"
      "failed   failed 70      1    0.1000   1  0.1000  0.300  1.0000    100    0 MB         0      0:00    0.1\n"
      "gone     missing        -         -   -       -      -       -      -       -         -         -    0.5\n"
      "\nremarks\n"
      "  failed: bad, \"very\"\n"
      "\nsettings that differ, values from the best run to the worst\n"
      "  optimizer.lr  1e-05, 0.2, 0.1, 0.5\n");
  std::string longest = "lr=0.001,a_very_long_\x1b[31mname_of_a_key=12345,\xc3\xa4\xc3\xb6seed=3";
  run("s/" + longest, {kHeader, step_line(1, 9.0), eval_line(1, 9.0)});
  for (int width : {80, 100, 120}) {
    auto text = report_table(report({"s", "s/" + longest}), width);
    BOOST_TEST(text.find('\x1b') == std::string::npos);
    auto table = text.substr(0, text.find("\n\n"));
    std::size_t widest = 0;
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = table.find('\n', begin);
      auto line = table.substr(begin, end - begin);
      widest = std::max<std::size_t>(widest, std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }));
    }
    BOOST_TEST(widest <= static_cast<std::size_t>(width));
    BOOST_TEST(says(table, {"lr=0.001", "seed=3", ".."}));
  }
}

/// Two runs that differ in thirteen settings; one of them is called as a result is, two end alike, one is long.
struct ManySettings : ReportFolder {
  ManySettings() {
    for (int i : {1, 2}) {
      std::string model;
      for (const char* key : {"a", "b", "c", "d", "e", "f", "g", "h"})
        model += fmt::format("{}{}: {}{}, ", key, key, i, i);
      auto config = fmt::format("data: {{files: {}, type: y{}}}\nmodel: {{{}zz: 0}}\n",
                                std::string(30, static_cast<char>('k' + i)), i, model) +
                    fmt::format("optimizer: {{lr: 0.{}}}\ntrain: {{steps: {}, type: x{}}}\n", i, 100 * i, i);
      run(fmt::format("run{}", i), {kHeader, step_line(1, i), eval_line(1, i), kDone}, config);
    }
  }
  std::string header(int width) const {
    auto text = report_table(report({"run1", "run2"}), width);
    return text.substr(0, text.find('\n'));
  }
};

// Catches: results behind settings, or left out for them; two columns of one title; a long value that takes
// the room of others.
BOOST_FIXTURE_TEST_CASE(results_stand_before_settings, ManySettings) {
  const std::string results =
      "run   state  steps  held-out  at    last    bpb    loss  tok/s  memory  requeues  in steps";
  const std::string settings = "  data.type  aa  bb  cc  dd  ee  ff  gg  hh   lr  train.steps  train.type";
  for (int width : {200, 400}) BOOST_TEST(header(width) == results + settings);
  auto least = static_cast<int>(results.size());
  BOOST_TEST(header(least + 3) == results);
  BOOST_TEST(header(least + 10) == results + "  aa  bb");
  for (int width : {60, 80, 90}) {
    auto narrow = header(width);
    BOOST_TEST(says(narrow, {"run ", "state", "held-out", "loss", "tok/s"}));
    BOOST_TEST(!says(narrow, {"aa"}));
  }
}

// Catches: columns of a script's CSV file that move when runs come to differ in one setting more.
BOOST_FIXTURE_TEST_CASE(the_csv_has_results_in_one_order_and_then_settings, ManySettings) {
  const std::string results =
      "run,folder,state,exit,reason,step,steps,best_eval_loss,best_eval_step,final_eval_loss,bits_per_byte,final_loss,"
      "tokens_per_s,step_ms,data_ms,comm_ms,comm_busy_ms,checkpoint_stall_ms,mem_peak_bytes,requeues,time_in_steps_s,"
      "dropped_pairs,nonfinite_lines,mesh,hosts,parameters,active_parameters,version,remarks";
  auto header_of = [&](const std::vector<std::string>& runs) {
    auto text = report_csv(report(runs));
    return text.substr(0, text.find("\r\n"));
  };
  BOOST_TEST(header_of({"run1"}) == results);
  BOOST_TEST(header_of({"run1", "run2"}) ==
             results +
                 ",data.files,data.type,model.aa,model.bb,model.cc,model.dd,model.ee,model.ff,"
                 "model.gg,model.hh,optimizer.lr,train.steps,train.type");
}

// Catches: a CSV file that a comma, a quote or a line end in a name or reason breaks; rounded numbers.
BOOST_FIXTURE_TEST_CASE(the_csv_is_quoted, SweepFolder) {
  run("x,\"y\"\nz", {kHeader, step_line(1, 1.0 / 3), R"({"end":{"exit":0,"reason":"\"done\""}})"});
  auto text = report_csv(report({"x,\"y\"\nz", "s/failed", "s/best"}));
  BOOST_TEST(
      says(text, {"run,folder,state,exit,reason,step,", "\r\n\"x,\"\"y\"\"\nz\",", ",done,0,\"\"\"done\"\"\",1,,",
                  ",0.3333333333333333,", ",failed,70,\"bad, \"\"very\"\"\",1,", "remarks,optimizer.lr\r\n"}));
  BOOST_TEST(text.ends_with(",0.1\r\n"));
}

// Catches: a run whose name, reason or bytes end the page's data and run as a script; data that is no JSON.
BOOST_FIXTURE_TEST_CASE(no_text_of_a_run_leaves_its_place_in_the_page, ReportFolder) {
  const std::string evil = "</script><script>alert(1)</script><!--", bytes = "\xff\xfe";
  run("x", {kHeader, step_line(1, 3.0), step_line(2, NAN), Json{{"end", {{"exit", 70}, {"reason", evil}}}}.dump()});
  auto plain = report_html(report({"x"}), "made");
  fs::rename(folder / "x", folder / (bytes + "<img src=x onerror=alert(1)>"));
  auto page = report_html(report({bytes + "<img src=x onerror=alert(1)>"}), evil);
  auto times = [&](const std::string& part) {
    int count = 0;
    for (auto at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) ++count;
    return count;
  };
  BOOST_TEST(times("<script") == 2);
  BOOST_TEST(times("</script>") == 2);
  BOOST_TEST(times("<!--") == 0);
  BOOST_TEST(times("<img") == 0);
  BOOST_TEST(times("http://") + times("https://") == times("http://www.w3.org/2000/svg"));
  const std::string opening = "<script id=\"data\" type=\"application/json\">";
  auto begin = page.find(opening) + opening.size();
  auto data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  BOOST_TEST(data.at("made") == evil);
  auto& run = data.at("runs").at(0);
  BOOST_TEST(run.at("reason") == evil);
  BOOST_TEST(run.at("name").get<std::string>().ends_with("<img src=x onerror=alert(1)>"));
  BOOST_TEST(run.at("curves").at("loss").dump() == "[[3,null]]");
  BOOST_TEST(run.at("x").dump() == "[1,2]");
}
