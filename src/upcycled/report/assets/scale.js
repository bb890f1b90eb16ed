// Scales, ticks and numbers: no knowledge of the page.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, children = []) {
  const node = ["svg", "g", "path", "line", "circle", "rect", "text", "clipPath", "defs"].includes(name)
    ? document.createElementNS(SVG, name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  for (const child of [children].flat()) node.append(child);
  return node;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// 0.01234 -> "0.0123", 12.345 -> "12.3", 12345.6 -> "12,346"
function figure(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e7 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(size >= 1 ? 4 : 3)));
}

// Words for ticks: as short as they can be while all differ.
function tickWords(ticks) {
  const short = ticks.map(figure);
  for (let digits = 5; new Set(short).size < ticks.length && digits < 10; digits += 1) {
    ticks.forEach((tick, k) => (short[k] = String(Number(tick.toPrecision(digits)))));
  }
  return short;
}

function niceStep(span, count) {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((m) => m * power).find((step) => step >= rough * 0.999);
}

function linear(low, high, from, to) {
  if (!(high > low)) [low, high] = [low - (Math.abs(low) || 1) * 0.05, high + (Math.abs(high) || 1) * 0.05];
  const at = (value) => from + ((value - low) / (high - low)) * (to - from);
  const ticks = (count, whole) => {
    let step = niceStep(high - low, count);
    if (whole) step = Math.max(1, Math.ceil(step));
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(Number((k * step).toPrecision(12)));
    return found;
  };
  return { at, ticks, low, high, invert: (pixel) => low + ((pixel - from) / (to - from)) * (high - low) };
}

function logarithmic(low, high, from, to) {
  if (!(high > low)) [low, high] = [low / 1.2, high * 1.2];
  const inner = linear(Math.log10(low), Math.log10(high), from, to);
  const ticks = (count) => {
    const decades = inner.high - inner.low;
    const mantissas = decades > 2.5 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 3, 5, 7];
    const stride = Math.max(1, Math.ceil(decades / Math.max(2, count)));
    const found = [];
    for (let e = Math.floor(inner.low); e <= Math.ceil(inner.high); e += 1) {
      if (e % stride) continue;
      for (const m of mantissas) {
        const value = Number((m * 10 ** e).toPrecision(6));
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    return found;
  };
  return { at: (value) => inner.at(Math.log10(value)), ticks, low, high, invert: (pixel) => 10 ** inner.invert(pixel) };
}

// Which key a line has: its colour, and dashes for vanilla, a dot for upcycled.
function keyOf(part) {
  const line = make("line", { x1: 0, y1: 5, x2: 26, y2: 5, class: part.dashed ? "line dashed" : "line" });
  const dot = part.upcycled ? [make("circle", { cx: 13, cy: 5, r: 3, class: "dot" })] : [];
  return make("svg", { class: `key c${part.colour}`, viewBox: "0 0 26 10", "aria-hidden": "true" }, [line, ...dot]);
}
