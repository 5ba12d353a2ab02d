// Builds elements. Text always becomes text nodes: nothing of a run is ever parsed as HTML.

const BLOCK = 20000;
const END = 24; // characters
const BIDI = /[\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c]/;
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\u061c\ufeff\ufff9-\ufffb]/g;

export function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style")
      for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export function replace(parent, ...children) {
  parent.replaceChildren(
    ...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return parent;
}

// Text from a run: characters that are invisible, or that turn the direction of text, are shown by their codes.
export function foreign(text) {
  const shown = document.createDocumentFragment();
  let start = 0;
  for (const match of text.matchAll(HIDDEN)) {
    shown.append(text.slice(start, match.index), hidden(match[0]));
    start = match.index + match[0].length;
  }
  shown.append(text.slice(start));
  return shown;
}

// A long text as blocks, of which the browser lays out only those that are in view.
export function longText(text) {
  if (text.length <= 2 * BLOCK) return el("pre", {}, foreign(text));
  const blocks = [];
  for (let start = 0; start < text.length;) {
    const block = text.slice(start, start + BLOCK);
    const lines = block.slice(0, block.lastIndexOf("\n") + 1) || block;
    blocks.push(el("span", { class: "block" }, foreign(lines)));
    start += lines.length;
  }
  return el("pre", {}, blocks);
}

export function oneLine(text, most = 160) {
  const line = text
    .slice(0, most * 2)
    .replace(/\s+/g, " ")
    .trim();
  return foreign(line.length > most || text.length > most * 2 ? `${line.slice(0, most)}…` : line);
}

// A text whose end stays in view where there is no room for all of it: prompts often begin with the same instruction.
export function bothEnds(text) {
  const line = text.replace(/\s+/g, " ").trim();
  const cut = Math.max(0, line.length - END);
  return el(
    "span",
    { class: "both-ends" },
    el("span", { class: "start" }, foreign(line.slice(0, cut))),
    el("span", {}, foreign(line.slice(cut))),
  );
}

function hidden(character) {
  const code = `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  const what = BIDI.test(character) ? "changes the direction of text" : "invisible";
  return el("span", { class: "hidden-character", title: `${code}, ${what}` }, `⟨${code}⟩`);
}

export function announce(text) {
  document.getElementById("live").textContent = text;
}
