// The table of runs: sorts on any column, filters, picks runs out by colour.
function setting_columns() {
  const column_of = (key, index) => {
    const of = (run) => as_number(run.settings[key]), text = (run) => run.settings[key] || "";
    return {key: `setting:${key}`, title: data.setting_titles[index], hint: key, of, text};
  };
  return data.settings.map(column_of);
}

function as_number(text) {
  return text !== undefined && text !== "" && isFinite(text) ? Number(text) : text === "" ? null : text;
}

// The codes of the other states are theirs alone.
const state_text = (run) => (run.state === "failed" && exists(run.exit) ? `failed ${run.exit}` : run.state);

const COLUMNS = [
  {key: "name", title: "run", left: true, of: (run) => run.name, text: (run) => run.name},
  {key: "state", title: "state", left: true, of: state_text, text: state_text, hint: "with the exit code of a failure"},
  {
    key: "step",
    title: "steps",
    of: (run) => run.step,
    text: (run) => (run.starts ? (run.steps ? `${run.step}/${run.steps}` : String(run.step)) : "-")
  },
  {key: "best", title: "held-out", of: (run) => run.best, text: (run) => loss(run.best), hint: "best held-out loss"},
  {
    key: "best_step",
    title: "at",
    of: (run) => (exists(run.best) ? run.best_step : null),
    text: (run) => (exists(run.best) ? String(run.best_step) : "-"),
    hint: "step of the best held-out loss"
  },
  {
    key: "last_eval",
    title: "last",
    of: (run) => run.last_eval,
    text: (run) => loss(run.last_eval),
    hint: "last held-out loss"
  },
  {
    key: "bits_per_byte",
    title: "bpb",
    of: (run) => run.bits_per_byte,
    text: (run) => (exists(run.bits_per_byte) ? run.bits_per_byte.toFixed(3) : "-"),
    hint: "bits per byte of the best evaluation, else of the last step"
  },
  {key: "loss", title: "loss", of: (run) => run.loss, text: (run) => loss(run.loss), hint: "of the last logged step"},
  {key: "tokens_per_s", title: "tok/s", of: (run) => run.tokens_per_s, text: (run) => rate(run.tokens_per_s)},
  {
    key: "memory",
    title: "memory",
    of: (run) => run.memory,
    text: (run) => bytes(run.memory),
    hint: "peak of the largest rank"
  },
  {
    key: "starts",
    title: "requeues",
    of: (run) => run.starts - 1,
    text: (run) => (run.starts ? String(run.starts - 1) : "-")
  },
  {
    key: "seconds",
    title: "in steps",
    of: (run) => run.seconds,
    text: (run) => duration(run.seconds),
    hint: "time spent in training steps"
  },
];

const remarks_column = {
  key: "remarks",
  title: "remarks",
  left: true,
  of: (run) => run.remarks.join("; "),
  text: (run) => run.remarks.join("; ")
};

// Results first: settings may be many. Columns of which no run has a value are left out.
function columns() {
  const [name, state, ...numbers] = COLUMNS;
  const used = numbers.filter((column) => data.runs.some((run) => exists(column.of(run)) && column.text(run) !== "-"));
  const remarks = data.runs.some((run) => run.remarks.length) ? [remarks_column] : [];
  return [name, state, ...used, ...remarks, ...setting_columns()];
}

const text_of_run = (run) => [run.name, run.state, run.reason, ...run.remarks,
                              ...Object.entries(run.settings).map(([key, value]) => `${key}=${value}`)]
                                 .join(" ")
                                 .toLowerCase();

function matches(run, filter) { return filter.toLowerCase().split(/\s+/).every((word) => run.searched.includes(word)); }

// What is missing stands last, whichever way.
function compare_by(column, direction) {
  return (a, b) => {
    const x = column.of(a), y = column.of(b);
    if (!exists(x) || !exists(y)) return exists(y) - exists(x);
    const order = typeof x === "number" && typeof y === "number" ?
        x - y :
        String(x).localeCompare(String(y), undefined, {numeric: true});
    return direction * order || a.index - b.index;
  };
}

function draw_head() {
  const cells = columns().map((column) => {
    const sorted = choices.sort.key === column.key;
    const sort = () => {
      choices.sort = {key: column.key, direction: sorted ? -choices.sort.direction : 1};
      draw_table();
      draw_times();
    };
    return make(
        "th", {
          class: column.left ? "text" : null,
          title: column.hint,
          "data-key": column.key,
          tabindex: 0,
          onclick: sort,
          onkeydown: (event) => event.key === "Enter" && sort(),
          "aria-sort": sorted ? (choices.sort.direction > 0 ? "ascending" : "descending") : null
        },
        column.title);
  });
  document.querySelector("#table thead").replaceChildren(make("tr", {}, ...cells));
}

function cell_of(run, column) {
  if (column.key === "name") return make("td", {class: "text name", title: run.folder}, swatch(run), " ", run.name);
  if (column.key === "state")
    return make("td", {class: "text"}, make("span", {class: `state ${run.state}`}, column.text(run)));
  return make(
      "td", {class: [column.left && "text", column.key === "remarks" && "remarks"].filter(Boolean).join(" ") || null},
      column.text(run));
}

function draw_table() {
  draw_head();
  const rows = shown_runs().map(
      (run) => make(
          "tr", {
            "data-run": run.index,
            onclick: () => pick(run),
            onpointerenter: () => highlight(run),
            onpointerleave: () => highlight(null)
          },
          ...columns().map((column) => cell_of(run, column))));
  document.querySelector("#table tbody").replaceChildren(...rows);
  const states = {};
  for (const run of data.runs) states[run.state] = (states[run.state] || 0) + 1;
  const all = Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ");
  document.getElementById("shown").textContent = rows.length === data.runs.length ?
      `${rows.length} run${rows.length === 1 ? "" : "s"}: ${all}` :
      `${rows.length} of ${data.runs.length} runs`;
}
