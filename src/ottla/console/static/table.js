// Tables that stay put while their figures change: sorted, filtered and paged here, a hundred rows at a time.

import { button, h } from "./dom.js";
import { count } from "./format.js";

const PAGE = 100;

/**
 * Columns: title, value(row) for sorting and as text, and optionally cell(row) for an element (drawn anew when sign(row),
 * or the value, changes), num, wide (left out on a phone), wrap.
 */
export function table(columns, { key, empty = "Nothing here.", sort = 0, down = false, filter = null, label = "Filter" }) {
  let rows = [];
  let by = sort;
  let descending = down;
  let page = 0;
  const lines = new Map();
  const heads = columns.map((column, at) => h("th", { class: kinds(column), scope: "col" },
    h("button", { type: "button", onclick: () => choose(at) }, column.title)));
  const body = h("tbody");
  const range = h("span");
  const pager = h("div", { class: "pager", hidden: true }, range, button("Previous", () => turn(-1)), button("Next", () => turn(1)));
  const nothing = h("p", { class: "empty", hidden: true }, empty);
  const input = filter && h("input", { type: "search", class: "filter", placeholder: label, "aria-label": label, oninput: () => { page = 0; draw(); } });
  const grid = h("table", null, h("thead", null, h("tr", null, heads)), body);
  const box = h("div", null, h("div", { class: "rows" }, grid), nothing, pager);

  function kinds(column) {
    return [column.num && "num", column.wide && "wide", column.wrap && "wrap"].filter(Boolean).join(" ");
  }

  function choose(at) {
    descending = by === at ? !descending : Boolean(columns[at].num);
    by = at;
    page = 0;
    draw();
  }

  function turn(step) {
    page += step;
    draw();
    box.scrollIntoView({ block: "nearest" });
  }

  function line(row) {
    const name = String(key(row));
    let known = lines.get(name);
    if (!known) {
      known = { element: h("tr"), cells: columns.map((column) => h("td", { class: kinds(column) })), signs: [] };
      known.element.append(...known.cells);
      lines.set(name, known);
    }
    columns.forEach((column, at) => {
      const value = column.value(row);
      const sign = column.sign ? column.sign(row) : String(value);
      if (known.signs[at] === sign) return;
      known.signs[at] = sign;
      known.cells[at].replaceChildren(column.cell ? column.cell(row) : column.show ? column.show(value, row) : String(value ?? "–"));
    });
    return known.element;
  }

  function draw() {
    const words = (input?.value ?? "").toLowerCase();
    const wanted = words ? rows.filter((row) => filter(row).toLowerCase().includes(words)) : [...rows];
    const value = columns[by].value;
    wanted.sort((one, other) => compare(value(one), value(other)) * (descending ? -1 : 1) || compare(key(one), key(other)));
    page = Math.max(0, Math.min(page, Math.ceil(wanted.length / PAGE) - 1));
    const shown = wanted.slice(page * PAGE, (page + 1) * PAGE);
    const elements = shown.map(line);
    elements.forEach((element, at) => {
      if (body.children[at] !== element) body.insertBefore(element, body.children[at] ?? null);
    });
    while (body.children.length > elements.length) body.lastChild.remove();
    const kept = new Set(elements);
    for (const [name, one] of lines) if (!kept.has(one.element)) lines.delete(name);
    heads.forEach((head, at) => {
      if (at === by) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    grid.hidden = !wanted.length;
    nothing.hidden = wanted.length > 0;
    nothing.textContent = words ? "Nothing matches." : empty;
    pager.hidden = wanted.length <= PAGE;
    range.textContent = `${count(page * PAGE + 1)}–${count(page * PAGE + shown.length)} of ${count(wanted.length)}`;
    const [back, forth] = pager.querySelectorAll("button");
    back.disabled = page === 0;
    forth.disabled = (page + 1) * PAGE >= wanted.length;
  }

  box.filter = input;
  box.update = (given) => {
    rows = given;
    draw();
  };
  return box;
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one ?? "").localeCompare(String(other ?? ""), undefined, { numeric: true });
}
