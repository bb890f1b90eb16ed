// A chart of lines: mean over seeds, a band of one standard deviation, dots at upcycled iterations.

// series: {part, x: [], y: [], sd: [] or null, marks: [] or null, dashed}; values may be null.
function drawLines(host, { series, xName, yName, unit = "", whole = false, logX = false, logY = false, width, height, floor = null, ceiling = null, bands = 0.13, title, nothing = "Every line is switched off in the legend." }) {
  const shown = series.map((s) => ({ ...s, points: pointsOf(s, logX, logY) })).filter((s) => s.points.length);
  if (!shown.length) return emptyChart(host, series.length ? `Nothing to draw: no run has ${yName} against ${xName}.` : nothing);
  const [low, high] = rangeOf(shown, logY, floor, ceiling);
  const probe = (logY ? logarithmic : linear)(low, high, 1, 0);
  const yTicks = probe.ticks(Math.max(3, Math.round(height / 46)));
  const yWords = tickWords(yTicks);
  const left = 12 + 6.9 * Math.max(...yWords.map((words) => words.length));
  const [right, top, bottom] = [width - 10, 8, height - 40];
  const xs = shown.flatMap((s) => s.points.map((p) => p.x));
  const xLow = logX || whole ? Math.min(...xs) : Math.min(0, ...xs);
  const xScale = (logX ? logarithmic : linear)(whole ? Math.min(xLow, 1) : xLow, Math.max(...xs), left + 4, right);
  const yScale = (logY ? logarithmic : linear)(low, high, bottom, top);
  const clip = `clip-${(drawLines.count = (drawLines.count ?? 0) + 1)}`;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
  svg.append(make("defs", {}, make("clipPath", { id: clip }, make("rect", { x: left, y: top - 3, width: right - left + 8, height: bottom - top + 6 }))));
  yTicks.forEach((tick, k) => {
    svg.append(make("line", { x1: left, x2: right, y1: yScale.at(tick), y2: yScale.at(tick), class: "grid" }));
    svg.append(make("text", { x: left - 7, y: yScale.at(tick) + 4, class: "end" }, yWords[k]));
  });
  svg.append(make("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
  let edge = -Infinity;
  for (const tick of xScale.ticks(Math.round((right - left) / 76), whole)) {
    const [at, half] = [xScale.at(tick), 3.6 * figure(tick).length];
    if (at - half < edge + 8) continue;
    edge = at + half;
    const place = at + half > width ? { x: width, class: "end" } : { x: at, class: "middle" };
    svg.append(make("text", { ...place, y: bottom + 17 }, figure(tick)));
  }
  svg.append(make("text", { x: right, y: height - 4, class: "end" }, logX ? `${xName} (log scale)` : xName));
  const group = make("g", { "clip-path": `url(#${clip})` });
  for (const s of shown) group.append(lineOf(s, xScale, yScale, bands, right - left));
  const cross = make("line", { y1: top, y2: bottom, class: "cross", visibility: "hidden" });
  svg.append(group, cross);
  host.replaceChildren(svg);
  host.setAttribute("tabindex", "0");
  const stops = [...new Set(xs)].sort((a, b) => a - b);
  attachReadout(host, cross, {
    stops: stops.length,
    nearest: (px) => (px < left - 6 || px > right + 10 ? null : closest(stops, xScale.invert(Math.max(left, px)))),
    show: (k) => ({
      x: xScale.at(stops[k]),
      title: `${figure(stops[k])} ${xName}`,
      rows: shown
        .map((s) => ({ s, p: pointAt(s.points, stops[k]) }))
        .filter(({ p }) => p)
        .sort((a, b) => b.p.y - a.p.y)
        .map(({ s, p }) => ({ part: s.part, words: s.part.label, value: figure(p.y) + unit + (isNumber(p.sd) ? ` ± ${figure(p.sd)}` : "") })),
    }),
  });
}

function pointsOf({ x, y, sd, marks }, logX, logY) {
  const found = [];
  y.forEach((value, k) => {
    if (!isNumber(value) || !isNumber(x[k]) || (logX && x[k] <= 0) || (logY && value <= 0)) return;
    const point = { x: x[k], y: value, sd: sd && isNumber(sd[k]) ? sd[k] : null, mark: Boolean(marks && marks[k]) };
    // What costs nothing does not move along x: the point is the model after it.
    if (found.length && found[found.length - 1].x === point.x) found[found.length - 1] = point;
    else found.push(point);
  });
  return found;
}

// A range that shows every mean, and bands as far as they do not squeeze the lines.
function rangeOf(shown, log, floor, ceiling) {
  const ys = shown.flatMap((s) => s.points.map((p) => p.y));
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (log) return [low / 1.15, high * 1.15];
  // Values have five digits: a thousandth is hardly a movement.
  if (high - low <= 1e-3 * Math.abs(high)) return [low - (Math.abs(low) * 0.01 || 0.5), high + (Math.abs(high) * 0.01 || 0.5)];
  const margin = 0.22 * (high - low);
  const under = Math.min(...shown.flatMap((s) => s.points.map((p) => p.y - (p.sd ?? 0))));
  const over = Math.max(...shown.flatMap((s) => s.points.map((p) => p.y + (p.sd ?? 0))));
  const least = Math.max(low - margin, Math.min(under, low - 0.04 * (high - low)));
  const most = Math.min(high + margin, Math.max(over, high + 0.04 * (high - low)));
  return [floor === null ? least : Math.max(floor, least), ceiling === null ? most : Math.min(ceiling, most)];
}

function lineOf(s, xScale, yScale, bands, width) {
  const group = make("g", { class: `series c${s.part.colour}`, "data-part": s.part.id });
  const at = (p, y) => `${xScale.at(p.x).toFixed(1)} ${yScale.at(y).toFixed(1)}`;
  const banded = bands ? s.points.filter((p) => p.sd) : [];
  const within = (y) => (yScale.low > 0 ? Math.max(y, yScale.low * 1e-3) : y);
  if (banded.length > 1) {
    const over = banded.map((p) => at(p, p.y + p.sd));
    const under = banded.map((p) => at(p, within(p.y - p.sd))).reverse();
    group.append(make("path", { d: `M${over.join("L")}L${under.join("L")}Z`, class: "band", opacity: bands }));
  }
  const style = s.dashed ? "line dashed" : "line";
  group.append(make("path", { d: `M${s.points.map((p) => at(p, p.y)).join("L")}`, class: style, "data-points": s.points.length }));
  const marked = s.points.filter((p) => p.mark);
  const stride = Math.ceil(marked.length / Math.max(1, width / 9));
  const dots = s.points.length === 1 ? s.points : marked.filter((_, k) => k % stride === 0);
  for (const p of dots) group.append(make("circle", { cx: xScale.at(p.x).toFixed(1), cy: yScale.at(p.y).toFixed(1), r: s.points.length === 1 ? 4 : 2.4, class: "dot" }));
  return group;
}

function closest(sorted, value) {
  let best = 0;
  sorted.forEach((x, k) => {
    if (Math.abs(x - value) < Math.abs(sorted[best] - value)) best = k;
  });
  return best;
}

// The last point up to x, if the line has not ended before.
function pointAt(points, x) {
  if (x > points[points.length - 1].x || x < points[0].x) return null;
  let found = points[0];
  for (const p of points) if (p.x <= x) found = p;
  return found;
}
