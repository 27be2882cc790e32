// The page of an evaluation: `data` = {title, average, sets}, as utils/evaluate/report_page.py writes it.
const FEW_CLASSES = 24; // up to which the confusion matrix is a table with numbers
const FEW_VIDEOS = 10; // a bar of the calibration of fewer videos is pale
const PAIRS = 12;
const PAGE_ROWS = 50; // mistakes in the list at a time
const CARDS = 8; // samples with frames before "Show all"
const GAMMA = 0.45; // of the colours: one mistake in 50 videos is visible
const TILES = [
  ["top1", "Top-1 accuracy", formatPercent],
  ["top5", "Top-5 accuracy", formatPercent],
  ["map", "Mean average precision", formatPercent],
  ["mean_class_accuracy", "Mean class accuracy", formatPercent],
  ["nll", "Log loss (nll)", formatNumber],
  ["loss", "Loss", formatNumber],
  ["ece", "Calibration error", (value) => formatPercent(value, 1)],
  ["videos", "Evaluated", formatCount],
];
const COLUMNS = [
  ["average_precision", "average precision"],
  ["recall", "recall"],
  ["precision", "precision"],
  ["f1", "F1"],
  ["top5", "top-5"],
];

function showPage() {
  const parts = make("div");
  const choices = make("div", { class: "choices" });
  const header = make("header", {}, make("h1", {}, data.title));
  if (data.sets.length > 1) header.append(makeOverview(choose), choices);
  page.replaceChildren(header, parts);

  function choose(set) {
    parts.replaceChildren(...showSet(set));
    [...choices.children].forEach((node, k) => node.setAttribute("aria-pressed", data.sets[k] === set));
  }

  if (data.sets.length > 1) {
    choices.append(...data.sets.map((set) => make("button", { click: () => choose(set) }, set.name)));
  }
  choose(data.sets[0]);
}

// The numbers of all data sets, and their average.
function makeOverview(choose) {
  const rows = data.sets.map((set) => ({ name: set.name, set, ...set.result }));
  rows.push({ ...data.average, name: "average", set: null, videos: null });
  const percent = (title, key) => ({ title, cell: (row) => formatPercent(row[key]) });
  const columns = [
    { title: "data set", left: true, cell: (row) => row.name },
    { title: "views", cell: (row) => row.views || "" },
    { title: "videos", cell: (row) => (row.set ? formatCount(row.videos) : "") },
    ...(rows.some((row) => isNumber(row.map)) ? [percent("mAP", "map")] : []),
    percent("top-1", "top1"),
    { title: "95 % interval", cell: (row) => formatInterval(row) },
    percent("top-5", "top5"),
    percent("mean class", "mean_class_accuracy"),
  ];
  const pick = (row) => row.set && choose(row.set);
  const { table } = makeTable(columns, rows, null, false, pick);
  return make("section", {}, make("div", { class: "scroll" }, table));
}

function formatInterval(result, name = "top1") {
  const low = result[`${name}_low`];
  const high = result[`${name}_high`];
  if (!isNumber(low) || !isNumber(high)) return "";
  return `${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}\u202f%`;
}

function showSet(set) {
  const list = makeList(set);
  const show = (filter) => {
    list.filter(filter);
    list.node.scrollIntoView({ block: "start" });
  };
  return [
    makeSummary(set),
    makeTiles(set.result),
    makeClasses(set, show),
    makeConfusion(set, show),
    makeCalibration(set),
    makeCards(set, "Most confident mistakes", "predicted", set.mistakes.slice(0, set.shown)),
    makeCards(set, "Least confident hits", "runner-up", set.hits),
    list.node,
    makeFiles(set),
  ].filter(Boolean);
}

function makeSummary(set) {
  const { checkpoint, views, seconds } = set.result;
  const texts = [set.name, checkpoint, views && `views ${views}`, isNumber(seconds) && `${formatNumber(seconds)} s`];
  return make("p", { class: "muted small word", style: "margin: 0 0 14px" }, texts.filter(Boolean).join(" · "));
}

