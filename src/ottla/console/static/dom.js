// Elements without markup: whatever a cluster says becomes text nodes, never HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element with attributes (`onclick` is a listener) and children; texts become text nodes. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Change a text only if it differs: what is selected or read aloud is left alone. */
export function say(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Where somebody may go. Names may hold anything: each is one encoded piece of the path. */
export function route(...pieces) {
  return "#/" + pieces.map(encodeURIComponent).join("/");
}

export function link(text, ...pieces) {
  return h("a", { href: route(...pieces) }, text);
}

/** A box with a title. */
export function panel(title, ...children) {
  const aside = h("span", { class: "aside" });
  const box = h("section", { class: "panel" }, h("header", null, h("h2", null, title), aside), children);
  box.aside = aside;
  return box;
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function button(text, onclick, kind = "") {
  return h("button", { type: "button", class: kind, onclick }, text);
}

/** A part of a whole as a bar. The width is set as a property: the page allows no inline style. */
export function bar(share) {
  const inner = h("i");
  inner.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
  return h("span", { class: share > 0.9 ? "bar full" : "bar", "aria-hidden": "true" }, inner);
}

/** Figures side by side; `update` takes name -> text. */
export function figures(names) {
  const cells = new Map(names.map((name) => [name, h("b", null, "–")]));
  const box = h("div", { class: "stats" }, [...cells].map(([name, cell]) => h("div", { class: "stat" }, cell, h("span", null, name))));
  box.update = (values) => {
    for (const [name, value] of Object.entries(values)) say(cells.get(name), value);
  };
  return box;
}
