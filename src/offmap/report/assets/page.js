"use strict";

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

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