function makeTiles(result) {
  const isShown = (key) => isNumber(result[key]) && !(key === "loss" && isNumber(result.nll));
  const tiles = TILES.filter(([key]) => isShown(key)).map(([key, title, format]) => {
    const tile = make("div", { class: "tile" }, make("span", { class: "muted small" }, title));
    tile.append(make("b", { id: `tile-${key}` }, format(result[key])));
    const interval = formatInterval(result, key);
    if (interval) {
      tile.append(make("span", { class: "muted small" }, `95\u202f%: ${interval}`));
      tile.append(makeBar(result[key], result[`${key}_low`], result[`${key}_high`]));
    }
    if (key === "videos") {
      const unreadable = result.unreadable || 0;
      tile.append(make("span", { class: "muted small" }, unreadable ? `${unreadable} unreadable` : "all readable"));
    }
    return tile;
  });
  return make("div", { class: "tiles" }, ...tiles);
}

// A bar from 0 to `value`, with a shaded part from `low` to `high`.
function makeBar(value, low = null, high = null, kind = "") {
  const bar = make("span", { class: "bar" }, make("i", { class: kind, style: `width: ${100 * (value || 0)}%` }));
  if (isNumber(low) && isNumber(high)) {
    const style = `left: ${100 * low}%; width: ${100 * (high - low)}%`;
    bar.append(make("i", { class: "range", style }));
  }
  return bar;
}

// Of several labels the names of all; a sample may have none.
function nameClass(set, label) {
  if (Array.isArray(label)) return label.map((one) => nameClass(set, one)).join(", ") || "no label";
  return set.names[label] || `class ${label}`;
}

const hasLabel = (label, one) => (Array.isArray(label) ? label.includes(one) : label === one);

function makeName(set, label) {
  const number = set.names[label] ? make("span", { class: "muted" }, ` ${label}`) : null;
  return make("span", {}, nameClass(set, label), number);
}

function makeSection(title, note, ...children) {
  const text = note ? make("p", { class: "muted small" }, note) : null;
  const head = make("div", { class: "head" }, make("div", {}, make("h2", {}, title), text));
  return make("section", {}, head, ...children);
}

function makeClasses(set, show) {
  const rows = set.classes.map((values, label) => {
    const row = { label, name: nameClass(set, label) };
    set.columns.forEach((key, k) => (row[key] = values[k]));
    return row;
  });
  const percent = (title, key) => ({
    title,
    value: (row) => row[key],
    cell: (row) => formatPercent(row[key]),
  });
  const columns = [
    { title: "class", left: true, value: (row) => row.name, cell: (row) => makeName(set, row.label) },
    { title: "support", value: (row) => row.videos, cell: (row) => formatCount(row.videos) },
    ...COLUMNS.filter(([key]) => rows.some((row) => isNumber(row[key]))).map(([key, title]) => percent(title, key)),
  ];
  const first = columns[2];
  if (first) {
    const bar = (row) => makeBar(first.value(row), row.top1_low, row.top1_high);
    first.cell = (row) => (row.videos ? [formatPercent(first.value(row)), bar(row)] : NONE);
  }
  const { table, nodes } = makeTable(columns, rows, first ? 2 : 0, false, (row) => show({ label: row.label }));
  table.id = "classes";
  for (const [row, node] of nodes) {
    addTip(node, () => {
      const interval = formatInterval(row);
      const hits = Math.round((row.recall || 0) * row.videos); // of several labels at the threshold
      const lines = [row.name, `${hits} of ${row.videos} correct`];
      return interval ? [...lines, `95\u202f% interval of the recall: ${interval}`] : lines;
    });
  }
  const find = make("input", { type: "search", placeholder: "Find a class", "aria-label": "Find a class" });
  find.addEventListener("input", () => {
    const text = find.value.toLowerCase();
    for (const [row, node] of nodes) node.hidden = !`${row.name} ${row.label}`.toLowerCase().includes(text);
  });
  const empty = rows.filter((row) => !row.videos).length;
  const recall = set.columns.includes("top1") ? " Recall is the top-1 of the class, shaded: its 95\u202f% interval." : "";
  const note = `${rows.length} classes${empty ? `, ${empty} without a video` : ""}.${recall} Click a class for its mistakes.`;
  const section = makeSection("Classes", note, make("div", { class: "scroll" }, table));
  section.firstChild.append(find);
  return section;
}

