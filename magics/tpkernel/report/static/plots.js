// Pictures of numbers: the heat map of a Jacobian's error, and lines on logarithmic axes.

const floats = (view) => new Float64Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));

function spelled(real, imaginary) {
  if (imaginary === undefined) return String(real);
  return `${String(real)}${imaginary < 0 || Object.is(imaginary, -0) ? "" : "+"}${String(imaginary)}j`;
}

// Index of an element in memory order, as it is written in Python.
function indexText(flat, shape) {
  const index = [];
  for (let d = shape.length - 1; d >= 0; d--) {
    index.unshift(flat % shape[d]);
    flat = Math.floor(flat / shape[d]);
  }
  return `[${index.join(", ")}]`;
}

// White is no error, blue up to what is allowed, orange to red beyond it; see markup.heat_map.
function errorColour(ratio) {
  const level = Number.isNaN(ratio) ? 1 : Math.min(1, Math.max(-1, Math.log10(Math.max(ratio, 1e-300)) / 4));
  const mix = (a, b, t) => a.map((from, i) => Math.round(from + t * (b[i] - from)));
  return level <= 0 ? mix([255, 255, 255], [70, 120, 200], level + 1) : mix([230, 130, 40], [150, 0, 20], level);
}

function heatMap(jacobian, pair, summary) {
  const { rows, columns } = jacobian;
  const analytical = floats(jacobian.analytical);
  const numerical = floats(jacobian.numerical);
  const difference = floats(jacobian.difference);
  const allowed = floats(jacobian.allowed);
  const imaginary = jacobian.imaginary ? [floats(jacobian.imaginary[0]), floats(jacobian.imaginary[1])] : null;
  const places = jacobian.places ? new Int32Array(floats(jacobian.places)) : null;
  const scale = Math.max(1, Math.min(24, Math.floor(320 / Math.max(rows, columns))));
  const canvas = el("canvas", {
    class: "tpk-map",
    role: "img",
    tabindex: "0",
    width: columns * scale,
    height: rows * scale,
    "aria-label": `${summary}. Arrow keys move, Home goes to the largest error.`,
  });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const [r, g, b] = errorColour(difference[i] / allowed[i]);
    picture.data.set([r, g, b, 255], 4 * i);
  }
  const small = el("canvas", { width: columns, height: rows });
  small.getContext("2d").putImageData(picture, 0, 0);
  const values = el("output", { class: "tpk-values", "aria-live": "polite" });
  let at = worst();

  function worst() {
    let best = 0;
    let most = -1;
    for (let i = 0; i < rows * columns; i++) {
      const ratio = Number.isNaN(difference[i]) ? Infinity : difference[i] / allowed[i];
      if (ratio > most) [best, most] = [i, ratio];
    }
    return best;
  }

  function show(i) {
    at = i;
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, columns * scale, rows * scale);
    const x = (i % columns) * scale;
    const y = Math.floor(i / columns) * scale;
    context.strokeStyle = "#000";
    context.strokeRect(x - 1.5, y - 1.5, scale + 3, scale + 3);
    context.strokeStyle = "#fff";
    context.strokeRect(x - 0.5, y - 0.5, scale + 1, scale + 1);
    const row = places ? places[2 * i] : Math.floor(i / columns);
    const column = places ? places[2 * i + 1] : i % columns;
    const size = jacobian.output_shape.reduce((a, b) => a * b, 1);
    const part = jacobian.parts === 2 ? (column < size ? " (real part)" : " (imaginary part)") : "";
    const text = (list, k) => spelled(list[i], imaginary?.[k][i]);
    values.textContent =
      `${pair.input}${indexText(row, jacobian.input_shape)} → output[${pair.output}]` +
      `${indexText(column % size, jacobian.output_shape)}${part}: analytical ${text(analytical, 0)}, ` +
      `numerical ${text(numerical, 1)}, error ${String(difference[i])}, allowed ${String(allowed[i])}`;
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    if (row >= 0 && row < rows && column >= 0 && column < columns) show(row * columns + column);
  });
  canvas.addEventListener("keydown", (event) => {
    const row = Math.floor(at / columns);
    const column = at % columns;
    const next = {
      ArrowRight: [row, Math.min(column + 1, columns - 1)],
      ArrowLeft: [row, Math.max(column - 1, 0)],
      ArrowDown: [Math.min(row + 1, rows - 1), column],
      ArrowUp: [Math.max(row - 1, 0), column],
    }[event.key];
    if (!next && event.key !== "Home") return;
    event.preventDefault();
    show(next ? next[0] * columns + next[1] : worst());
  });
  show(at);
  const across = el("div", { class: "tpk-across", "aria-hidden": "true" }, `elements of output[${pair.output}] →`);
  const down = el("div", { class: "tpk-down", "aria-hidden": "true" }, `elements of ${pair.input} →`);
  return el("div", { class: "tpk-picture" }, el("div", { class: "tpk-axes" }, across, down, canvas), values, legend());
}

