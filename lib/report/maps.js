// One run in detail: where its steps' time went, and heat maps of its experts.
const PARTS = [["data", "data"], ["comm", "exposed communication"], ["rest", "rest"], ["stall", "checkpoint stall"]];

function time_parts(step_ms, data_ms, comm_ms, stall_ms) {
  const own = Math.min(data_ms || 0, step_ms), comm = Math.min(comm_ms || 0, step_ms - own);
  return [own, comm, step_ms - own - comm, stall_ms || 0];
}

const parts_key = () => PARTS.flatMap(([part, title]) => [make("span", {class: `swatch part-${part}`}), title]);

function draw_times() {
  const runs = shown_runs().filter((run) => exists(run.step_ms));
  document.getElementById("times-section").hidden = !data.runs.some((run) => exists(run.step_ms));
  const most = Math.max(...runs.map((run) => run.step_ms + (run.stall_ms || 0)));
  const rows = runs.flatMap((run) => {
    const parts = time_parts(run.step_ms, run.data_ms, run.comm_ms, run.stall_ms);
    const text = PARTS.map(([, title], i) => `${title} ${milliseconds(parts[i])}`);
    if (exists(run.comm_busy_ms)) text.push(`communication under way, beside all these: ${milliseconds(run.comm_busy_ms)}`);
    const track = make(
        "div", {
          class: "track",
          onpointermove: (event) => show_tip(event, [run.name, ...text].map((line) => make("div", {}, line))),
          onpointerleave: hide_tip
        },
        ...parts.map(
            (part, i) =>
                make("div", {class: `part-${PARTS[i][0]}`, style: `width:${(100 * part / most).toFixed(2)}%`})));
    return [
      make("div", {class: "name", title: run.name}, run.name), track,
      make("div", {class: "value"}, milliseconds(run.step_ms))
    ];
  });
  document.getElementById("times").replaceChildren(make("div", {class: "key"}, ...parts_key()), ...rows);
}

function draw_stack(run) {
  const place = document.getElementById("stack");
  place.replaceChildren();
  const curve = (key) => (run.curves[key] || [[]])[0];
  const step_ms = curve("step_ms");
  if (!step_ms.some(exists)) return;
  const card =
      make("div", {class: "plot"}, make("h3", {}, "step time, ms", make("small", {class: "key"}, ...parts_key())));
  place.append(card);
  const width = Math.max(260, card.clientWidth - 20), height = 200;
  const sums = run.x.map((_, i) => {
    let sum = 0;
    return [
      0,
      ...time_parts(step_ms[i] || 0, curve("data_ms")[i], curve("comm_ms")[i], curve("checkpoint_stall_ms")[i])
          .map((part) => (sum += part))
    ];
  });
  const range = value_range(sums.map((list) => list[4]), {zero: true}, false);
  const x = new Axis(0, Math.max(1, run.x[run.x.length - 1]), 62, width - 8),
        y = new Axis(0, range.high, height - 22, 6);
  const svg = make("svg", {height, viewBox: `0 0 ${width} ${height}`});
  draw_axes(svg, x, y, significant);
  PARTS.forEach(([part], i) => {
    const edge = (level) =>
        run.x.map((step, k) => `${x.at(step).toFixed(1)} ${Math.max(6, y.at(sums[k][level])).toFixed(1)}`);
    if (run.x.length > 1)
      svg.append(make("path", {class: `part-${part}`, d: `M${[...edge(i + 1), ...edge(i).reverse()].join("L")}Z`}));
  });
  card.append(svg);
}

function levels_of([low, high, text]) {
  const levels = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return {levels, value: (level) => (level === 0 ? null : low + (high - low) * (level - 1) / 254)};
}

const RED = [200, 50, 47], BLUE = [38, 105, 190], ORANGE = [221, 120, 20], TEAL = [10, 140, 140];
const diverging = (t, under, over) => mix(themed_colours.neutral, t < 0 ? under : over, Math.min(1, Math.abs(t)));
let themed_colours = {};

const load_colour = (value) => diverging(Math.log2(value) / 2, BLUE, RED);
const bias_colour = (most) => (value) => diverging(most ? value / most : 0, TEAL, ORANGE);
const vio_colour = (most) => (value) => diverging(most ? value / most : 0, RED, RED);

