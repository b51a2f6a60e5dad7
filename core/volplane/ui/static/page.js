// What is in sight follows the address: #/VIEW?q=SEARCH, #/claim/NAMESPACE/NAME, #/volume/NAME.

import { element } from "./dom.js";
import { List } from "./list.js";
import { follow, takeToken } from "./live.js";
import { Picture } from "./picture.js";

const VIEWS = ["waiting", "claims", "volumes", "drivers", "operations", "nodes", "segments", "snapshots", "trash", "leaks"];
const by = (id) => document.getElementById(id);

let shown = null;
let state = null;
let lost = "";
let heardAt = null;
let before = "#/waiting"; // The table seen last.

const links = new Map(VIEWS.map((view) => {
  const count = element("span");
  const link = element("a", { href: `#/${view}` }, `${view[0].toUpperCase()}${view.slice(1)} `, count);
  by("views").append(element("li", {}, link));
  return [view, { link, count }];
}));

function route() {
  takeToken();
  if (shown && location.hash === "#main") return; // "To the content".
  const [path, query] = location.hash.slice(2).split("?");
  const [first, ...rest] = path.split("/").map(decoded);
  const view = VIEWS.includes(first) ? first : "waiting";
  const search = new URLSearchParams(query ?? "").get("q") ?? "";
  if (shown instanceof List) before = `#/${shown.view}${shown.search ? `?q=${encodeURIComponent(shown.search)}` : ""}`;
  shown?.end();
  shown = ["claim", "volume"].includes(first) ? new Picture(first, rest.join("/")) : new List(view, search);
  by("main").replaceChildren(shown.node, shown.table);
  for (const [name, { link }] of links) {
    if (shown instanceof List && name === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${shown instanceof List ? view : shown.key} · volplane`;
  shown.refresh();
  say();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function say() {
  const said = [];
  if (lost === "old token") {
    said.push(["bad", "This address is of an earlier run. Open the one that the command printed last."]);
  } else if (lost) {
    const since = heardAt ? ` What is shown is of ${heardAt.toLocaleTimeString()}.` : "";
    said.push(["bad", `The command that serves this page does not answer.${since} It is tried again.`]);
  }
  const gaps = state?.gaps ?? [];
  for (const [how, tone, text] of [
    ["stale", "bad", "May be out of date"], ["unread", "", "Not shown"], ["absent", "", "Not shown"],
    ["reading", "", "Being read"],
  ]) {
    const found = gaps.filter((each) => each[1] === how && (how !== "absent" || shown.view === "snapshots"));
    const why = [...new Set(found.map((each) => each[2]).filter(Boolean))];
    if (found.length) said.push([tone, `${text}: ${found.map((each) => each[0]).join(", ")}${why.length ? `. ${why.join("; ")}` : ""}`]);
  }
  if (state?.silence) said.push(["", `Without reasons and operations: ${state.silence}`]);
  const now = JSON.stringify(said);
  if (by("state").dataset.said === now) return;
  by("state").dataset.said = now;
  by("state").replaceChildren(...said.map(([tone, text]) => element("p", { class: tone || null }, text)));
  by("main").classList.toggle("stale", said.some(([tone]) => tone === "bad"));
}

function heard(next) {
  const told = ({ changes, silence, gaps }) => JSON.stringify([changes, silence, gaps]);
  const changed = !state || lost || told(next) !== told(state);
  state = next;
  lost = "";
  heardAt = new Date();
  by("about").textContent = [next.server, next.leader ? `led by ${next.leader}` : next.silence ? "" : "a controller answers"].filter(Boolean).join(" · ");
  for (const [view, { count }] of links) count.textContent = next.counts[view] ?? "";
  say();
  if (changed) shown?.refresh();
}

// A "hashchange" comes later than the new address, and the next key may come between them.
function go(address) {
  history.pushState(null, "", address);
  route();
}

addEventListener("hashchange", route);
addEventListener("click", (event) => {
  const link = event.target instanceof Element && event.target.closest("a[href^='#/']");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (shown instanceof Picture) go(before);
    return;
  }
  if (event.key === "ArrowDown" || event.key === "ArrowUp") shown?.step(event.key === "ArrowDown" ? 1 : -1);
  else if (typing) return;
  else if (event.key === "/" && shown instanceof List) shown.input.focus();
  else if (/^[0-9]$/.test(event.key)) go(`#/${VIEWS[(Number(event.key) + 9) % 10]}`);
  else return;
  event.preventDefault();
});

route();
follow(heard, (why) => {
  lost = why;
  say();
});
