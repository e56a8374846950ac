// What the reader chose, and drawing it all.
const data = JSON.parse(document.getElementById("data").textContent);
const FEW = 8, BEST = 5;
const with_maps = [(run) => run.maps && run.maps.layers[0].load[2], (run) => run.maps, () => true].map(
    (wanted) => data.runs.findIndex(wanted));
const choices = {
  filter: "",
  colour: "",
  log_steps: false,
  sort: {key: "", direction: 1},
  picked: null,
  detail: with_maps.find((index) => index >= 0)
};
data.runs.forEach((run, index) => {
  run.index = index;
  run.searched = text_of_run(run);
});

function shown_runs() {
  const runs = data.runs.filter((run) => matches(run, choices.filter));
  const column = columns().find(({key}) => key === choices.sort.key);
  return column ? runs.sort(compare_by(column, choices.sort.direction)) : runs;
}

// Until the reader picks some: all of a few, the best of many.
function picked_runs() {
  const shown = data.runs.filter((run) => matches(run, choices.filter));
  if (choices.picked) return shown.filter((run) => choices.picked.has(run.index));
  return shown.length <= FEW ? shown : shown.filter((run) => run.x.length).slice(0, BEST);
}

// As long as nothing changes they are asked for with every curve.
let drawn = {picked: new Set(), colours: new Map(), values: []};
function update_colours() {
  const picked = picked_runs(), colours = new Map();
  const values = [...new Set(data.runs.map((run) => run.settings[choices.colour]).filter(exists))];
  const numeric = values.every((value) => typeof as_number(value) === "number");
  values.sort((a, b) => (numeric ? a - b : a.localeCompare(b)));
  const colour_at = (place) =>
      (numeric || values.length > FEW ? css(along(RAMP, values.length > 1 ? place / (values.length - 1) : 0)) :
                                        PALETTE[place]);
  picked.forEach((run, place) => colours.set(run.index, PALETTE[place % PALETTE.length]));
  if (choices.colour)
    data.runs.forEach(
        (run) => colours.set(
            run.index,
            exists(run.settings[choices.colour]) ? colour_at(values.indexOf(run.settings[choices.colour])) :
                                                   "var(--grey)"));
  drawn = {
    picked: new Set(picked.map((run) => run.index)),
    colours,
    values: values.map((value, place) => [value, colour_at(place)])
  };
}
const is_picked = (run) => drawn.picked.has(run.index);
const is_coloured = (run) => drawn.colours.has(run.index);
const colour_of = (run) => drawn.colours.get(run.index);
const swatch = (run) => make(
    "span",
    {class: "swatch", style: is_coloured(run) ? `background:${colour_of(run)};border-color:${colour_of(run)}` : null});

function pick(run) {
  choices.picked = choices.picked || new Set(drawn.picked);
  choices.picked.has(run.index) ? choices.picked.delete(run.index) : choices.picked.add(run.index);
  draw();
}

function highlight(run) {
  for (const element of document.querySelectorAll(".hot")) element.classList.remove("hot");
  if (!run) return;
  for (const element of document.querySelectorAll(`[data-run="${run.index}"]`)) element.classList.add("hot");
}

function draw_legend() {
  const shown = shown_runs().filter((run) => run.x.length || run.eval_x.length),
        legend = document.getElementById("legend");
  if (choices.colour) {
    const parts = drawn.values.map(
        ([value, colour]) => make(
            "span", {}, make("span", {class: "swatch", style: `background:${colour};border-color:${colour}`}), value));
    legend.replaceChildren(make("span", {}, choices.colour), ...parts);
    return;
  }
  const coloured = shown.filter(is_coloured), others = shown.length - coloured.length;
  const entry = (run) => make(
      "button", {
        type: "button",
        title: `${run.name}: click to take its colour away`,
        onclick: () => pick(run),
        onpointerenter: () => highlight(run),
        onpointerleave: () => highlight(null)
      },
      swatch(run), run.name);
  const best = choices.picked ? "" : "the best have colours; ";
  const rest = others ?
      [make(
          "span", {}, make("span", {class: "swatch", style: "background:var(--grey)"}),
          `${others} other${others > 1 ? "s" : ""} (${best}click a row of the table to colour its run)`)] :
      [];
  legend.replaceChildren(...coloured.map(entry), ...rest);
}

function draw_detail() {
  const run = data.runs[choices.detail];
  const facts = [
    ["folder", run.folder],
    ["state", run.state + (exists(run.exit) ? `, exit ${run.exit}` : "") + (run.reason ? `: ${run.reason}` : "")],
    ["mesh", run.mesh], ["hosts", run.hosts],
    [
      "parameters",
      exists(run.parameters) ? count(run.parameters) +
              (exists(run.active_parameters) && run.active_parameters !== run.parameters ?
                   `, ${count(run.active_parameters)} active` :
                   "") :
                               ""
    ],
    ["meshard", run.version],
    ["settings", Object.entries(run.settings).map(([key, value]) => `${key}: ${value}`).join(", ")],
    ["remarks", run.remarks.join("; ")]
  ];
  document.getElementById("facts").replaceChildren(
      ...facts.filter(([, text]) => text).flatMap(([title, text]) => [make("dt", {}, title), make("dd", {}, text)]));
  draw_stack(run);
  draw_maps(run);
}

const plots = PLOTS.filter(({key}) => has_values(key) && !is_flat_zero(key)).map((plot) => new Plot(plot));

function draw() {
  update_colours();
  draw_table();
  draw_legend();
  for (const plot of plots) plot.draw();
  draw_times();
}

function start() {
  const with_name = (text, value) => make("option", {value}, text);
  document.getElementById("made").textContent = data.made;
  document.getElementById("plots").append(...plots.map((plot) => plot.card));
  const flat = PLOTS.filter(({key}) => has_values(key) && is_flat_zero(key)).map(({title}) => title);
  document.getElementById("flat").textContent = flat.length ? `Always 0, so not drawn: ${flat.join(", ")}.` : "";
  const colour = document.getElementById("colour"), detail = document.getElementById("detail-run");
  colour.append(with_name("run", ""), ...data.settings.map((key) => with_name(key, key)));
  colour.parentElement.hidden = !data.settings.length;
  detail.append(...data.runs.map((run) => with_name(run.name, run.index)));
  detail.value = choices.detail;
  const choose = (id, event, change) =>
      document.getElementById(id).addEventListener(event, (input) => change(input.target));
  choose("filter", "input", (field) => {
    choices.filter = field.value.trim();
    draw();
  });
  choose("colour", "change", (field) => {
    choices.colour = field.value;
    draw();
  });
  choose("log-steps", "change", (field) => {
    choices.log_steps = field.checked;
    draw();
  });
  choose("detail-run", "change", (field) => {
    choices.detail = Number(field.value);
    draw_detail();
  });
  const redraw = () => {
    draw();
    draw_detail();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);
  redraw();
}
start();
