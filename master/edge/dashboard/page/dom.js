// Elements, figures and requests to the master. Texts are only ever set as texts, so that no name can be markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// Only what differs is replaced, so that focus, selection and scrolling stay where they are. A row is its key's.
export function fill(parent, children) {
  const old = parent.children;
  children.forEach((child, index) => {
    if (index >= old.length) parent.append(child);
    else if (old[index].isEqualNode(child)) return;
    else if (child.dataset.key && old[index].dataset.key === child.dataset.key) fill(old[index], [...child.children]);
    else if (child.dataset.key || !old[index].contains(document.activeElement)) old[index].replaceWith(child);
  });
  while (old.length > children.length) parent.lastElementChild.remove();
}

export function table(target, caption, columns, rows, cellsOf) {
  const head = columns.map(([title, kind]) => element("th", { scope: "col", class: kind ?? null }, title));
  if (!target.tHead) {
    target.append(element("caption", {}, caption), element("thead", {}, element("tr", {}, ...head)), element("tbody"));
  }
  fill(target.tBodies[0], rows.map((row) => {
    const cells = cellsOf(row).map((cell, index) => {
      const content = Array.isArray(cell) ? cell : [cell];
      if (index === 0) return element("th", { scope: "row" }, ...content);
      return element("td", { class: columns[index][1] ?? null }, ...content);
    });
    return element("tr", { "data-key": cells[0].textContent }, ...cells);
  }));
}

// Curves share one scale. Screen readers get the caption, which has the latest figures.
export function curve(title, latest, series) {
  const top = Math.max(1e-9, ...series.flat().filter((value) => value !== null));
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 100 30");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  series.forEach((values, number) => {
    const step = 100 / Math.max(1, values.length - 1);
    const points = values.map((value, index) => (value === null ? null : `${index * step},${29 - (28 * value) / top}`));
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points.filter((point) => point !== null).join(" "));
    line.setAttribute("class", `c${number}`);
    drawing.append(line);
  });
  return element("figure", {}, element("figcaption", {}, element("span", {}, title), element("span", {}, latest)), drawing);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${(value * 1000).toPrecision(2)} ms`;
  return value < 1 ? `${(value * 1000).toFixed(0)} ms` : `${value.toFixed(2)} s`;
}

export const number = (value, digits = 1) =>
  value.toLocaleString("en", { maximumFractionDigits: value >= 100 ? 0 : digits });

export const bytes = (value) => {
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${number(value / 1000 ** power, 2)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
};

// Paths are next to this page's own, whatever prefix a proxy serves it under.
export async function ask(path, options = {}) {
  const url = `${location.origin}${location.pathname.replace(/\/$/, "")}/${path}`;
  const headers = { "x-pdserve-page": "1" };
  const response = await fetch(url, { ...options, headers, signal: AbortSignal.timeout(10000) });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error?.message ?? `status ${response.status}`);
  return body;
}