function makeConfusion(set, show) {
  if (!set.confusion) return null; // several labels a video
  const counts = new Map();
  const size = set.names.length;
  const [rows, predicted, numbers] = set.confusion;
  numbers.forEach((count, k) => counts.set(rows[k] * size + predicted[k], count));
  const videos = set.classes.map((row) => row[0]);
  const describe = (row, column) => {
    const count = counts.get(row * size + column) || 0;
    const fraction = videos[row] ? ` (${formatPercent(count / videos[row])})` : "";
    const what = row === column ? "correct" : "mistaken";
    return [
      `true: ${nameClass(set, row)}`,
      `predicted: ${nameClass(set, column)}`,
      `${count} of ${videos[row]} videos ${what}${fraction}`,
    ];
  };
  const matrix = { set, size, counts, videos, describe, show };
  const pairs = [...counts]
    .map(([key, count]) => ({ row: Math.floor(key / size), column: key % size, count }))
    .filter((pair) => pair.row !== pair.column)
    .sort((a, b) => b.count - a.count)
    .slice(0, PAIRS);
  const columns = [
    { title: "true", left: true, cell: (pair) => nameClass(set, pair.row) },
    { title: "predicted", left: true, cell: (pair) => nameClass(set, pair.column) },
    { title: "videos", cell: (pair) => pair.count },
    { title: "of class", cell: (pair) => formatPercent(pair.count / videos[pair.row], 0) },
  ];
  const pick = (pair) => show({ label: pair.row, predicted: pair.column });
  const { table } = makeTable(columns, pairs, null, false, pick);
  const note = "Rows are true classes, columns predicted ones. Blue is correct, orange is mistaken. Click a cell for its videos.";
  const left = size <= FEW_CLASSES ? makeCells(matrix) : makeCanvas(matrix);
  const scroll = make("div", { class: "scroll" }, table);
  const right = make("div", {}, make("h3", {}, "Most frequent mistakes"), pairs.length ? scroll : "None.");
  return makeSection("Confusion matrix", note, make("div", { class: "columns" }, left, right));
}

function strength(count, videos, least = 0.12) {
  return count ? Math.max(least, (count / Math.max(videos, 1)) ** GAMMA) : 0;
}

// Of few classes a table with the numbers.
function makeCells({ set, size, counts, videos, describe, show }) {
  const labels = [...Array(size).keys()];
  const top = labels.map((label) => make("th", { title: nameClass(set, label) }, make("span", {}, nameClass(set, label))));
  const rows = labels.map((row) => {
    const cells = labels.map((column) => {
      const count = counts.get(row * size + column) || 0;
      const alpha = strength(count, videos[row]);
      const color = row === column ? "--blue" : "--orange";
      const style = `background: rgb(var(${color}) / ${alpha}); color: ${alpha > 0.6 ? "rgb(var(--card))" : "inherit"}`;
      const click = () => show({ label: row, predicted: column });
      return addTip(make("td", count ? { style, click, class: "pick" } : {}, count || ""), () => describe(row, column));
    });
    return make("tr", {}, make("th", { title: nameClass(set, row) }, nameClass(set, row)), ...cells);
  });
  const head = make("thead", {}, make("tr", {}, make("th"), ...top));
  const side = `--side: ${Math.min(46, Math.max(26, Math.round(440 / size)))}px`;
  const table = make("table", { class: "cells", id: "matrix", style: side }, head, make("tbody", {}, ...rows));
  return make("div", { style: "overflow: auto" }, table);
}