// rows x steps cells; `describe(row, step, value)` is the tip.
function heat_map(title, map, rows, steps, colour, describe) {
  const {levels, value} = levels_of(map), columns = steps.length;
  const canvas =
      make("canvas", {width: columns, height: rows, style: `height:${Math.min(220, Math.max(36, rows * 11))}px`});
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows), known = new Map();
  levels.forEach((level, i) => {
    if (!known.has(level)) known.set(level, level === 0 ? themed_colours.none : colour(value(level)));
    image.data.set([...known.get(level), 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(),
          cell = (part, count) => Math.min(count - 1, Math.max(0, Math.floor(part * count)));
    const column = cell((event.clientX - box.left) / box.width, columns),
          row = cell((event.clientY - box.top) / box.height, rows);
    show_tip(event, [make("div", {}, describe(row, steps[column], value(levels[row * columns + column])))]);
  });
  canvas.addEventListener("pointerleave", hide_tip);
  return make(
      "div", {class: "map"}, make("h3", {}, title), canvas,
      make("div", {class: "axis"}, make("span", {}, `step ${steps[0]}`), make("span", {}, String(steps[columns - 1]))));
}

function scale_note(text, colours, low, high, special) {
  const none = make("span", {class: "swatch", style: `background:${css(themed_colours.none)}`});
  return make(
      "p", {class: "note"}, text, " ", low,
      make("span", {class: "scale", style: `background:linear-gradient(90deg,${colours.map(css).join(",")})`}), high,
      special ? "; " : "", special ? none : "", special ? ` ${special}` : "");
}

function expert_maps(run) {
  const {maps} = run, {steps, layers} = maps, parts = [];
  const sampled = steps.length < run.step ? ` ${steps.length} of the logged steps are shown.` : "";
  if (layers.some((layer) => layer.load[2])) {
    const most = Math.max(...layers.map((layer) => Math.max(-layer.bias[0], layer.bias[1])));
    parts.push(
        make("h2", {}, "Experts"),
        scale_note(
            "Load: an expert's tokens / the mean of its layer,",
            [-1, -0.5, 0, 0.5, 1].map((t) => diverging(t, BLUE, RED)), "1/4", "4", "no token." + sampled),
        scale_note(
            "Bias on its selection,", [-1, 0, 1].map((t) => diverging(t, TEAL, ORANGE)), significant(-most, 3),
            significant(most, 3), "not finite. One row an expert, the first on top."));
    const grid = make("div", {class: "maps"});
    for (const {layer, load, bias} of layers) {
      const rows = levels_of(load).levels.length / steps.length,
            place = (expert, step) => `layer ${layer}, expert ${expert}, step ${step}: `;
      const pair = make("div", {class: "pair"});
      if (load[2])
        pair.append(heat_map(
            `layer ${layer}: load`, load, rows, steps, load_colour,
            (expert, step, value) =>
                place(expert, step) + (exists(value) ? `load ${significant(value, 3)}` : "no token")));
      if (bias[2])
        pair.append(heat_map(
            `layer ${layer}: bias`, bias, rows, steps, bias_colour(most),
            (expert, step, value) =>
                place(expert, step) + (exists(value) ? `bias ${significant(value, 3)}` : "bias not finite")));
      grid.append(pair);
    }
    parts.push(grid);
  } else {
    parts.push(
        make("h2", {}, "Experts"),
        make("p", {class: "note"}, "Load and bias of every expert are logged with logging.per_layer: true." + sampled));
  }
  const [, most] = maps.max_vio;
  parts.push(
      scale_note(
          "max_vio of each layer, (largest load - mean) / mean,", [0, 0.5, 1].map((t) => diverging(t, RED, RED)), "0",
          significant(most, 3), ""),
      make(
          "div", {class: "maps"},
          heat_map(
              "max_vio by layer", maps.max_vio, layers.length, steps, vio_colour(most),
              (row, step, value) => `layer ${layers[row].layer}, step ${step}: max_vio ${significant(value, 3)}`)));
  return parts;
}

function draw_maps(run) {
  themed_colours = {neutral: themed("--neutral"), none: themed("--none-cell")};
  const left_out = run.curves.max_vio && !run.maps && data.without_maps;
  const note = make(
      "p", {class: "note"},
      "To keep this page small it has no maps of this run's experts; a report of fewer runs has.");
  document.getElementById("maps").replaceChildren(...(run.maps ? expert_maps(run) : left_out ? [note] : []));
}
