"use strict";

// Figures take their ink from the page, so that they follow its light, dark and printed form.
function inkOf(layout) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim();
  const line = style.getPropertyValue("--line").trim();
  const paper = style.getPropertyValue("--paper").trim();
  const change = {
    "font.color": ink, "font.family": getComputedStyle(document.body).fontFamily,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    "hoverlabel.bgcolor": paper, "hoverlabel.font.color": ink, "hoverlabel.bordercolor": line,
    "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": line, "modebar.activecolor": ink,
  };
  for (const name of new Set([...Object.keys(layout), "xaxis", "yaxis"])) {
    if (/^[xy]axis\d*$/.test(name)) {
      Object.assign(change, { [name + ".gridcolor"]: line, [name + ".linecolor"]: line, [name + ".zerolinecolor"]: line });
    }
  }
  return change;
}

function put(target, path, value) {
  const keys = path.split(".");
  const last = keys.pop();
  for (const key of keys) target = target[key] ??= {};
  target[last] = value;
}

function draw(script) {
  const place = document.getElementById(script.dataset.for);
  const spec = JSON.parse(script.textContent);
  const layout = { ...spec.layout, autosize: true };
  delete layout.width;
  for (const [path, value] of Object.entries(inkOf(layout))) put(layout, path, value);
  return Plotly.newPlot(place, spec.data, layout, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] });
}

function redraw() {
  for (const place of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(place, inkOf(place.layout));
}

// A click sorts, a second click turns the order round. Good numbers come first; empty cells stay last.
function sortBy(table, index) {
  const heads = [...table.tHead.rows[0].cells];
  const head = heads[index];
  const number = head.classList.contains("number");
  const first = head.dataset.first;
  const order = head.ariaSort !== first ? first : first === "ascending" ? "descending" : "ascending";
  for (const other of heads) other.ariaSort = other === head ? order : "none";
  const sign = order === "ascending" ? 1 : -1;
  const keyed = [...table.tBodies[0].rows].map((row) => {
    const cell = row.cells[index];
    return [row, number ? parseFloat(cell.dataset.value) : cell.textContent.trim()];
  });
  keyed.sort(([, a], [, b]) => {
    if (!number) return sign * a.localeCompare(b, undefined, { numeric: true });
    return Number.isNaN(a) - Number.isNaN(b) || sign * (a - b) || 0;
  });
  table.tBodies[0].append(...keyed.map(([row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (head) sortBy(table, head.cellIndex);
  });
}

// The plotting library is held compressed; a browser from before 2023 cannot unpack it and says so.
async function unpackPlotly() {
  const held = document.getElementById("plotly");
  if (!held) return;
  if (typeof DecompressionStream === "undefined") {
    for (const place of document.querySelectorAll(".plot")) place.textContent = "This figure needs a browser of 2023 or later.";
    return;
  }
  const bytes = Uint8Array.from(atob(held.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  await Promise.all([...document.querySelectorAll("script[data-for]")].map(draw));
}

unpackPlotly().then(() => { document.body.dataset.ready = "yes"; });
for (const medium of ["(prefers-color-scheme: dark)", "print"]) matchMedia(medium).addEventListener("change", redraw);

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
