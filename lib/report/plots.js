// Curves over the steps: one plot a metric, a line a run.
const PLOTS = [
  {key: "loss", title: "training loss", format: loss},
  {key: "eval", title: "held-out loss", format: loss},
  {key: "grad_norm", title: "gradient norm", log: true},
  {key: "lr", title: "learning rate"},
  {key: "tokens_per_s", title: "tokens/s", format: rate},
  {key: "step_ms", title: "step time, median rank", unit: "ms", zero: true},
  {key: "comm_ms", title: "exposed communication, rank 0", unit: "ms", zero: true},
  {key: "comm_busy_ms", title: "communication under way, rank 0", unit: "ms", zero: true},
  {key: "data_ms", title: "data, rank 0", unit: "ms", zero: true},
  {key: "checkpoint_stall_ms", title: "checkpoint stall", unit: "ms", zero: true},
  {key: "mem_peak_bytes", title: "peak memory, largest rank", format: bytes, zero: true},
  {key: "mfu", title: "model FLOP utilisation", zero: true},
  {key: "max_vio", title: "max_vio, worst layer", zero: true},
  {key: "bias_max", title: "largest expert bias of all layers"},
  {key: "bias_min", title: "smallest expert bias of all layers"},
  {key: "dead", title: "experts without a token", zero: true},
  {key: "dropped", title: "dropped pairs", zero: true},
  {key: "aux_loss", title: "auxiliary loss"},
  {key: "z_loss", title: "router z-loss"},
];

const curve_of = (run, key) => (key === "eval" ? run.eval : run.curves[key]);
const steps_of = (run, key) => (key === "eval" ? run.eval_x : run.x);
const is_flat_zero = (key) =>
    data.runs.every((run) => (curve_of(run, key) || [[]]).every((list) => list.every((value) => !value)));
const has_values = (key) => data.runs.some((run) => curve_of(run, key) && curve_of(run, key)[0].some(exists));

function linear_ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
  return ticks;
}

function log_ticks(low, high) {
  const decades = Math.log10(high / low), ticks = [];
  if (decades < 0.7) return linear_ticks(low, high, 4);
  const stride = Math.ceil(decades / 6);
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += stride) {
    for (const factor of decades < 2 ? [1, 2, 5] : [1]) ticks.push(factor * 10 ** power);
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

// A few values far out must not flatten the rest: what lies far above the bulk is cut, and said. A log axis shows all.
function value_range(values, plot, log) {
  const sorted = Float64Array.from(values).sort(), at = (share) => sorted[Math.floor(share * (sorted.length - 1))];
  let low = sorted[0], high = sorted[sorted.length - 1], cut = null;
  if (!log) {
    const bulk = at(0.98) + (at(0.98) - at(0.02));
    if (sorted.length > 20 && bulk > low && high - low > 4 * (bulk - low)) [high, cut] = [bulk, high];
    if (plot.zero && low > 0) low = 0;
  }
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    [low, high] = log ? [low / 1.2, high * 1.2] : [low - room, high + room];
  }
  const room = (high - low) * 0.04;
  return log ? {low: low / 1.03, high: high * 1.03, cut} :
               {low: plot.zero && low === 0 ? 0 : low - room, high: high + room, cut};
}

class Axis {
  constructor(low, high, begin, end, log) { Object.assign(this, {low, high, begin, end, log}); }
  at(value) {
    const share = this.log ? Math.log(value / this.low) / Math.log(this.high / this.low) :
                             (value - this.low) / (this.high - this.low);
    return this.begin + share * (this.end - this.begin);
  }
}

// "M x y L x y": gaps where a value is missing; a lone point is a dot.
function line_path(steps, values, x, y) {
  let text = "", open = false;
  for (let i = 0; i < steps.length; ++i) {
    const value = values[i];
    if (!exists(value) || (y.log && value <= 0) || (x.log && steps[i] <= 0)) {
      open = false;
      continue;
    }
    text += `${open ? "L" : "M"}${x.at(steps[i]).toFixed(1)} ${y.at(value).toFixed(1)}`;
    if (!open && !exists(values[i + 1])) text += "h0.1";
    open = true;
  }
  return text;
}

function band_path(steps, low, high, x, y) {
  const usable =
      steps.map((_, i) => i).filter((i) => exists(low[i]) && (!y.log || low[i] > 0) && (!x.log || steps[i] > 0));
  const corner = (values) => (i) => `${x.at(steps[i]).toFixed(1)} ${y.at(values[i]).toFixed(1)}`;
  return usable.length < 2 ? "" : `M${[...usable.map(corner(high)), ...usable.reverse().map(corner(low))].join("L")}Z`;
}

function draw_axes(svg, x, y, format) {
  for (const tick of y.log ? log_ticks(y.low, y.high) : linear_ticks(y.low, y.high, 5)) {
    const place = y.at(tick).toFixed(1);
    svg.append(
        make("line", {class: "grid", x1: x.begin, x2: x.end, y1: place, y2: place}),
        make("text", {x: x.begin - 6, y: +place + 4, "text-anchor": "end"}, format(tick)));
  }
  for (const tick of x.log ? log_ticks(x.low, x.high) :
                             linear_ticks(x.low, x.high, Math.max(2, (x.end - x.begin) / 90))) {
    if (tick % 1) continue;
    const place = x.at(tick), anchor = place > x.end - 14 ? "end" : "middle";
    svg.append(
        make("text", {x: Math.min(place, x.end + 4), y: y.begin + 15, "text-anchor": anchor}, count(Math.round(tick))));
  }
  svg.append(make("line", {class: "grid", x1: x.begin, x2: x.end, y1: y.begin, y2: y.begin}));
}

