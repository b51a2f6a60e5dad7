// A claim's (or an unbound volume's) picture and timeline.

import { clock, element, hrefOf, moving, until } from "./dom.js";
import { ask, inTurn } from "./live.js";

const STATES = { there: "there", between: "in between", missing: "missing", none: "none", unknown: "not known" };
const TOLD = [["situation", "Where it stands"], ["tried", "What was tried"], ["next", "What happens next"]];

export class Picture {
  constructor(kind, key) {
    this.kind = kind;
    this.key = key;
    this.table = element("div", { class: "detail", tabindex: "0", role: "region", "aria-label": `${kind} ${key}` });
    this.node = element("h2", {}, `${kind} ${key}`);
    this.said = "";
    this.refresh = inTurn(() => this.question(), 500);
  }

  async question() {
    const picture = await ask("picture", { kind: this.kind, key: this.key });
    const said = JSON.stringify(picture);
    if (said !== this.said) this.draw(picture);
    this.said = said;
  }

  draw(picture) {
    if (!picture.found) {
      this.table.replaceChildren(element("p", { class: "empty" }, `There is no ${this.kind} ${picture.name}.`));
      return;
    }
    const focused = this.table.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const parts = element("ol", { class: "parts", "aria-label": "Picture" }, ...picture.parts.map(partOf));
    const next = element("p", {});
    if (picture.next !== null) moving(next, () => `The next try is ${until(picture.next)}.`);
    const told = [];
    for (const [part, heading] of TOLD) {
      const sentences = picture.explanation?.[part] ?? [];
      if (sentences.length) {
        told.push(element("h3", {}, heading));
        told.push(element("ul", { class: "told" }, ...sentences.map((each) => element("li", {}, each))));
      }
    }
    const silence = picture.explanation?.silence;
    if (silence) told.push(element("p", { class: "empty" }, `No reasons are told: ${silence}`));
    const entries = picture.timeline.map((each) => element("li", {},
      element("time", { datetime: new Date(each.at * 1000).toISOString() }, clock(each.at)),
      element("span", { class: "about" }, each.about),
      element("span", { class: each.tone || null }, each.text)));
    this.table.replaceChildren(parts, next, ...told, element("h3", {}, "Timeline"),
      element("ol", { class: "timeline" }, ...entries));
    if (focused) [...this.table.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
  }

  step(by) {
    this.table.scrollBy(0, by * 40);
  }

  end() {}
}

function partOf(part) {
  const name = part.to ? element("a", { href: hrefOf(part.to) }, part.name) : part.name;
  return element("li", { class: part.state },
    element("div", { class: "role" }, element("span", {}, part.role), element("span", {}, STATES[part.state])),
    part.name ? element("p", { class: "name" }, name) : null,
    element("p", {}, part.text));
}
