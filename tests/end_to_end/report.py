#!/usr/bin/env python3
"""`meshard report`: table, CSV file and page agree with the metrics, say what is wrong, and read well in a browser."""
import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import Metrics, case, expect, main, meshard, scratch, training
from report_browser import browse
from report_runs import (MORE_SETTINGS, config_text, end, evaluation, header, step_lines, write_big_sweep,
                         write_long_runs, write_run)

MOE = "configs/tests/moe.yaml"


def report(*words):
    return meshard("report", *words, limit=120)


def csv_rows(file):
    text = file.read_bytes().decode()
    return {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


def page_data(page):
    """The data that the page draws."""
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])


def table_of(run):
    return run.out.split("\n\n")[0].splitlines()


def table_rows(run):
    """{a run's name: the cells of its line}, for names of one word."""
    return {line.split()[0]: re.split(r"\s{2,}", line) for line in table_of(run)[1:]}


def near(text, number):
    return abs(float(text) - number) <= 1e-9 * max(1.0, abs(number))


def expect_agreement(name, folder, row, cells, drawn):
    """The CSV's row, the table's cells and the page's data of a finished run against its metrics."""
    metrics = Metrics(folder)
    losses, evals = metrics.numbers("loss"), metrics.numbers("eval_loss", metrics.evals)
    best = min(range(len(evals)), key=lambda i: evals[i])
    expect(f"{name}: held-out and last loss", near(row["best_eval_loss"], evals[best])
           and int(row["best_eval_step"]) == metrics.evals[best]["step"] and near(row["final_eval_loss"], evals[-1])
           and near(row["final_loss"], losses[-1]), row)
    expect(f"{name}: state, exit, steps, requeues",
           [row[key] for key in ("state", "exit", "step", "steps", "requeues")] == ["done", "0", "12", "12", "0"], row)
    speeds = metrics.numbers("tokens_per_s")
    expect(f"{name}: tokens/s", near(row["tokens_per_s"], len(speeds) / sum(1 / speed for speed in speeds)), row)
    expect(f"{name}: memory", near(row["mem_peak_bytes"], max(metrics.numbers("mem_peak_bytes"))), row)
    expect(f"{name}: the table has them",
           {"done", "12/12", f"{evals[best]:.4f}", f"{losses[-1]:.4f}"} <= set(cells), cells)
    worst = max(abs(a - b) for a, b in zip(drawn["curves"]["loss"][0], losses))
    expect(f"{name}: the page's curves", worst < 5e-4 and drawn["x"] == list(range(1, 13))
           and drawn["eval_x"] == [line["step"] for line in metrics.evals], drawn)


@case
def real_runs():
    """Catches: a table, CSV or page whose numbers are not those of the run; a run that the report misses."""
    runs = scratch("runs")
    moe = training(runs / "moe", config=MOE,
                   values={"train.steps": 12, "train.eval_interval": 4, "checkpoint.interval": 6})
    dense = training(runs / "dense", 2, values={"train.steps": 12, "train.eval_interval": 5})
    expect("the trainings end", (moe.code, dense.code) == (0, 0), moe, dense)
    table, page = runs.parent / "out.csv", runs.parent / "out.html"
    run = report(runs, "--csv", table, "--html", page)
    expect("exit code 0, nothing on standard error", run.code == 0 and run.err == "", run)
    cells, rows = table_rows(run), csv_rows(table)
    data = {each["name"]: each for each in page_data(page.read_text())["runs"]}
    expect("two runs everywhere", set(cells) == set(rows) == set(data) == {"moe", "dense"}, run)
    for name in ("moe", "dense"):
        expect_agreement(name, runs / name, rows[name], cells[name], data[name])
    maps = data["moe"]["maps"]
    expect("moe: maps of every layer with experts, all steps", maps["steps"] == data["moe"]["x"]
           and [layer["layer"] for layer in maps["layers"]] == [1, 2], maps)
    legend = run.out.split("settings that differ")[-1]
    expect("the settings that differ are listed", "train.eval_interval" in legend, run)
    expect("nothing is missed", "gone" not in run.out, run)
    outside = set(re.findall(r"https?://[^\s\"'`)]*", page.read_text())) - {"http://www.w3.org/2000/svg"}
    expect("the page loads nothing", not outside, outside)
    shutil.rmtree(runs / "moe" / "checkpoints")
    run = report(runs)
    expect("deleted checkpoints are said", re.search(r"  moe: .*its checkpoints are gone", run.out), run)
    look_at_real_runs(page)


