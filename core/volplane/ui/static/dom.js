// Elements, made from data. Text of the cluster becomes text nodes alone: nothing here reads markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

export function ago(seconds) {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 120) return `${Math.floor(passed)}s`;
  if (passed < 7200) return `${Math.floor(passed / 60)}m`;
  if (passed < 172800) return `${Math.floor(passed / 3600)}h`;
  return `${Math.floor(passed / 86400)}d`;
}

export function until(seconds) {
  const left = seconds - Date.now() / 1000;
  if (left <= 0) return "now";
  if (left < 120) return `in ${Math.ceil(left)}s`;
  if (left < 7200) return `in ${Math.ceil(left / 60)}m`;
  if (left < 172800) return `in ${Math.ceil(left / 3600)}h`;
  return `in ${Math.ceil(left / 86400)}d`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleString();

// A text that goes with the time: {age} counts up, {due} counts down.
const ticking = new Map();

export function moving(node, text) {
  ticking.set(node, text);
  node.textContent = text();
}

setInterval(() => {
  for (const [node, text] of ticking) {
    if (!node.isConnected) ticking.delete(node);
    else {
      const now = text();
      if (node.textContent !== now) node.textContent = now;
    }
  }
}, 1000);

// The address of an object's own place on the page.
export function hrefOf([kind, key]) {
  if (kind === "claim" || kind === "volume") return `#/${kind}/${key.split("/").map(encodeURIComponent).join("/")}`;
  return `#/${kind}s?q=${encodeURIComponent(`"${key}"`)}`;
}
