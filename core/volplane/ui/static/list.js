// A table of any number of rows, of which only those in sight are asked for and in the document.

import { ago, element, hrefOf, moving, until } from "./dom.js";
import { ask, inTurn } from "./live.js";

const WIDTHS = {
  why: "minmax(12em,4fr)", problem: "minmax(8em,3fr)", name: "minmax(10em,2fr)", volume: "minmax(8em,2fr)",
  claim: "minmax(8em,2fr)", handle: "minmax(8em,2fr)", segment: "minmax(10em,3fr)", of: "minmax(8em,2fr)",
};
const AROUND = 20; // Rows asked for above and below.

export class List {
  constructor(view, search) {
    this.view = view;
    this.search = search;
    this.start = 0;
    this.rows = [];
    this.found = 0;
    this.refresh = inTurn(() => this.question(), 0);
    this.input = element("input", {
      type: "search", "aria-label": `Search ${view}`, autocomplete: "off", spellcheck: "false",
      placeholder: "words, -word, column:word", value: search,
    });
    this.said = element("output", { "aria-live": "polite" });
    this.head = element("div", { class: "row head", role: "row" });
    this.space = element("div", { role: "presentation" });
    this.body = element("div", { class: "body", role: "rowgroup", tabindex: "0", "aria-label": view });
    this.body.append(this.space);
    this.table = element("div", { class: "table", role: "table", "aria-label": view },
      element("div", { role: "rowgroup" }, this.head), this.body);
    this.node = element("div", { class: "search" }, this.input, this.said);
    this.drawn = new Map();
    this.body.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.input.addEventListener("input", () => {
      this.search = this.input.value;
      const query = this.search ? `?q=${encodeURIComponent(this.search)}` : "";
      history.replaceState(null, "", `#/${this.view}${query}`);
      this.body.scrollTop = 0;
      this.refresh();
    });
    this.size = new ResizeObserver(() => this.refresh());
    this.size.observe(this.body);
  }

  get height() {
    const size = parseFloat(getComputedStyle(document.body).fontSize);
    return Math.round(size * (matchMedia("(max-width: 760px)").matches ? 7 : 2.6));
  }

  range() {
    const first = Math.floor(this.body.scrollTop / this.height);
    return [Math.max(0, first - AROUND), Math.ceil(this.body.clientHeight / this.height) + 2 * AROUND];
  }

  scrolled() {
    const first = Math.floor(this.body.scrollTop / this.height);
    const last = first + Math.ceil(this.body.clientHeight / this.height);
    if (first < this.start || last > Math.min(this.start + this.rows.length, this.found)) this.refresh();
  }

  async question() {
    const [start, count] = this.range();
    this.draw(await ask("rows", { view: this.view, q: this.search, start, count }));
  }

  draw(answer) {
    const { columns, rows, start, found, total, known } = answer;
    this.start = start;
    this.rows = rows;
    this.found = found;
    this.said.textContent = found === total ? `${total}` : `${found} of ${total}`;
    const height = this.height;
    const template = columns.map((each) => WIDTHS[each] ?? "minmax(4em,1fr)").join(" ");
    if (this.head.childElementCount !== columns.length) {
      this.head.replaceChildren(...columns.map((each) => element("div", { role: "columnheader" }, each)));
      this.head.style.gridTemplateColumns = template;
    }
    this.table.setAttribute("aria-rowcount", found + 1);
    this.space.style.height = `${found * height}px`;
    const kept = new Map();
    rows.forEach((row, place) => {
      const said = JSON.stringify(row);
      let drawn = this.drawn.get(row.id);
      if (!drawn || drawn.said !== said) {
        const focused = drawn?.node.contains(document.activeElement);
        const node = rowOf(row, columns);
        if (drawn) drawn.node.replaceWith(node);
        else this.body.append(node);
        if (focused) node.querySelector("a")?.focus();
        drawn = { node, said };
      }
      drawn.node.style.gridTemplateColumns = template;
      drawn.node.style.height = `${height}px`;
      drawn.node.style.top = `${(start + place) * height}px`;
      drawn.node.setAttribute("aria-rowindex", start + place + 2);
      drawn.node.dataset.place = start + place;
      kept.set(row.id, drawn);
    });
    for (const [id, { node }] of this.drawn) {
      if (!kept.has(id)) node.remove();
    }
    this.drawn = kept;
    this.empty ??= element("p", { class: "empty" });
    this.empty.textContent = total ? "Nothing is found." : !known ? "Not everything is read." : this.view === "waiting" ? "Nothing waits." : "There are none.";
    if (found) this.empty.remove();
    else this.body.after(this.empty);
  }

  // Moves the focus by rows; the next ones come into sight and are asked for as needed.
  step(by) {
    const rows = [...this.body.querySelectorAll(".row")].sort((a, b) => a.dataset.place - b.dataset.place);
    const at = rows.findIndex((each) => each.contains(document.activeElement));
    const next = rows[at < 0 ? rows.findIndex((each) => each.offsetTop >= this.body.scrollTop) : at + by];
    const target = next?.querySelector("a") ?? next;
    if (!target) return;
    if (target === next) next.tabIndex = -1;
    target.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  end() {
    this.size.disconnect();
  }
}

function rowOf(row, columns) {
  const node = element("div", { class: `row ${row.tone}`, role: "row" });
  row.cells.forEach((cell, place) => {
    const column = columns[place];
    const toned = ["phase", "state", "ready", "verdict"].includes(column) ? " tone" : "";
    const wide = ["why", "problem"].includes(column) ? " why" : "";
    const labelled = ["size", "since", "next", "age", "free", "used", "until"].includes(column) ? column : null;
    const made = element("div", { class: `cell${toned}${wide}`, role: "cell", "data-label": labelled });
    if (typeof cell === "string") {
      made.textContent = cell;
      made.title = cell;
    } else if ("to" in cell) {
      made.append(element("a", { href: hrefOf(cell.to), title: cell.text }, cell.text));
    } else if ("age" in cell) moving(made, () => ago(cell.age));
    else moving(made, () => until(cell.due));
    node.append(made);
  });
  return node;
}
