// Numbers as text, elements, colours.
const PALETTE = ["#3b6fd4", "#e0701b", "#2c9a5b", "#c93a4b", "#8a56c9", "#0fa3a3", "#b8860b", "#d858a3"];
const RAMP = [[59, 111, 212], [44, 154, 154], [127, 176, 58], [224, 163, 27], [216, 80, 58]];

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "g", "rect", "clipPath", "defs"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    key.startsWith("on") ? element.addEventListener(key.slice(2), value) :
                           element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const exists = (value) => value !== null && value !== undefined;

function significant(value, digits = 4) {
  if (!exists(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(digits - 2).replace(/\.?0+e/, "e").replace("e+", "e");
  return size >= 10 ** (digits - 1) ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
}
const loss = (value) => (!exists(value) ? "-" : value < 1e4 ? value.toFixed(4) : value.toExponential(2));
const rate = (value) =>
    (!exists(value)  ? "-" :
         value < 1e4 ? value.toFixed(0) :
         value < 1e6 ? (value / 1e3).toFixed(1) + "k" :
                       (value / 1e6).toFixed(2) + "M");
const count = (value) =>
    (!exists(value)  ? "-" :
         value < 1e6 ? String(value) :
         value < 1e9 ? (value / 1e6).toFixed(1) + " M" :
                       (value / 1e9).toFixed(2) + " B");
const bytes = (value) =>
    (!exists(value)  ? "-" :
         value < 1e9 ? (value / 1e6).toFixed(0) + " MB" :
                       (value / 1e9).toFixed(1) + " GB");
const milliseconds = (value) =>
    (!exists(value)   ? "-" :
         value >= 100 ? value.toFixed(0) + " ms" :
                        significant(value, 3) + " ms");
function duration(seconds) {
  if (!exists(seconds)) return "-";
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

const mix = (a, b, t) => a.map((value, i) => Math.round(value + (b[i] - value) * t));
function along(stops, t) {
  const place = Math.min(Math.max(t, 0), 1) * (stops.length - 1), index = Math.min(Math.floor(place), stops.length - 2);
  return mix(stops[index], stops[index + 1], place - index);
}
const css = (colour) => `rgb(${colour.join(",")})`;
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).split(",").map(Number);

const tip = document.getElementById("tip");
function show_tip(event, rows) {
  tip.replaceChildren(...rows);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 16 + box.width < innerWidth;
  tip.style.left = Math.max(4, right ? event.clientX + 16 : event.clientX - 16 - box.width) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 6)) + "px";
}
const hide_tip = () => {
  tip.hidden = true;
};
