"use strict";
// What the pages share: elements, numbers, tooltips, axes. Texts become text nodes, never HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const tip = document.getElementById("tip");
const NONE = "–";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Null stands for a value that does not exist.
const isNumber = (value) => typeof value === "number";
const formatPercent = (value, digits = 1) => (isNumber(value) ? `${(100 * value).toFixed(digits)}\u202f%` : NONE);
const formatCount = (value) => (isNumber(value) ? value.toLocaleString("en") : NONE);

function formatNumber(value) {
  if (!isNumber(value)) return NONE;
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function showTip(event, lines) {
  if (!lines) return hideTip();
  tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
  tip.hidden = false;
  const right = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18;
  const fits = below + tip.offsetHeight < innerHeight;
  const top = fits ? below : event.clientY - tip.offsetHeight - 12;
  tip.style.transform = `translate(${Math.max(8, right)}px, ${Math.max(8, top)}px)`;
}

function hideTip() {
  tip.hidden = true;
}

// `describe(event)` returns lines of text, or nothing.
function addTip(node, describe) {
  for (const name of ["pointermove", "pointerdown"]) {
    node.addEventListener(name, (event) => showTip(event, describe(event)));
  }
  node.addEventListener("pointerleave", hideTip);
  return node;
}

// Round values, six or fewer, from `low` to `high`.
function listTicks(low, high) {
  const rough = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first;
  return Array.from({ length: count + 1 }, (_, k) => Number(((first + k) * step).toPrecision(10)));
}

// Draws into a new element in its own width, again when that changes.
function makeChart(drawInto) {
  const node = make("div");
  let width = 0;
  new ResizeObserver(() => {
    if (node.clientWidth && node.clientWidth !== width) {
      width = node.clientWidth;
      drawInto(node, width);
    }
  }).observe(node);
  return node;
}

// A table whose columns are {title, left, value(row), cell(row), key(row)}; the header sorts.
function makeTable(columns, rows, order = null, descending = false, onPick = null) {
  const nodes = new Map();
  for (const row of rows) {
    const cells = columns.map((column, k) =>
      make(k ? "td" : "th", { class: column.left ? "left" : null }, column.cell(row)),
    );
    const pick = onPick ? { class: "pick", click: () => onPick(row) } : {};
    nodes.set(row, make("tr", pick, ...cells));
  }
  const body = make("tbody", {}, ...nodes.values());
  const heads = columns.map((column, k) => {
    const title = column.value ? make("button", { click: () => sort(k) }, column.title) : column.title;
    return make("th", { class: column.left ? "left" : null, scope: "col" }, title);
  });

  function sort(k, down = null) {
    const old = heads[k].getAttribute("aria-sort");
    const reverse = down ?? old === "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[k].setAttribute("aria-sort", reverse ? "descending" : "ascending");
    const { value } = columns[k];
    const sorted = [...rows].sort((a, b) => compare(value(a), value(b), reverse));
    body.append(...sorted.map((row) => nodes.get(row)));
  }

  if (order !== null) sort(order, descending);
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
  return { table, nodes };
}

// Values that do not exist are last in both directions.
function compare(a, b, reverse) {
  const missing = (value) => value === null || value === undefined || value === "";
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const result = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return reverse ? -result : result;
}
