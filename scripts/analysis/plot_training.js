// Curves of runs: `data` = {title, panels, runs, settings}, as plot_training.py writes it.
const COLORS = 8;
const NEAR = 24; // pixels between the mouse and a point whose value is shown
const color = (run) => `rgb(var(--c${run % COLORS}))`;
const hiddenRuns = new Set();
const charts = [];

function showPage() {
  const buttons = data.runs.map((run, k) => {
    const mark = make("i", { style: `background: ${color(k)}` });
    const button = make("button", { "aria-pressed": "true", class: "run" }, mark, run.name);
    button.addEventListener("click", () => {
      if (!hiddenRuns.delete(k)) hiddenRuns.add(k);
      button.setAttribute("aria-pressed", String(!hiddenRuns.has(k)));
      charts.forEach((chart) => chart.redraw());
    });
    return button;
  });
  const legend = make("div", { class: "choices legend" }, ...(buttons.length > 1 ? buttons : []));
  const note = make("p", { class: "muted" }, "Bold: the mean over an epoch; pale: training batches; dots: validations and tests, with their 95\u202f% interval.");
  const panels = data.panels.map(makePanel).filter(Boolean);
  page.replaceChildren(make("header", {}, make("h1", {}, data.title), note, legend), makeRuns(), ...panels);
  if (data.settings.length) page.append(makeSettings());
}

// The last values of the runs, side by side.
function makeRuns() {
  const percent = (value) => formatPercent(value, 1);
  const columns = [
    { title: "run", left: true, value: (run) => run.name, cell: (run) => [makeMark(run), run.name] },
    ...[
      ["epochs", "epoch", formatNumber],
      ["updates", "step", formatCount],
      ["last loss", "loss", formatNumber],
      ["last top-1", "top1", percent],
      ["last validation", "last", percent],
      ["best validation", "best", percent],
      ["at epoch", "best_epoch", formatNumber],
      ["clips/s", "clips_per_second", formatNumber],
    ].map(([title, key, format]) => ({ title, value: (run) => run.last[key], cell: (run) => format(run.last[key]) })),
  ];
  const { table } = makeTable(columns, data.runs);
  table.id = "runs";
  return make("section", {}, make("div", { class: "scroll" }, table));
}

const makeMark = (run) => make("i", { class: "mark", style: `background: ${color(data.runs.indexOf(run))}` });

function makeSettings() {
  const columns = [
    { title: "setting", left: true, cell: (row) => row[0] },
    ...data.runs.map((run, k) => ({ title: run.name, left: true, cell: (row) => row[1][k] ?? NONE })),
  ];
  const { table } = makeTable(columns, data.settings);
  table.id = "settings";
  const head = make("div", { class: "head" }, make("h2", {}, "Settings that differ"));
  return make("section", {}, head, make("div", { class: "scroll" }, table));
}

// A panel has for each run {batches, means, tests, intervals}: points [epoch, value, ...] or [].
function makePanel(panel) {
  if (!panel.curves.some((curve) => curve.batches.length || curve.tests.length)) return null;
  const format = (value) => `${formatNumber(value)}${panel.unit}`;
  let logarithmic = false;
  let redraw = () => {};
  const chart = makeChart((node, width) => {
    redraw = () => node.replaceChildren(drawCurves(panel, width, logarithmic, format));
    redraw();
  });
  charts.push({ redraw: () => redraw() });
  const head = make("div", { class: "head" }, make("h2", {}, panel.title));
  if (panel.logarithm) {
    const button = make("button", { "aria-pressed": "false" }, "log");
    button.addEventListener("click", () => {
      logarithmic = !logarithmic;
      button.setAttribute("aria-pressed", String(logarithmic));
      redraw();
    });
    head.append(button);
  }
  return make("section", {}, head, chart);
}