// Of many classes a canvas of one pixel for each cell, which the browser enlarges.
function makeCanvas({ size, counts, videos, describe, show }) {
  const canvas = make("canvas", { width: size, height: size, id: "matrix" });
  const across = make("div", { class: "cross", hidden: true });
  const down = make("div", { class: "cross", hidden: true });
  const inner = make("div", { class: "matrix" }, canvas, across, down);
  const scroll = make("div", { class: "scroll", style: "max-height: 640px" }, inner);

  function paint() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim().split(" ").map(Number);
    const colors = { ground: read("--card"), hit: read("--blue"), miss: read("--orange") };
    const image = new ImageData(size, size);
    for (let k = 0; k < size * size; k++) image.data.set([...colors.ground, 255], 4 * k);
    for (const [key, count] of counts) {
      const row = Math.floor(key / size);
      const alpha = strength(count, videos[row], 0.4);
      const color = row === key % size ? colors.hit : colors.miss;
      color.forEach((value, k) => (image.data[4 * key + k] = value * alpha + colors.ground[k] * (1 - alpha)));
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // The cell under the pointer; if it is empty and small, the nearest one with videos.
  function find(event) {
    const box = canvas.getBoundingClientRect();
    const cell = box.width / size;
    const column = Math.min(size - 1, Math.max(0, Math.floor((event.clientX - box.left) / cell)));
    const row = Math.min(size - 1, Math.max(0, Math.floor((event.clientY - box.top) / cell)));
    const reach = Math.floor(5 / cell);
    let best = [row, column, Infinity];
    for (let y = Math.max(0, row - reach); y <= Math.min(size - 1, row + reach); y++) {
      for (let x = Math.max(0, column - reach); x <= Math.min(size - 1, column + reach); x++) {
        const distance = (y - row) ** 2 + (x - column) ** 2;
        if (counts.has(y * size + x) && distance < best[2]) best = [y, x, distance];
      }
    }
    const middle = (index) => `${(index + 0.5) * cell}px`;
    across.setAttribute("style", `top: ${middle(best[0])}; left: 0; right: 0; height: 1px`);
    down.setAttribute("style", `left: ${middle(best[1])}; top: 0; bottom: 0; width: 1px`);
    across.hidden = down.hidden = false;
    return best;
  }

  addTip(canvas, (event) => describe(...find(event)));
  canvas.addEventListener("pointerleave", () => (across.hidden = down.hidden = true));
  canvas.addEventListener("click", (event) => {
    const [row, column] = find(event);
    show({ label: row, predicted: column });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();
  let zoom = 1;
  const enlarge = (factor) => () => {
    zoom = Math.min(16, Math.max(1, zoom * factor));
    inner.style.width = `${100 * zoom}%`;
  };
  const buttons = make("div", { style: "display: flex; gap: 6px; margin-bottom: 8px; align-items: center" });
  buttons.append(make("button", { click: enlarge(0.5), "aria-label": "smaller" }, "−"));
  buttons.append(make("button", { click: enlarge(2), "aria-label": "larger" }, "+"));
  buttons.append(make("span", { class: "muted small" }, `${size} × ${size} classes`));
  return make("div", {}, buttons, scroll);
}

function makeCalibration(set) {
  if (!set.bins) return null;
  const note = "Confidence is the probability of the predicted class. A calibrated network follows the dashed line. Pale bars have few videos.";
  const chart = makeChart((node, width) => node.replaceChildren(drawBins(set.bins, width)));
  const legend = [["--blue", "accuracy"], ["--orange", "overconfident"], ["--green", "underconfident"]].map(([color, text]) =>
    make("span", {}, make("i", { style: `background: rgb(var(${color}))` }), text),
  );
  const columns = [
    { title: "confidence", left: true, cell: (bin) => `${formatPercent(bin[0], 0)} to ${formatPercent(bin[1], 0)}` },
    { title: "videos", cell: (bin) => formatCount(bin[2]) },
    { title: "mean", cell: (bin) => formatPercent(bin[3]) },
    { title: "accuracy", cell: (bin) => formatPercent(bin[4]) },
  ];
  const { table } = makeTable(columns, set.bins.filter((bin) => bin[2]));
  const left = make("div", {}, chart, make("div", { class: "legend", style: "margin-top: 8px" }, ...legend));
  const right = make("div", {}, make("div", { class: "scroll" }, table));
  return makeSection("Calibration", note, make("div", { class: "columns" }, left, right));
}

// Bins are [from, to, videos, confidence, accuracy].
function drawBins(bins, width) {
  const left = 46;
  const height = Math.min(300, width * 0.62);
  const low = 64; // of the histogram
  const gap = 14;
  const svg = makeSvg("svg", { width, height: height + gap + low + 52, role: "img", "aria-label": "calibration" });
  const x = (value) => left + value * (width - left - 8);
  const y = (value) => 10 + (1 - value) * height;
  const floor = 10 + height + gap + low;
  const most = Math.max(...bins.map((bin) => bin[2]), 1);
  for (const tick of listTicks(0, 1)) {
    svg.append(makeSvg("line", { class: "grid", x1: left, x2: width - 8, y1: y(tick), y2: y(tick) }));
    svg.append(makeSvg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, `${Math.round(100 * tick)}\u202f%`));
    svg.append(makeSvg("text", { x: x(tick), y: floor + 18, "text-anchor": "middle" }, `${Math.round(100 * tick)}\u202f%`));
  }
  svg.append(makeSvg("line", { class: "grid", x1: left, x2: width - 8, y1: floor, y2: floor }));
  svg.append(makeSvg("text", { x: left - 8, y: floor - low + 10, "text-anchor": "end" }, formatCount(most)));
  svg.append(makeSvg("text", { x: left - 8, y: floor, "text-anchor": "end" }, "0"));
  svg.append(makeSvg("text", { x: x(0.5), y: floor + 36, "text-anchor": "middle" }, "confidence"));
  for (const [from, to, videos, confidence, accuracy] of bins) {
    const place = { x: x(from) + 1, width: Math.max(1, x(to) - x(from) - 2) };
    const group = makeSvg("g", { opacity: videos < FEW_VIDEOS ? 0.4 : 1 });
    if (videos) {
      const [small, large] = [Math.min(confidence, accuracy), Math.max(confidence, accuracy)];
      const color = confidence > accuracy ? "--orange" : "--green";
      const bar = (start, end, fill) =>
        makeSvg("rect", { ...place, y: y(end), height: y(start) - y(end), style: `fill: rgb(var(${fill}))` });
      group.append(bar(0, accuracy, "--blue"), bar(small, large, color));
      const high = Math.max(1, (videos / most) * low);
      group.append(makeSvg("rect", { ...place, y: floor - high, height: high, style: "fill: rgb(var(--muted))" }));
    }
    const area = makeSvg("rect", { x: x(from), width: x(to) - x(from), y: 0, height: floor, fill: "transparent" });
    addTip(area, () => [
      `confidence ${formatPercent(from, 0)} to ${formatPercent(to, 0)}: ${formatCount(videos)} videos`,
      ...(videos ? [`mean confidence ${formatPercent(confidence)}`, `accuracy ${formatPercent(accuracy)}`] : []),
    ]);
    svg.append(group, area);
  }
  svg.append(makeSvg("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), "stroke-dasharray": "5 4", style: "stroke: rgb(var(--text)); pointer-events: none" }));
  return svg;
}

function makeLink(set, sample) {
  const [path, link] = sample;
  const href = link && (set.folder ? `${set.folder}/${link}` : link);
  return link
    ? make("a", { href, target: "_blank", rel: "noopener", class: "word", title: path }, path)
    : make("span", { class: "word", title: path }, path);
}

// A sample is [path, link, true class, other class, their probabilities, pictures].
function makeCards(set, title, other, samples) {
  const cards = samples.map((sample) => {
    const [, , label, second, ofLabel, ofSecond, images] = sample;
    const line = (what, number, probability, kind) =>
      make(
        "div",
        { class: "pair" },
        make("span", { class: "word" }, make("span", { class: "muted" }, `${what} `), nameClass(set, number)),
        ...(isNumber(probability) ? [make("span", {}, formatPercent(probability)), makeBar(probability, null, null, kind)] : []),
      );
    const name = make("div", { class: "name" }, makeLink(set, sample));
    const lines = [line("true", label, ofLabel, "")];
    if (second !== null) lines.push(line(other, second, ofSecond, "wrong"));
    const text = make("div", { class: "text" }, name, ...lines);
    return make("article", { class: "sample" }, makeFrames(images), text);
  });
  const note = samples.length ? "Frames are as the network sees them, from the start to the end." : "None.";
  const more = make("button", { style: "margin-top: 14px" }, `Show all ${cards.length}`);
  const show = (all) => {
    cards.forEach((card, k) => (card.hidden = !all && k >= CARDS));
    more.hidden = all || cards.length <= CARDS;
  };
  more.addEventListener("click", () => show(true));
  show(false);
  return makeSection(title, note, make("div", { class: "cards" }, ...cards), more);
}

// `images` is null if there is nothing to read, empty if the file cannot be read.
function makeFrames(images) {
  if (!images) return null;
  if (!images.length) return make("div", { class: "frames blank" }, "cannot be read");
  const kind = images.length > 1 ? "frames" : "frames single";
  return make("div", { class: kind }, ...images.map((src) => make("img", { src, alt: "" })));
}

// The list of mistakes; `filter` is {label, predicted}, both optional.
function makeList(set) {
  let filter = {};
  let limit = PAGE_ROWS;
  const find = make("input", { type: "search", placeholder: "Find a video or class", "aria-label": "Find a video or class" });
  const chosen = make("div", { class: "choices", style: "margin: 0 0 10px" });
  const scroll = make("div", { class: "scroll" });
  const more = make("button", { style: "margin-top: 10px" });
  const columns = [
    { title: "video", left: true, value: (row) => row[0], cell: (row) => makeLink(set, row) },
    { title: "true", left: true, value: (row) => nameClass(set, row[2]), cell: (row) => nameClass(set, row[2]) },
    { title: "predicted", left: true, value: (row) => nameClass(set, row[3]), cell: (row) => nameClass(set, row[3]) },
  ];
  if (set.mistakes.some((row) => isNumber(row[4]))) {
    columns.push({ title: "of true", value: (row) => row[4], cell: (row) => formatPercent(row[4]) });
    columns.push({ title: "of predicted", value: (row) => row[5], cell: (row) => formatPercent(row[5]) });
  }

  function update() {
    const text = find.value.toLowerCase();
    const rows = set.mistakes.filter(
      (row) =>
        (filter.label === undefined || hasLabel(row[2], filter.label)) &&
        (filter.predicted === undefined || hasLabel(row[3], filter.predicted)) &&
        (!text || `${row[0]} ${nameClass(set, row[2])} ${nameClass(set, row[3])}`.toLowerCase().includes(text)),
    );
    const { table } = makeTable(columns, rows.slice(0, limit));
    table.id = "mistakes";
    table.className = "videos";
    scroll.replaceChildren(rows.length ? table : make("p", { style: "padding: 10px 12px; margin: 0" }, "No mistake."));
    more.hidden = rows.length <= limit;
    more.textContent = `Show more of ${formatCount(rows.length)}`;
    const button = (words) => make("button", { click: () => (change({}), null) }, `${words} ×`);
    const words = [];
    if (filter.label !== undefined) words.push(`true: ${nameClass(set, filter.label)}`);
    if (filter.predicted !== undefined) words.push(`predicted: ${nameClass(set, filter.predicted)}`);
    chosen.replaceChildren(...(words.length ? [button(words.join(", "))] : []));
  }

  function change(next) {
    filter = next;
    limit = PAGE_ROWS;
    update();
  }

  find.addEventListener("input", () => change(filter));
  more.addEventListener("click", () => {
    limit += PAGE_ROWS;
    update();
  });
  const listed = set.mistakes.length;
  const note = set.wrong > listed
    ? `The ${formatCount(listed)} most confident of ${formatCount(set.wrong)} mistakes; wrong.csv has all.`
    : `${formatCount(listed)} mistakes, the most confident first.`;
  const node = makeSection("Mistakes", note, chosen, scroll, more);
  node.firstChild.append(find);
  node.id = "list";
  update();
  return { node, filter: change };
}

function makeFiles(set) {
  const links = set.files.map((name) => make("a", { href: set.folder ? `${set.folder}/${name}` : name }, name));
  return makeSection("Tables and plots beside this page", "", make("div", { class: "files" }, ...links));
}

showPage();