def look_at_real_runs(page):
    seen = browse(page, """
        const path = () => one("[data-metric=loss] path.curve").getAttribute("d"), before = path();
        const tip = point_at("[data-metric=loss] svg", 200, 60), cell = point_at("#maps canvas", 1, 1);
        one("[data-metric=loss] button.log").click();
        return {maps: all("#maps canvas").length, experts: one("#maps canvas").height, curves: curves("loss").length,
                tip, cell, before, after: path()};""")
    if seen:
        expect("browser: a curve a run, with values under the pointer", seen["curves"] == 2
               and re.match(r"step \d+\d\.\d{4}", seen["tip"]), seen)
        expect("browser: load and bias of 2 layers, and max_vio", (seen["maps"], seen["experts"]) == (5, 8), seen)
        expect("browser: a cell says what it is",
               re.match(r"layer 1, expert 0, step 1: (load \d|no token)", seen["cell"]), seen)
        expect("browser: the log button redraws", seen["before"] and seen["after"] != seen["before"], seen)


@case
def faulty_runs():
    """Catches: a torn line, another version, an empty or foreign folder that is passed over, or ends the report."""
    runs = scratch("runs")
    lines = list(step_lines(5))
    newer = [line.replace('"lr"', '"rate":[{"a":1}],"lr"') for line in lines]
    write_run(runs / "torn", header() + "".join(lines)[:-40], 5)
    write_run(runs / "newer", header("7.0.0", plan="unknown") + "".join(newer) + '{"event":{"kind":"new"}}\n'
              + end(0, 5, "done"), 5)
    write_run(runs / "empty", header(), 5)
    write_run(runs / "diverged", header() + lines[0] + re.sub(r'"loss":[^,]*', '"loss":null', lines[1])
              + end(70, 2, "the loss is not finite at step 2"), 5)
    (runs / "planned").mkdir()
    (runs / "planned" / "config.yaml").write_text(config_text("planned", 5, {}))
    run = report(runs)
    rows = table_rows(run)
    expect("exit code 0, one line a run", run.code == 0
           and set(rows) == {"torn", "newer", "empty", "diverged", "planned"}, run)
    for what in ("torn: its last line is cut off", "written by version 7.0.0; this is 0.",
                 "1 line that is none of a run's, first metrics.jsonl:7", "empty: no step logged",
                 "diverged: the loss is not finite at step 2; not finite at 1 logged step, first step 2"):
        expect(f"it says: {what}", what in run.out, run)
    expect("what is readable of each is shown", "5/5" in rows["newer"] and "4/5" in rows["torn"]
           and rows["diverged"][1] == "failed 70" and "nan" in rows["diverged"], run)
    expect("what was never started stands last", list(rows)[-1] == "planned" and rows["planned"][1] == "missing", run)

    (runs / "notes.txt").touch()
    (runs.parent / "nothing").mkdir()
    for words, what in (([runs / "notes.txt"], "notes.txt"), ([runs / "absent"], "absent: No such file"),
                        ([runs.parent / "nothing"], "nothing: no run"),
                        ([runs, "--csv", runs / "no/a.csv"], "no/a.csv")):
        run = report(*words)
        expect(f"exit code 2, naming {what}", run.code == 2 and what in run.err and run.err.count("\n") == 1, run)


@case
def hostile_names():
    """Catches: text of a run folder that runs as a script in the page."""
    image, script = "<img src=x onerror=wrong.push('ran')>", "</script><script>wrong.push('ran')</script>"
    folder = scratch("runs") / image
    write_run(folder, header(places=[{"host": image, "device": "cpu"}], strategy=image) + "".join(step_lines(3))
              + evaluation(3, 2.0) + end(70, 3, script + image), 3)
    page = folder.parent.parent / "page.html"
    run = report(folder.parent, "--html", page)
    expect("exit code 0", run.code == 0, run)
    seen = browse(page, """
        all("[data-run]").forEach((element) => element.dispatchEvent(new PointerEvent("pointerenter")));
        point_at("[data-metric=loss] svg", 200, 60);
        return {images: all("img").length, name: column("name")[0], facts: one("#facts").textContent};""")
    if seen:
        expect("browser: text is shown as text", seen["images"] == 0 and image in seen["name"]
               and script in seen["facts"] and seen["facts"].count(image) >= 4, seen)


@case
def sweep_of_fifty():
    """Catches: points that are lost, an order or a filter that does nothing, fifty legends over the plots, results that
    thirteen settings push off the screen."""
    sweep = write_big_sweep(scratch("sweep"), 50, 120)
    table, page = sweep.parent / "out.csv", sweep.parent / "page.html"
    run = report(sweep, "--html", page, "--csv", table)
    rows = list(csv_rows(table).values())
    states = [row["state"] for row in rows]
    counts = {state: states.count(state) for state in set(states)}
    expect("every point once", run.code == 0 and counts == {"done": 46, "failed": 2, "preempted": 1, "missing": 1}, run)
    expect("failed and missing ones stand last", states[-3:] == ["failed", "failed", "missing"], run)
    best = [float(row["best_eval_loss"]) for row in rows[:-3]]
    expect("sorted by held-out loss", best == sorted(best), run)
    results, settings = list(rows[0]).index("remarks"), list(rows[0]).index("optimizer.lr")
    expect("settings follow the results", results + 1 == settings == len(rows[0]) - 3 - len(MORE_SETTINGS), rows[0])
    expect("settings have columns",
           {row["optimizer.lr"] for row in rows} == {"0.0003", "0.001", "0.003", "0.006", "0.01"}, run)
    expect("requeues are counted", sorted(row["requeues"] for row in rows)[-3:] == ["0", "1", "1"], run)
    expect("no line of the table is longer than 120", max(map(len, table_of(run))) <= 120, run)
    for scheme in ("light", "dark"):
        look_at_fifty(page, scheme)