class Plot {
  constructor(plot) {
    this.plot = plot;
    this.log = Boolean(plot.log);
    this.button = make(
        "button", {class: "log", type: "button", "aria-pressed": String(this.log), onclick: () => this.toggle_log()},
        "log");
    this.note = make("small");
    this.svg = make("svg", {onpointermove: (event) => this.hover(event), onpointerleave: () => this.leave()});
    this.card = make(
        "div", {class: "plot", "data-metric": plot.key},
        make("h3", {}, make("span", {}, plot.title, plot.unit ? `, ${plot.unit}` : ""), this.note, this.button),
        this.svg);
  }

  toggle_log() {
    this.log = !this.log;
    this.button.setAttribute("aria-pressed", String(this.log));
    this.draw();
  }

  draw() {
    const {key} = this.plot, width = Math.max(260, this.card.clientWidth - 20), height = 220;
    this.runs = shown_runs().filter((run) => curve_of(run, key) && curve_of(run, key)[0].some(exists));
    this.svg.setAttribute("height", height);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    this.note.textContent = this.runs.length ? "" : "no values of the runs shown";
    if (!this.runs.length) return;
    const banded = this.runs.length <= 3, values = [];
    let most = 1, least = Infinity;
    for (const run of this.runs) {
      const curve = curve_of(run, key), steps = steps_of(run, key);
      for (const list of banded ? curve : [curve[0]]) {
        for (const value of list)
          if (exists(value) && (!this.log || value > 0)) values.push(value);
      }
      most = Math.max(most, steps[steps.length - 1]);
      least = Math.min(least, steps[0]);
    }
    if (!values.length) {
      this.note.textContent = "nothing above 0";
      return;
    }
    const log_steps = choices.log_steps && most > least;
    const range = value_range(values, this.plot, this.log), format = this.plot.format || significant;
    this.x = new Axis(log_steps ? Math.max(1, least) : 0, most, 62, width - 8, log_steps);
    this.y = new Axis(range.low, range.high, height - 22, 6, this.log);
    if (range.cut !== null) this.note.textContent = `cut: up to ${format(range.cut)}`;
    draw_axes(this.svg, this.x, this.y, this.plot.format === loss ? significant : format);
    this.draw_curves(banded, width, height);
  }

  draw_curves(banded, width, height) {
    const {key} = this.plot, id = `clip-${key}`;
    const inside = make("g", {"clip-path": `url(#${id})`});
    this.svg.append(
        make("defs", {}, make("clipPath", {id}, make("rect", {x: 62, y: 2, width: width - 66, height: height - 24}))),
        inside);
    inside.classList.toggle("alone", !this.runs.some(is_coloured));
    // Coloured ones last, the best on top.
    for (const run of [...this.runs].reverse().sort((a, b) => is_coloured(a) - is_coloured(b))) {
      const [mean, low, high] = curve_of(run, key), steps = steps_of(run, key),
                        colour = is_coloured(run) ? colour_of(run) : null;
      if (banded && low)
        inside.append(make(
            "path", {class: "band", d: band_path(steps, low, high, this.x, this.y), fill: colour || "var(--grey)"}));
      inside.append(make("path", {
        class: colour ? "curve" : "curve other",
        d: line_path(steps, mean, this.x, this.y),
        stroke: colour,
        "data-run": run.index
      }));
    }
    this.cursor = make("line", {class: "cursor", y1: 6, y2: height - 22, visibility: "hidden"});
    this.svg.append(this.cursor);
  }

  // The run whose curve is nearest to the pointer, then the coloured ones.
  hover(event) {
    if (!this.runs.length || !this.x) return;
    const box = this.svg.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const found = this.runs.map((run) => this.nearest_point(run, px)).filter(Boolean);
    if (!found.length) return;
    for (const point of found) point.distance = Math.hypot(point.px - px, point.py - py);
    found.sort((a, b) => a.distance - b.distance);
    const [first, ...others] = found;
    this.cursor.setAttribute("x1", first.px);
    this.cursor.setAttribute("x2", first.px);
    this.cursor.setAttribute("visibility", "visible");
    highlight(first.run);
    const listed = others.filter((point) => is_picked(point.run)).slice(0, 8).sort((a, b) => b.value - a.value);
    show_tip(event, [
      make("div", {}, `step ${first.step}`), this.tip_row(first, true),
      ...listed.map((point) => this.tip_row(point, false))
    ]);
  }

  nearest_point(run, px) {
    const steps = steps_of(run, this.plot.key), [mean, low, high] = curve_of(run, this.plot.key);
    let best = -1, distance = Infinity;
    for (let i = 0; i < steps.length; ++i) {
      if (!exists(mean[i]) || (this.log && mean[i] <= 0)) continue;
      const away = Math.abs(this.x.at(steps[i]) - px);
      if (away < distance) [best, distance] = [i, away];
    }
    return best < 0 || distance > 40 ? null : {
      run,
      step: steps[best],
      value: mean[best],
      low: low && low[best],
      high: high && high[best],
      px: this.x.at(steps[best]),
      py: this.y.at(mean[best])
    };
  }

  tip_row(point, first) {
    const format = this.plot.format || significant;
    const spread =
        exists(point.low) && point.low !== point.high ? ` (${format(point.low)} to ${format(point.high)})` : "";
    return make(
        "div", {}, swatch(point.run), make(first ? "b" : "span", {}, format(point.value)),
        spread + "  " + point.run.name);
  }

  leave() {
    if (this.cursor) this.cursor.setAttribute("visibility", "hidden");
    highlight(null);
    hide_tip();
  }
}
