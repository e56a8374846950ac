#!/usr/bin/env python3
"""`meshard report`: its table, CSV file and page agree with the metrics, say what is wrong, and read well in a browser."""
import csv
import html
import io
import json
import re
import shutil
from pathlib import Path

from harness import Metrics, Run, Skip, case, expect, main, meshard, scratch, training
from report_runs import (config_text, end, evaluation, header, step_lines, write_big_sweep, write_long_runs, write_run,
                         write_sweep)

MOE = "configs/tests/moe.yaml"


def report(*words, limit=120, **named):
    return meshard("report", *words, limit=limit, **named)


def csv_rows(file):
    text = file.read_bytes().decode()
    return {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


def page_data(page):
    """The data that the page draws."""
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])


def table_rows(run):
    """{first word of a run's name: the cells of its line}."""
    lines = run.out.split("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: re.split(r"\s{2,}", line) for line in lines}


def near(text, number):
    return abs(float(text) - number) <= 1e-9 * max(1.0, abs(number))


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Before anything else of the page: what goes wrong in it.
LISTENER = """<script>var wrong = [];
addEventListener("error", (event) => wrong.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => wrong.push(`blocked: ${event.violatedDirective}`));</script>"""
# After it: a user's doings, whose result becomes text that --dump-dom shows.
DOINGS = """<script>
const all = (selector) => [...document.querySelectorAll(selector)];
const texts = (selector) => all(selector).map((element) => element.textContent);
const input = (id, value) => { const field = document.getElementById(id); field.value = value;
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input")); };
const sort = (key) => document.querySelector(`th[data-key="${key}"]`).click();
const column = (key) => { const place = all("th").findIndex((cell) => cell.dataset.key === key);
  return all("tbody tr").map((row) => row.children[place].textContent); };
const curves = (metric) => all(`[data-metric=${metric}] path.curve`).length;
let result;
try { result = (() => { %s })(); } catch (error) { result = {error: String(error.stack)}; }
document.body.append(Object.assign(document.createElement("pre"), {id: "result", textContent: JSON.stringify({...result, wrong})}));
</script></body>"""


def browse(page, script, dark=False):
    """Runs a script in the page, in a headless browser: what it returns, and what went wrong."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        raise Skip(f"the page was not looked at: no browser here ({', '.join(BROWSERS)}); Debian: apt-get install chromium")
    copy = scratch("page.html")
    text = page.read_text().replace("<head>", "<head>" + LISTENER, 1).replace("</body>", DOINGS % script, 1)
    copy.write_text(text)
    run = Run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--enable-logging=stderr",
               f"--user-data-dir={copy.parent / 'profile'}", *(["--blink-settings=preferredColorScheme=0"] if dark else []),
               "--dump-dom", copy.as_uri()]).wait(120)
    found = re.search(r'<pre id="result">(.*?)</pre>', run.out, re.S)
    if not expect("browser: the page runs to its end", run.code == 0 and found, run):
        return None
    result = json.loads(html.unescape(found[1]))
    console = [line for line in run.err.splitlines() if "CONSOLE" in line]
    expect("browser: no error, nothing on the console", not result["wrong"] and not console and "error" not in result,
           str(result), *console[:5])
    return result


@case
def real_runs():
    """Catches: a table, CSV or page whose numbers are not those of the run; a run that the report misses."""
    runs = scratch("runs")
    moe = training(runs / "moe", config=MOE, values={"train.steps": 12, "train.eval_interval": 4, "checkpoint.interval": 6})
    dense = training(runs / "dense", 2, values={"train.steps": 12, "train.eval_interval": 5})
    expect("the trainings end", (moe.code, dense.code) == (0, 0), moe, dense)
    files = runs.parent / "out.csv", runs.parent / "out.html"
    run = report(runs, "--csv", files[0], "--html", files[1])
    expect("exit code 0, nothing on standard error", run.code == 0 and run.err == "", run)
    table, rows, page = table_rows(run), csv_rows(files[0]), files[1].read_text()
    data = {each["name"]: each for each in page_data(page)["runs"]}
    expect("two runs everywhere", set(table) == set(rows) == set(data) == {"moe", "dense"}, run)
    for name in ("moe", "dense"):
        metrics, row, drawn = Metrics(runs / name), rows[name], data[name]
        losses, evals = metrics.numbers("loss"), metrics.numbers("eval_loss", metrics.evals)
        best = min(range(len(evals)), key=lambda i: evals[i])
        expect(f"{name}: best and last held-out loss, last loss", near(row["best_eval_loss"], evals[best])
               and near(row["final_eval_loss"], evals[-1]) and near(row["final_loss"], losses[-1])
               and int(row["best_eval_step"]) == metrics.evals[best]["step"], row)
        expect(f"{name}: state, exit, steps", (row["state"], row["exit"], row["step"], row["steps"], row["requeues"])
               == ("done", "0", "12", "12", "0"), row)
        speeds = metrics.numbers("tokens_per_s")
        expect(f"{name}: tokens/s", near(row["tokens_per_s"], len(speeds) / sum(1 / speed for speed in speeds)), row)
        expect(f"{name}: memory", near(row["mem_peak_bytes"], max(metrics.numbers("mem_peak_bytes"))), row)
        expect(f"{name}: the table has them", {"done", "12/12", f"{evals[best]:.4f}", f"{losses[-1]:.4f}"} <= set(table[name]),
               run)
        expect(f"{name}: the page's curves", drawn["x"] == list(range(1, 13))
               and max(abs(a - b) for a, b in zip(drawn["curves"]["loss"][0], losses)) < 5e-4
               and drawn["eval_x"] == [line["step"] for line in metrics.evals], drawn)
    layers = Metrics(runs / "moe").steps[-1]["moe"]["layers"]
    expect("moe: maps of all layers and experts", [layer["layer"] for layer in data["moe"]["maps"]["layers"]]
           == [layer["layer"] for layer in layers] and data["moe"]["maps"]["steps"] == data["moe"]["x"], run)
    expect("no remark about sound runs", "remarks" not in run.out or "without a token" in run.out, run)
    expect("the settings that differ are listed", "settings that differ" in run.out and "train.eval_interval" in run.out, run)
    outside = set(re.findall(r"https?://[^\s\"'`)]*", page)) - {"http://www.w3.org/2000/svg"}
    expect("the page loads nothing", not outside and "src=" not in page.split('<script id="data"')[0], str(outside))

    shutil.rmtree(runs / "moe" / "checkpoints")
    run = report(runs)
    expect("deleted checkpoints are said", "moe: " in run.out and "its checkpoints are gone" in run.out, run)
    seen = browse(files[1], """
      const before = {maps: all("#maps canvas").length, facts: texts("#facts dd").join(" "), loss: curves("loss"),
                      grown: document.querySelector("#maps canvas").height};
      const box = document.querySelector("[data-metric=loss] svg").getBoundingClientRect();
      const move = (target, x, y) => target.dispatchEvent(new PointerEvent("pointermove", {clientX: x, clientY: y, bubbles: true}));
      move(document.querySelector("[data-metric=loss] svg"), box.left + 200, box.top + 60);
      before.tip = document.getElementById("tip").textContent;
      const map = document.querySelector("#maps canvas").getBoundingClientRect();
      move(document.querySelector("#maps canvas"), map.left + 1, map.top + 1);
      return {...before, cell: document.getElementById("tip").textContent, path: document.querySelector("[data-metric=loss] path.curve").getAttribute("d"),
              logged: (document.querySelector("[data-metric=loss] button.log").click(), document.querySelector("[data-metric=loss] path.curve").getAttribute("d"))};""")
    if seen:
        expect("browser: a curve a run, with values under the pointer", seen["loss"] == 2 and "step" in seen["tip"]
               and re.search(r"\d\.\d{4}", seen["tip"]), str(seen))
        expect("browser: load and bias of 2 layers, and max_vio", seen["maps"] == 5 and seen["grown"] == 8, str(seen))
        expect("browser: a cell says what it is", re.match(r"layer 1, expert 0, step 1: (load|no token)", seen["cell"]), seen["cell"])
        expect("browser: the log button redraws", seen["path"] and seen["logged"] and seen["path"] != seen["logged"], str(seen))


@case
def faulty_runs():
    """Catches: a torn line, another version, an empty, foreign or missing folder that is passed over or ends the report."""
    runs = scratch("runs")
    lines = list(step_lines(5))
    write_run(runs / "torn", header() + "".join(lines)[:-40], 5)
    write_run(runs / "newer", header("7.0.0", plan="unknown") + "".join(line.replace('"lr"', '"rate":[{"a":1}],"lr"') for line in lines)
              + '{"event":{"kind":"new"}}\n' + end(0, 5, "done"), 5)
    write_run(runs / "empty", header(), 5)
    write_run(runs / "diverged", header() + lines[0] + re.sub(r'"loss":[^,]*', '"loss":null', lines[1])
              + end(70, 2, "the loss is not finite at step 2"), 5)
    (runs / "planned").mkdir()
    (runs / "planned" / "config.yaml").write_text(config_text("planned", 5, {}))
    run = report(runs)
    expect("exit code 0, one line a run", run.code == 0 and set(table_rows(run)) == {"torn", "newer", "empty", "diverged", "planned"}, run)
    for what in ("torn: its last line is cut off", "written by version 7.0.0; this is 0.", "1 line that is none of a run's, first metrics.jsonl:7",
                 "empty: no step logged", "diverged: the loss is not finite at step 2; not finite at 1 logged step, first step 2"):
        expect(f"it says: {what}", what in run.out, run)
    rows = table_rows(run)
    expect("what is readable of the newer one is shown", "5/5" in rows["newer"] and rows["diverged"][1] == "failed 70"
           and rows["planned"][1] == "missing" and "nan" in rows["diverged"], run)
    expect("failed and missing ones stand last", list(rows)[-1] == "planned", run)
    (runs / "notes.txt").touch()
    (runs.parent / "nothing").mkdir()
    for words, what in (((runs / "notes.txt",), "notes.txt"), ((runs / "absent",), "absent: No such file"),
                        ((runs.parent / "nothing",), "nothing: no run"), ((runs, "--csv", runs / "no/such.csv"), "no/such.csv")):
        run = report(*words)
        expect(f"exit code 2, naming {what}", run.code == 2 and what in run.err and len(run.err.splitlines()) == 1, run)


@case
def hostile_names():
    """Catches: text of a run folder that runs as a script in the page, or breaks its table."""
    evil = "<img src=x onerror=wrong.push('ran')>"
    folder = scratch("runs") / f"{evil}</script><script>wrong.push('ran')<" .replace("/", "\u2215")
    write_run(folder, header(places=[{"host": evil, "device": "cpu"}], strategy=evil) + "".join(step_lines(3))
              + evaluation(3, 2.0) + end(70, 3, f"</script><script>wrong.push('ran')</script>{evil}"), 3)
    run = report(folder.parent, "--html", folder.parent.parent / "page.html")
    expect("exit code 0", run.code == 0, run)
    seen = browse(folder.parent.parent / "page.html", """
      document.querySelector("tbody tr").dispatchEvent(new PointerEvent("pointerenter"));
      return {images: all("img").length, scripts: all("script").length, name: column("name")[0], facts: texts("#facts dd").join(" ")};""")
    if seen:
        expect("browser: the text is shown as text", seen["images"] == 0 and evil in seen["name"] and seen["facts"].count(evil) >= 2,
               str(seen))


@case
def sweep_of_fifty():
    """Catches: points that are lost, an order or a filter that does nothing, fifty legends over the plots."""
    sweep = write_big_sweep(scratch("sweep"), 50, 120)
    page = sweep.parent / "page.html"
    run = report(sweep, "--html", page, "--csv", sweep.parent / "out.csv")
    rows = csv_rows(sweep.parent / "out.csv")
    states = [row["state"] for row in rows.values()]
    expect("50 points: 46 done, 2 failed, 1 preempted, 1 missing", run.code == 0 and [states.count(state) for state in (
        "done", "failed", "preempted", "missing")] == [46, 2, 1, 1] and states[-1] == "missing", run)
    best = [float(row["best_eval_loss"]) for row in rows.values() if row["state"] in ("done", "preempted")]
    expect("sorted by held-out loss", best == sorted(best), run)
    expect("settings have columns", {row["optimizer.lr"] for row in rows.values()} == {"0.0003", "0.001", "0.003", "0.006", "0.01"}, run)
    expect("requeues are counted", sorted(row["requeues"] for row in rows.values())[-3:] == ["0", "1", "1"], run)
    expect("no line of the table is wider than 120", all(len(line) <= 120 for line in run.out.split("\n\n")[0].splitlines()), run)
    for dark in (False, True):
        seen = browse(page, """
          const out = {rows: all("tbody tr").length, curves: curves("loss"), coloured: all("[data-metric=loss] path.curve:not(.other)").length,
                       legend: all("#legend > *").length, first: column("best"), back: getComputedStyle(document.body).backgroundColor};
          sort("tokens_per_s"); out.up = column("tokens_per_s");
          sort("tokens_per_s"); out.down = column("tokens_per_s");
          sort("setting:optimizer.lr"); out.lr = column("setting:optimizer.lr");
          input("filter", "lr=0.003 seed=2"); out.filtered = column("name"); out.filtered_curves = curves("eval");
          input("filter", ""); all("tbody tr").find((row) => !row.querySelector(".swatch").style.background).click();
          out.picked = all("[data-metric=loss] path.curve:not(.other)").length;
          input("colour", "optimizer.lr"); out.by_setting = [all("#legend > *").length, new Set(all("[data-metric=loss] path.curve").map((path) => path.getAttribute("stroke"))).size];
          const box = document.getElementById("plots").getBoundingClientRect();
          out.fits = document.documentElement.scrollWidth <= innerWidth;
          return out;""", dark)
        if not seen:
            continue
        name = "dark" if dark else "light"
        expect(f"browser, {name}: 50 rows, a curve for each point that ran, few of them coloured",
               (seen["rows"], seen["curves"], seen["coloured"], seen["legend"]) == (50, 49, 5, 6), str(seen))
        number = lambda text: float(text.rstrip("k")) if text != "-" else None
        up, down = ([number(text) for text in seen[key]] for key in ("up", "down"))
        expect(f"browser, {name}: sorts up and down, what is missing last", up[:-1] == sorted(up[:-1]) and down[:-1] == up[:-1][::-1]
               and up[-1] is down[-1] is None and up[0] < up[-2], str(seen))
        expect(f"browser, {name}: sorts on a setting", [float(text) for text in seen["lr"]] == sorted(float(text) for text in seen["lr"]),
               str(seen["lr"]))
        expect(f"browser, {name}: the filter leaves two rows and curves", len(seen["filtered"]) == seen["filtered_curves"] == 2
               and all("lr=0.003" in text and "seed=2" in text for text in seen["filtered"]), str(seen))
        expect(f"browser, {name}: a click colours a run", seen["picked"] == 6, str(seen))
        expect(f"browser, {name}: colours by setting", seen["by_setting"] == [6, 5], str(seen))
        expect(f"browser, {name}: nothing wider than the window", seen["fits"], str(seen))
        shade = sum(map(int, re.findall(r"\d+", seen["back"])[:3]))
        expect(f"browser, {name}: the page is {name}", shade < 150 if dark else shade > 650, seen["back"])


@case
def fifty_long_runs():
    """Catches: a report that takes the longer the more lines there are, or a page that grows with them."""
    folder = scratch("runs")
    folder.mkdir()
    write_long_runs(folder, 50, 10000)
    runs = [report(folder, "--html", folder.parent / "page.html") for _ in range(3)]
    seconds = min(run.seconds for run in runs)
    size = (folder.parent / "page.html").stat().st_size
    expect(f"50 runs of 10,000 lines in {seconds:.2f} s (allowed: 3)", runs[0].code == 0 and seconds < 3, runs[0])
    expect(f"a page of {size / 1e6:.2f} MB (allowed: 3)", size < 3e6, runs[0])
    losses = [json.loads(line)["eval_loss"] for line in (folder / "run00" / "metrics.jsonl").read_text().splitlines()
              if '"eval_loss"' in line]
    expect("the best held-out loss is of all lines", f"{min(losses):.4f}" in runs[0].out, runs[0])


main()
