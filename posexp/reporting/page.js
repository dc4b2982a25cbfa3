"use strict";
// Draws the charts of the page, and lets a reader choose: a click highlights a group in all charts
// and tables, a box hides it there, a heading sorts its table, two lists choose a score and what it
// is drawn against.

const charts = JSON.parse(document.getElementById("charts").textContent);
const views = new Map(); // element -> what vegaEmbed made in it
let picked = "";
const hidden = new Set();

function theme() {
  const style = getComputedStyle(document.body);
  const [ink, soft, rule, paper] = ["--ink", "--soft", "--rule", "--paper"].map((name) =>
    style.getPropertyValue(name).trim());
  const narrow = innerWidth < 700;
  return {
    ...charts.config,
    background: "transparent",
    axis: { ...charts.config.axis, labelColor: ink, titleColor: ink, gridColor: rule,
            domainColor: soft, tickColor: soft, titleLimit: narrow ? 260 : 500 },
    axisY: { labelLimit: narrow ? 118 : 260 },
    text: { ...charts.config.text, color: ink },
    rule: { color: ink },
    point: { fill: paper },
  };
}

async function draw(element, spec) {
  views.get(element)?.finalize();
  const actions = { export: true, source: false, compiled: false, editor: false };
  const drawn = await vegaEmbed(element, spec, { config: theme(), renderer: "svg", actions });
  views.set(element, drawn);
  drawn.view.signal("picked", picked).signal("hidden", [...hidden]).runAsync();
  drawn.view.addEventListener("click", (_, item) => pick(item?.datum?.group ?? ""));
}

function pick(group) {
  picked = group === picked ? "" : group;
  for (const { view } of views.values()) view.signal("picked", picked).runAsync();
  for (const row of document.querySelectorAll("tr[data-group]"))
    row.classList.toggle("picked", row.dataset.group === picked);
}

function show(group, shown) {
  shown ? hidden.delete(group) : hidden.add(group);
  for (const { view } of views.values()) view.signal("hidden", [...hidden]).runAsync();
  for (const row of document.querySelectorAll("tr[data-group]"))
    if (row.dataset.group === group) {
      row.classList.toggle("hidden", !shown);
      row.querySelector("input").checked = shown;
    }
}

function drawAll() {
  for (const element of document.querySelectorAll(".chart[data-chart]"))
    draw(element, charts.specs[element.dataset.chart].spec);
  for (const element of document.querySelectorAll(".explore")) explore(element);
}

// The charts of a task by their scores, and what each can be drawn against.
function explore(element) {
  const known = element.dataset.charts.split(",").map((at) => charts.specs[at]);
  const [score, against] = element.querySelectorAll("select");
  const other = element.querySelector("input");
  const fill = (select, names) => {
    const before = select.value;
    select.replaceChildren(...[...new Set(names)].map((name) => new Option(name)));
    if (names.includes(before)) select.value = before;
  };
  const show = () => {
    fill(against, known.filter((each) => each.y === score.value).map((each) => each.x));
    const chosen = known.find((each) => each.y === score.value && each.x === against.value);
    const spec = structuredClone(chosen.spec);
    other.parentElement.hidden = !chosen.other;
    if (other.checked && chosen.other) rescale(spec, chosen.other);
    element.querySelector("figcaption").textContent = chosen.says;
    return draw(element.querySelector(".chart"), spec);
  };
  if (!score.length) {
    fill(score, known.map((each) => each.y));
    score.onchange = against.onchange = other.onchange = show;
  }
  return show();
}

// Give x another scale wherever a spec has one.
function rescale(part, scale) {
  if (part === null || typeof part !== "object") return;
  const { x } = part.encoding ?? {};
  if (x?.scale) x.scale = scale;
  for (const each of Object.values(part)) rescale(each, scale);
}

function sortable(table) {
  const number = (cell) => parseFloat(cell.textContent.replace(/[−–]/g, "-").replace(/[,<≥ ]/g, ""));
  table.querySelectorAll("th").forEach((head, column) => {
    head.tabIndex = 0;
    head.onclick = () => {
      const up = head.ariaSort === "descending" || (head.ariaSort === null && column === 0);
      table.querySelectorAll("th").forEach((each) => (each.ariaSort = null));
      head.ariaSort = up ? "ascending" : "descending";
      const key = (row) => row.cells[column];
      const order = (a, b) => {
        const [x, y] = [number(key(a)), number(key(b))];
        if (isNaN(x) || isNaN(y)) // words, and before them what has a number
          return isNaN(x) - isNaN(y) ||
            (up ? 1 : -1) * key(a).textContent.localeCompare(key(b).textContent);
        return (up ? 1 : -1) * (x - y);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    };
    head.onkeydown = (event) => event.key === "Enter" && head.click();
  });
}

for (const table of document.querySelectorAll("table")) sortable(table);
for (const row of document.querySelectorAll(".groups tbody tr")) {
  row.dataset.group ??= row.cells[0].textContent.trim();
  const box = document.createElement("input");
  Object.assign(box, { type: "checkbox", checked: true, title: "shown in charts" });
  box.ariaLabel = `${row.dataset.group}: shown in charts`;
  box.onclick = (event) => event.stopPropagation();
  box.onchange = () => show(row.dataset.group, box.checked);
  row.cells[0].prepend(box);
  row.cells[0].onclick = () => pick(row.dataset.group);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