function legend() {
  const sample = (ratio, text) => [
    el("span", { class: "tpk-sample", style: `background: rgb(${errorColour(ratio).join(",")})` }),
    el("span", {}, text),
  ];
  return el(
    "p",
    { class: "tpk-legend" },
    "error ÷ allowed: ",
    sample(1e-4, "0.0001"), sample(1e-2, "0.01"), sample(1, "1"), sample(1.01, "above 1"), sample(1e4, "10000"),
  );
}

// Lines on two logarithmic axes. Each line has its own dashes and marks besides its colour.
const DASHES = ["", "6 3", "2 3"];
const MARKS = ["circle", "square", "cross"];

function mark(kind, x, y, index) {
  const shared = { class: `tpk-line-${index}` };
  if (kind === "circle") return drawing("circle", { ...shared, cx: x, cy: y, r: 3 });
  if (kind === "square") return drawing("rect", { ...shared, x: x - 3, y: y - 3, width: 6, height: 6 });
  return drawing("path", { ...shared, d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`, fill: "none" });
}

function logPlot({ label, x, y, lines, marks = [] }) {
  const width = 560;
  const height = 260;
  const left = 70;
  const bottom = 40;
  const top = 12;
  const right = 14;
  const good = (v) => Number.isFinite(v) && v > 0;
  const every = (k) => lines.flatMap((l) => l.points.map((p) => p[k])).filter(good);
  const range = (list) => {
    const low = Math.floor(Math.log10(Math.min(...list)));
    const high = Math.ceil(Math.log10(Math.max(...list)));
    return [low, Math.max(high, low + 1)];
  };
  if (!every(0).length || !every(1).length) return paragraph("No finite values to plot.");
  const [x0, x1] = range(every(0));
  const [y0, y1] = range(every(1));
  const px = (v) => left + ((Math.log10(v) - x0) / (x1 - x0)) * (width - left - right);
  const py = (v) => height - bottom - ((Math.log10(v) - y0) / (y1 - y0)) * (height - bottom - top);
  const svg = drawing("svg", { class: "tpk-plot", role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}` });
  const text = (content, attributes) => {
    const node = drawing("text", attributes);
    node.textContent = content;
    svg.append(node);
  };
  const stride = (low, high) => Math.max(1, Math.ceil((high - low) / 8));
  for (let e = x0; e <= x1; e += stride(x0, x1)) {
    svg.append(drawing("line", { class: "tpk-grid", x1: px(10 ** e), x2: px(10 ** e), y1: top, y2: height - bottom }));
    text(`1e${e}`, { x: px(10 ** e), y: height - bottom + 14, "text-anchor": "middle" });
  }
  for (let e = y0; e <= y1; e += stride(y0, y1)) {
    svg.append(drawing("line", { class: "tpk-grid", x1: left, x2: width - right, y1: py(10 ** e), y2: py(10 ** e) }));
    text(`1e${e}`, { x: left - 6, y: py(10 ** e) + 4, "text-anchor": "end" });
  }
  text(x, { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" });
  text(y, { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` });
  lines.forEach((line, i) => {
    const points = line.points.filter((p) => good(p[0]) && good(p[1]));
    const path = points.map((p) => `${px(p[0])},${py(p[1])}`).join(" ");
    svg.append(drawing("polyline", { class: `tpk-line-${i}`, points: path, fill: "none", "stroke-dasharray": DASHES[i] }));
    svg.append(...points.map((p) => mark(MARKS[i], px(p[0]), py(p[1]), i)));
  });
  marks.filter((m) => good(m.at)).forEach((m, i) => {
    svg.append(drawing("line", { class: "tpk-mark", x1: px(m.at), x2: px(m.at), y1: top, y2: height - bottom }));
    const isRight = px(m.at) > width * 0.6;
    text(m.text, { x: px(m.at) + (isRight ? -4 : 4), y: top + 12 + 14 * i, "text-anchor": isRight ? "end" : "start" });
  });
  const names = lines.map((line, i) => {
    const key = drawing("svg", { class: "tpk-key", viewBox: "0 0 36 12", "aria-hidden": "true" });
    key.append(
      drawing("line", { class: `tpk-line-${i}`, x1: 2, x2: 34, y1: 6, y2: 6, "stroke-dasharray": DASHES[i] }),
      mark(MARKS[i], 18, 6, i),
    );
    return el("span", {}, key, ` ${line.name} `);
  });
  return el("div", { class: "tpk-picture" }, svg, el("p", { class: "tpk-legend" }, names));
}