function drawCurves(panel, width, logarithmic, format) {
  const [left, right, top, bottom, height] = [58, 14, 8, 26, 246];
  const curves = panel.curves.map((curve, run) => ({ ...curve, run })).filter(({ run }) => !hiddenRuns.has(run));
  const points = curves.flatMap((curve) => [...curve.batches, ...curve.tests]);
  const values = points.map((point) => point[1]);
  values.push(...curves.flatMap((curve) => curve.intervals.flatMap((interval) => interval.slice(1))));
  const usable = logarithmic ? values.filter((value) => value > 0) : values;
  let low = panel.zero && !logarithmic ? 0 : reduce(usable, Math.min, 0);
  let high = reduce(usable, Math.max, 1);
  const scale = logarithmic ? Math.log10 : (value) => value;
  if (logarithmic && !(high > 0)) [low, high] = [0.1, 1];
  if (low === high) [low, high] = logarithmic ? [low / 2, high * 2] : [low, high + (Math.abs(high) || 1)];
  const end = reduce(panel.curves.flatMap((curve) => [...curve.batches, ...curve.tests]).map((point) => point[0]), Math.max, 1);
  const x = (epoch) => left + (epoch / end) * (width - left - right);
  const y = (value) => top + (1 - (scale(value) - scale(low)) / (scale(high) - scale(low))) * (height - top - bottom);
  const isDrawn = (value) => !logarithmic || value > 0;
  const svg = makeSvg("svg", { width, height, role: "img", "aria-label": panel.title, style: "touch-action: pan-y" });
  for (const tick of logarithmic ? listPowers(low, high) : listTicks(low, high)) {
    svg.append(makeSvg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    svg.append(makeSvg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, format(tick)));
  }
  for (const tick of listTicks(0, end)) {
    svg.append(makeSvg("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, formatNumber(tick)));
  }
  svg.append(makeSvg("text", { x: left - 10, y: height - bottom + 18, "text-anchor": "end" }, "epoch"));
  for (const { run, batches, means, tests, intervals } of curves) {
    const path = (line, style) => {
      const text = line.filter((point) => isDrawn(point[1])).map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
      if (text.length > 1) svg.append(makeSvg("polyline", { points: text.join(" "), style: `fill: none; stroke: ${color(run)}; ${style}` }));
      else if (text.length) {
        const [cx, cy] = text[0].split(",");
        svg.append(makeSvg("circle", { cx, cy, r: 3, style: `fill: ${color(run)}` }));
      }
    };
    path(batches, means.length ? "opacity: .3; stroke-width: 1" : "stroke-width: 1.8");
    path(means, "stroke-width: 2.2");
    path(tests, "stroke-width: 1.2; stroke-dasharray: 4 4");
    for (const [epoch, from, to] of intervals.filter((interval) => isDrawn(interval[1]))) {
      svg.append(makeSvg("line", { x1: x(epoch), x2: x(epoch), y1: y(from), y2: y(to), style: `stroke: ${color(run)}; opacity: .45` }));
    }
    for (const [epoch, value] of tests.filter((point) => isDrawn(point[1]))) {
      svg.append(makeSvg("circle", { cx: x(epoch), cy: y(value), r: 3.2, style: `fill: ${color(run)}` }));
    }
  }
  const cross = makeSvg("g", { style: "pointer-events: none" });
  const area = makeSvg("rect", { x: left, y: 0, width: width - left - right, height: height - bottom, fill: "transparent" });
  svg.append(cross, area);

  // Values of all runs at the epoch under the mouse.
  const describe = (event) => {
    const position = event.clientX - svg.getBoundingClientRect().left;
    const lines = [];
    cross.replaceChildren(makeSvg("line", { x1: position, x2: position, y1: top, y2: height - bottom, style: "stroke: rgb(var(--muted))" }));
    for (const { run, batches, means, tests } of curves) {
      const train = findNearest(means.length ? means : batches, x, position);
      const batch = means.length ? findNearest(batches, x, position) : null;
      const test = findNearest(tests, x, position);
      const parts = [];
      if (train) parts.push(format(train[1]));
      if (batch) parts.push(`batches ${format(batch[1])}`);
      if (test) parts.push(`validation ${format(test[1])} (epoch ${formatNumber(test[0])})`);
      for (const point of [train, test]) {
        if (point && isDrawn(point[1])) cross.append(makeSvg("circle", { cx: x(point[0]), cy: y(point[1]), r: 4.5, style: `fill: ${color(run)}; stroke: rgb(var(--card)); stroke-width: 2` }));
      }
      if (parts.length) lines.push(`${data.runs[run].name}: ${parts.join(", ")}`);
    }
    const epoch = Math.max(0, ((position - left) / (width - left - right)) * end);
    return [`epoch ${epoch.toFixed(2)}`, ...lines];
  };
  addTip(area, describe);
  area.addEventListener("pointerleave", () => cross.replaceChildren());
  return svg;
}

// Math.min(...values) fails for a hundred thousand values.
function reduce(values, choose, fallback) {
  return values.length ? values.reduce((a, b) => choose(a, b)) : fallback;
}

function listPowers(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const powers = Array.from({ length: Math.floor(Math.log10(high) + 1e-9) - first + 1 }, (_, k) => 10 ** (first + k));
  return powers.length > 1 ? powers : [low, high];
}

// The point whose epoch is nearest to a pixel, if it is near; epochs ascend.
function findNearest(points, x, position) {
  let [start, stop] = [0, points.length - 1];
  while (stop - start > 1) {
    const middle = (start + stop) >> 1;
    if (x(points[middle][0]) < position) start = middle;
    else stop = middle;
  }
  const distance = (k) => Math.abs(x(points[k][0]) - position);
  const best = points.length && distance(stop) < distance(start) ? stop : start;
  return points.length && (distance(best) < NEAR || points.length === 1) ? points[best] : null;
}

showPage();
