// The page: what is switched on, which x is chosen, light or dark; every change draws all charts again.

const data = JSON.parse(document.getElementById("report-data").textContent);
const on = new Set(data.parts.filter((part) => part.on).map((part) => part.id));
const root = document.documentElement;
let axis = "iteration";

const AXES = {
  iteration: { name: "iterations", whole: true },
  data_round: { name: "data rounds", whole: true },
  megabytes: { name: "MB sent" },
  seconds: { name: "seconds of training" },
  epsilon: { name: "epsilon of the worst client" },
};
const SCORES = {
  accuracy: { name: `${data.scored} accuracy`, unit: " %", floor: 0, ceiling: 100 },
  loss: { name: `${data.scored} loss` },
  ...Object.fromEntries(data.metrics.map((name) => [name, { name: `${data.scored} ${name}` }])),
};

const ratio = (values) => {
  const known = values.filter((v) => isNumber(v) && v > 0);
  return known.length ? Math.max(...known) / Math.min(...known) : 1;
};

function scoreSpec(score, x, parts) {
  const series = parts
    .filter((part) => part.curve && part.curve[score])
    .map((part) => ({ part, x: part.curve[x], y: part.curve[score], sd: part.curve[`${score}_sd`], marks: part.curve.upcycled, dashed: part.dashed }));
  const { name, ...rest } = SCORES[score];
  return {
    series,
    nothing: parts.length ? "These runs publish no scores over iterations." : undefined,
    xName: AXES[x].name,
    yName: name,
    whole: AXES[x].whole,
    logX: x === "epsilon" && ratio(series.flatMap((s) => s.x)) > 300,
    logY: score === "loss" && ratio(series.flatMap((s) => s.y)) > 60,
    bands: parts.length <= 4 ? 0.13 : parts.length <= 8 ? 0.07 : 0,
    title: `${name} against ${AXES[x].name}: ${parts.map((part) => part.label).join("; ")}. Arrow keys read values.`,
    ...rest,
  };
}

function spentSpec(parts) {
  const series = parts
    .filter((part) => part.spent)
    .map((part) => ({ part, x: part.spent.rounds, y: part.spent.worst, dashed: part.dashed }));
  const logY = ratio(series.flatMap((s) => s.y)) > 300;
  return { series, xName: "data rounds", yName: "epsilon", whole: true, logY, floor: 0, title: `${data.epsilon} of the worst client over data rounds. Arrow keys read values.` };
}

function drawInto(host, width, height, parts, x) {
  const [kind, which] = host.dataset.chart.split(":");
  if (kind === "score") drawLines(host, { ...scoreSpec(which, x, parts), width, height });
  else if (kind === "spent") drawLines(host, { ...spentSpec(parts), width, height });
  else {
    const chart = data.clients[which];
    const rows = chart.rows.map((row) => ({ ...row, part: data.parts[row.part] })).filter((row) => parts.includes(row.part));
    drawRows(host, { rows, limits: chart.limits, log: chart.log, xName: chart.name, unit: chart.unit, width, title: `${chart.name}, a client each, by experiment` });
  }
}

const shownParts = () => data.parts.filter((part) => on.has(part.id));

function draw() {
  for (const host of document.querySelectorAll(".chart[data-chart]")) {
    if (host.closest(".print-only")) continue;
    const width = host.clientWidth;
    if (width > 100) drawInto(host, width, width < 480 ? 250 : 310, shownParts(), axis);
  }
  for (const node of document.querySelectorAll("[data-axis-words]")) node.textContent = `against ${AXES[axis].name}`;
}

function drawForPrint() {
  for (const host of document.querySelectorAll(".print-only .chart")) drawInto(host, 340, 215, shownParts(), host.dataset.axis);
}

function buildLegend(box) {
  const buttons = data.parts.map((part) => {
    const button = make("button", { type: "button", "data-part": part.id }, [keyOf(part), make("span", {}, part.label)]);
    button.onclick = () => {
      if (on.has(part.id)) on.delete(part.id);
      else on.add(part.id);
      refresh();
    };
    return button;
  });
  const all = (words, chosen) => {
    const button = make("button", { type: "button", class: "quiet" }, words);
    button.onclick = () => {
      on.clear();
      for (const part of chosen) on.add(part.id);
      refresh();
    };
    return button;
  };
  box.replaceChildren(...buttons);
  if (data.parts.length > 4) box.append(all("all", data.parts), all("none", []));
}

function refresh() {
  for (const button of document.querySelectorAll(".legend button[data-part]")) {
    button.setAttribute("aria-pressed", String(on.has(Number(button.dataset.part))));
  }
  draw();
  drawForPrint();
}

function wireTheme(button) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const say = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  };
  button.onclick = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    say();
  };
  dark.onchange = say;
  say();
}

// Closed boxes are opened on paper, and closed again after.
function wirePrint() {
  const opened = [];
  const before = () => {
    for (const box of document.querySelectorAll("details:not([open])")) {
      box.open = true;
      opened.push(box);
    }
  };
  const after = () => {
    while (opened.length) opened.pop().open = false;
  };
  addEventListener("beforeprint", before);
  addEventListener("afterprint", after);
  matchMedia("print").addEventListener("change", (event) => (event.matches ? before() : after()));
}

root.classList.add("scripted");
for (const box of document.querySelectorAll(".legend")) buildLegend(box);
for (const input of document.querySelectorAll("input[name=axis]")) {
  input.onchange = () => {
    axis = input.value;
    draw();
  };
  if (input.checked) axis = input.value;
}
wireTheme(document.getElementById("theme"));
wirePrint();
refresh();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) draw();
  width = innerWidth;
});
