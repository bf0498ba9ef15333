// Filters and sorts the table of all cases. Without it the page shows everything.
(() => {
  "use strict";
  const table = document.getElementById("all-cases");
  const tools = document.getElementById("tools");
  if (!table || !tools) return;
  tools.hidden = false;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const search = document.getElementById("search");
  const shown = document.getElementById("shown");
  const buttons = Array.from(tools.querySelectorAll("button"));

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdicts = buttons.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.verdict);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = words.every((word) => text.includes(word))
        && (verdicts.length === 0 || verdicts.includes(row.dataset.verdict));
      row.hidden = !fits;
      count += fits ? 1 : 0;
    }
    shown.textContent = `${count} of ${rows.length} shown`;
  };

  const sort = (head) => {
    const place = head.cellIndex;
    const falling = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
    const value = (row) => {
      const cell = row.cells[place];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (typeof x === "number" && typeof y === "number") {
        if (Number.isNaN(x)) return Number.isNaN(y) ? 0 : 1;
        return Number.isNaN(y) ? -1 : falling * (x - y);
      }
      return falling * String(x).localeCompare(String(y));
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling === 1 ? "ascending" : "descending");
    body.append(...rows);
  };

  search.addEventListener("input", filter);
  for (const button of buttons) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      filter();
    });
  }
  for (const head of table.tHead.rows[0].cells) head.addEventListener("click", () => sort(head));
  filter();
})();
