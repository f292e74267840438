// Elements of the page. Text from people (names, messages) only ever becomes textContent.
// innerHTML is used for source that Pygments has escaped.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === "") continue;
    if (typeof child === "string" && UNBROKEN.test(child)) node.append(...breakable(child));
    else node.append(child);
  }
  return node;
}

// Names, keys and paths may be longer than a line: words of more than 24 signs may break after an
// underline or a slash, and at the latest after 16. What is copied or searched stays the text.
const UNBROKEN = /\S{25}/u;

function breakable(text) {
  return text.split(/(\S{25,})/u).flatMap((part, i) => {
    if (i % 2 === 0) return [part];
    const pieces = part.match(/[^_:/]{1,16}[_:/]*|[_:/]{1,16}/gu);
    const lines = [pieces[0]];
    for (const piece of pieces.slice(1)) {
      if (lines.at(-1).length + piece.length <= 16) lines[lines.length - 1] += piece;
      else lines.push(piece);
    }
    return lines.flatMap((line, n) => (n ? [document.createElement("wbr"), line] : [line]));
  });
}

function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const paragraph = (...content) => el("p", {}, ...content);

// Columns whose heads are in `numbers` hold one number and its unit, which stay on a line.
function table(caption, heads, rows, numbers = []) {
  const classes = heads.map((head) => (numbers.includes(head) ? "tpk-count" : null));
  return el(
    "table",
    { class: "tpk-table" },
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: classes[i] ?? "" }, cell))))),
  );
}

const folded = (title, ...children) => el("details", {}, el("summary", {}, title), ...children);

// A part whose content is made when it is opened for the first time.
function foldedLater(title, make, open = false) {
  const node = el("details", {}, el("summary", {}, title));
  const fill = () => {
    if (!node.open || node.dataset.made) return;
    node.dataset.made = "1";
    node.append(...make());
  };
  node.addEventListener("toggle", fill);
  if (open) {
    node.open = true;
    fill();
  }
  return node;
}

// Keys typed into a field are the field's, not the notebook's.
const own = (event) => event.stopPropagation();

function field(label, input) {
  input.addEventListener("keydown", own);
  return el("label", { class: "tpk-field" }, `${label} `, input);
}

const numberField = (label, value = "", attributes = {}) => {
  const input = el("input", { type: "number", class: "tpk-number", "aria-label": label, ...attributes });
  input.value = value;
  return input;
};

const choice = (label, values) =>
  el("select", { "aria-label": label }, values.map(([value, text]) => el("option", { value }, text ?? value)));

const button = (label, onclick, kind = "tpk-button") => el("button", { type: "button", class: kind, onclick }, label);

// One that asks the kernel for work: it waits while other work is running.
const runButton = (label, onclick) => button(label, onclick, "tpk-button tpk-run");

function code(title, html, text, status) {
  const pre = el("pre", { class: "tpk-code" });
  pre.innerHTML = html;
  return folded(title, copyButton(title, pre, text, status), pre);
}

function plainCode(title, text, status) {
  const pre = el("pre", { class: "tpk-code" }, text);
  return folded(title, copyButton(title, pre, text, status), pre);
}

function copyButton(title, pre, text, status) {
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      status(`${title} copied`);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(pre);
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      status(`${title} selected; press Ctrl+C to copy`);
    }
  });
  copy.setAttribute("aria-label", `Copy ${title}`);
  return copy;
}
