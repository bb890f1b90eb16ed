// Distributions over clients: a row of columns for each experiment, with its median and its ends named.

// rows: {part, counts: [], median, words, short}; bins are equally wide on the scale between the limits.
function drawRows(host, { rows, limits, log, xName, unit = "", width, title }) {
  if (!rows.length) return emptyChart(host, "Every experiment is switched off in the legend.");
  const isNarrow = width <= 480;
  const [left, right, each, tall] = [2, width - 4, isNarrow ? 92 : 76, 34];
  const height = rows.length * each + 34;
  const scale = (log ? logarithmic : linear)(limits[0], limits[1], left, right);
  const bottom = rows.length * each - 2;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
  let edge = -Infinity;
  for (const tick of scale.ticks(Math.round(width / 90))) {
    const [at, half] = [scale.at(tick), 3.6 * figure(tick).length];
    svg.append(make("line", { x1: at, x2: at, y1: 4, y2: bottom, class: "grid" }));
    if (at - half < Math.max(0, edge + 8) || at + half > width) continue;
    edge = at + half;
    svg.append(make("text", { x: at, y: bottom + 15, class: "middle" }, figure(tick)));
  }
  svg.append(make("text", { x: right, y: height - 2, class: "end" }, log ? `${xName} (log scale)` : xName));
  rows.forEach((row, k) => svg.append(rowOf(row, scale, k * each, tall, width, isNarrow)));
  const cross = make("line", { y1: 0, y2: bottom, class: "cross", visibility: "hidden" });
  svg.append(cross);
  host.replaceChildren(svg);
  host.setAttribute("tabindex", "0");
  const bins = rows[0].counts.length;
  const step = (right - left) / bins;
  const stops = rows.flatMap((row, r) => row.counts.flatMap((count, bin) => (count ? [{ row, r, bin, count }] : [])));
  attachReadout(host, cross, {
    stops: stops.length,
    nearest: (px, py) => {
      const wanted = (px - left) / step - 0.5;
      const r = Math.max(0, Math.min(rows.length - 1, Math.floor(py / each)));
      let best = null;
      stops.forEach((stop, k) => {
        if (stop.r === r && (best === null || Math.abs(stop.bin - wanted) < Math.abs(stops[best].bin - wanted))) best = k;
      });
      return best;
    },
    show: (k) => {
      const { row, bin, count } = stops[k];
      const [from, to] = [scale.invert(left + bin * step), scale.invert(left + (bin + 1) * step)];
      const words = `${count} client${count === 1 ? "" : "s"}`;
      return { x: left + (bin + 0.5) * step, title: `${figure(from)} to ${figure(to)}${unit}`, rows: [{ part: row.part, words: row.part.label, value: words }] };
    },
  });
}

// A name and the words beside it share a line, where a letter is some 7.5 pixels wide: shorter words first, then a
// shorter name.
function fitted(label, row, width) {
  const room = (words) => Math.floor((width - 4) / 7.5) - words.length - 2;
  const words = label.length <= room(row.words) ? row.words : row.short;
  return [label.length <= room(words) ? label : `${label.slice(0, Math.max(8, room(words) - 1))}…`, words];
}

function rowOf(row, scale, y, tall, width, isNarrow) {
  const group = make("g", { class: `series c${row.part.colour}`, "data-part": row.part.id });
  const base = y + (isNarrow ? 40 : 24) + tall;
  const most = Math.max(...row.counts);
  const [left, right] = [scale.at(scale.low), scale.at(scale.high)];
  const step = (right - left) / row.counts.length;
  row.counts.forEach((count, k) => {
    if (!count) return;
    const high = Math.max(3, (count / most) * tall);
    group.append(make("rect", { x: left + k * step + 0.7, y: base - high, width: Math.max(1, step - 1.4), height: high, rx: 1, class: row.part.dashed ? "hollow" : "dot" }));
  });
  group.append(make("line", { x1: left, x2: right, y1: base, y2: base, class: "axis" }));
  const middle = scale.at(row.median);
  group.append(make("path", { d: `M${middle} ${base + 1}l-5 8h10z`, class: "dot" }));
  const [label, words] = isNarrow ? [row.part.label, row.short] : fitted(row.part.label, row, width);
  group.append(make("text", { x: 0, y: y + 14, class: "strong" }, label));
  // On a phone the words go under the name.
  const place = isNarrow ? { x: 0, y: y + 30 } : { x: width - 4, y: y + 14, class: "end" };
  group.append(make("text", place, words));
  return group;
}