def look_at_fifty(page, scheme):
    seen = browse(page, """
        const head = all("th").map((cell) => cell.dataset.key), place = (key) => one(`th[data-key="${key}"]`);
        const right = (key) => Math.round(place(key).getBoundingClientRect().right);
        const out = {head, ends: right("seconds"), right: one(".scroll").getBoundingClientRect().right};
        one(".scroll").scrollLeft = 1e4;
        out.scrolled = [one("td.name").getBoundingClientRect().left >= 0, right("setting:logging.interval")];
        one(".scroll").scrollLeft = 0;
        Object.assign(out, {rows: all("tbody tr").length, curves: curves("loss").length, coloured: coloured("loss"),
                     legend: all("#legend > *").length, back: getComputedStyle(document.body).backgroundColor});
        sort("tokens_per_s"); out.up = column("tokens_per_s");
        sort("tokens_per_s"); out.down = column("tokens_per_s");
        sort("setting:optimizer.lr"); out.rates = column("setting:optimizer.lr");
        input("filter", "lr=0.003 seed=2"); out.filtered = column("name"); out.filtered_curves = curves("eval").length;
        input("filter", "");
        all("tbody tr").find((row) => !row.querySelector(".swatch").style.background).click();
        out.picked = coloured("loss");
        input("colour", "optimizer.lr");
        const colours = new Set(curves("loss").map((path) => path.getAttribute("stroke")));
        out.settings = [all("#legend > *").length, colours.size];
        out.fits = document.documentElement.scrollWidth <= innerWidth;
        return out;""", dark=scheme == "dark", width=1280)
    if not seen:
        return
    expect(f"browser, {scheme}: a row a point, a curve for each that ran, few in colour",
           [seen[key] for key in ("rows", "curves", "coloured", "legend")] == [50, 49, 5, 6], seen)
    *up, last_up = seen["up"]
    *down, last_down = seen["down"]
    expect(f"browser, {scheme}: sorts up and down, what is missing last",
           up == sorted(up) and down == up[::-1] and up[0] < up[-1] and last_up == last_down == "-", seen)
    rates = [float(text) for text in seen["rates"]]
    expect(f"browser, {scheme}: sorts on a setting", rates == sorted(rates), rates)
    expect(f"browser, {scheme}: the filter leaves two rows and curves", len(seen["filtered"]) == 2
           and seen["filtered_curves"] == 2 and all("lr=0.003" in text for text in seen["filtered"]), seen)
    expect(f"browser, {scheme}: a click on a row colours its run", seen["picked"] == 6, seen)
    expect(f"browser, {scheme}: colours by setting", seen["settings"] == [6, 5], seen)
    expect(f"browser, {scheme}: nothing wider than the window", seen["fits"], seen)
    first = next(place for place, key in enumerate(seen["head"]) if key.startswith("setting:"))
    expect(f"browser, {scheme}: results, remarks, settings", len(seen["head"]) - first == 3 + len(MORE_SETTINGS)
           and seen["head"][first - 2:first] == ["seconds", "remarks"], seen)
    expect(f"browser, {scheme}: every result is on the screen", seen["ends"] <= seen["right"] <= 1280, seen)
    expect(f"browser, {scheme}: the last setting can be scrolled to beside the run's name",
           seen["scrolled"][0] and seen["scrolled"][1] <= seen["right"], seen)
    shade = sum(map(int, re.findall(r"\d+", seen["back"])[:3]))
    expect(f"browser, {scheme}: the page is {scheme}", shade < 150 if scheme == "dark" else shade > 650, seen)


@case
def fifty_long_runs():
    """Catches: a report that parses every line whole, or a page that grows with the lines."""
    folder = write_long_runs(scratch("runs"), 50, 10000)
    page = folder.parent / "page.html"
    runs = [report(folder, "--html", page) for _ in range(3)]
    # Other work on the machine stretches the wall time; without any, it is at most the time on all cores together.
    seconds = min(min(run.seconds, run.rusage.ru_utime + run.rusage.ru_stime) for run in runs)
    size = page.stat().st_size
    expect(f"50 runs of 10,000 lines in {seconds:.2f} s (allowed: 3)", runs[0].code == 0 and seconds < 3, runs[0])
    expect(f"a page of {size / 1e6:.2f} MB (allowed: 3)", size < 3e6, runs[0])
    best = min(Metrics(folder / "run00").numbers("eval_loss", Metrics(folder / "run00").evals))
    expect("the best held-out loss is of all lines", f"{best:.4f}" in table_rows(runs[0])["run00"], runs[0])


main()
