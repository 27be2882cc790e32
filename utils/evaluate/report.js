"use strict";
// The page of a report: it shows one data set, sorts tables, and lists the mistakes of a class or
// of a cell of the confusion matrix. `data` has of each data set `names` and `cells`: the true
// class, predicted class and videos of each cell that has videos.
const data = JSON.parse(document.getElementById("data").textContent);
const sets = [...document.querySelectorAll(".set")];
const filters = new Map(); // of the list of mistakes of each data set

function showSet(index) {
  sets.forEach((set, k) => (set.hidden = k !== index));
  document.querySelectorAll(".choices [data-show]").forEach((node, k) => node.setAttribute("aria-pressed", k === index));
}

// Values that do not exist are last in both directions.
function compare(a, b, reverse) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const isText = isNaN(a) || isNaN(b);
  const result = isText ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return reverse ? -result : result;
}

function sortTable(head) {
  const reverse = head.getAttribute("aria-sort") === "ascending";
  const column = head.cellIndex;
  const body = head.closest("table").tBodies[0];
  const read = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const rows = [...body.rows].sort((a, b) => compare(read(a), read(b), reverse));
  [...head.parentNode.cells].forEach((cell) => cell.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", reverse ? "descending" : "ascending");
  body.append(...rows);
}

// Names the sides of a box where there is more than it shows.
function markSides(box) {
  box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.classList.toggle("more-below", box.scrollTop + box.clientHeight < box.scrollHeight - 1);
}

const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => markSides(target.closest(".scroll"))));
for (const box of document.querySelectorAll(".scroll")) {
  markSides(box);
  box.addEventListener("scroll", () => markSides(box));
  [box, ...box.children].forEach((node) => observer.observe(node));
}

function filterRows(table, isShown) {
  for (const row of table.tBodies[0].rows) row.hidden = !isShown(row);
}

const hasText = (row, input) => row.textContent.toLowerCase().includes(input.value.toLowerCase());

// `filter` is {label, other}: a true class, and perhaps a predicted one, as texts.
function listMistakes(set, filter) {
  filters.set(set, filter);
  const chosen = set.querySelector(".chosen");
  const names = data[sets.indexOf(set)].names;
  const words = [filter.label && `true: ${names[filter.label]}`, filter.other && `predicted: ${names[filter.other]}`];
  chosen.textContent = `${words.filter(Boolean).join(", ")} ×`;
  chosen.hidden = !words.some(Boolean);
  const has = (labels, label) => !label || labels.includes(` ${label} `);
  const find = set.querySelector(".find-video");
  filterRows(set.querySelector(".videos"), (row) =>
    has(row.dataset.labels, filter.label) && has(row.dataset.others, filter.other) && hasText(row, find),
  );
}

function showMistakes(set, filter) {
  set.querySelector(".find-video").value = "";
  listMistakes(set, filter);
  set.querySelector(".list").scrollIntoView({ block: "start" });
}

// A pixel for each cell. The root makes one mistake in 50 videos visible.
function drawMatrix(canvas) {
  const { cells } = data[sets.indexOf(canvas.closest(".set"))];
  const videos = new Map();
  for (const [row, , count] of cells) videos.set(row, (videos.get(row) || 0) + count);
  const context = canvas.getContext("2d");
  for (const [row, column, count] of cells) {
    const opacity = Math.max((count / videos.get(row)) ** 0.45, 0.4);
    context.fillStyle = `rgb(${row === column ? "52 125 232" : "235 108 38"} / ${opacity})`;
    context.fillRect(column, row, 1, 1);
  }
}

// Of many classes: the cell under the pointer, or the nearest one with videos.
function findCell(image, event) {
  const { names, cells } = data[sets.indexOf(image.closest(".set"))];
  const box = image.getBoundingClientRect();
  const side = box.width / names.length;
  const distance = ([row, column]) =>
    Math.hypot((column + 0.5) * side - (event.clientX - box.left), (row + 0.5) * side - (event.clientY - box.top));
  return cells.reduce((best, cell) => (distance(cell) < distance(best) ? cell : best));
}

for (const image of document.querySelectorAll(".matrix")) {
  const { names } = data[sets.indexOf(image.closest(".set"))];
  drawMatrix(image);
  image.addEventListener("pointermove", (event) => {
    const [row, column, count] = findCell(image, event);
    image.title = `true: ${names[row]}\npredicted: ${names[column]}\n${count} videos`;
  });
}

document.addEventListener("click", (event) => {
  const find = (selector) => event.target.closest(selector);
  const set = find(".set");
  if (find("[data-show]")) showSet(Number(find("[data-show]").dataset.show));
  else if (find("th[scope] button")) sortTable(find("th[scope]"));
  else if (find("[data-true]")) {
    const { true: label, other } = find("[data-true]").dataset;
    showMistakes(set, { label, other });
  } else if (find(".matrix")) {
    const [row, column] = findCell(event.target, event);
    showMistakes(set, { label: String(row), other: String(column) });
  } else if (find(".chosen")) listMistakes(set, {});
  else if (find(".all")) {
    find("section").querySelectorAll("article").forEach((node) => (node.hidden = false));
    event.target.hidden = true;
  } else if (find(".zoom")) {
    const image = set.querySelector(".matrix");
    const zoom = (parseFloat(image.style.width) || 100) * event.target.dataset.factor;
    image.style.width = `${Math.min(1600, Math.max(100, zoom))}%`;
  }
});

document.addEventListener("input", (event) => {
  const set = event.target.closest(".set");
  if (event.target.matches(".find-class")) filterRows(set.querySelector(".classes"), (row) => hasText(row, event.target));
  else listMistakes(set, filters.get(set) || {});
});
