// The live view of a report. It draws plain data and sends button presses; it loads nothing.
// Text from people (names, messages) only ever becomes textContent. innerHTML is used for source
// that Pygments has escaped.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== "") node.append(child);
  }
  return node;
}

function table(caption, heads, rows) {
  return el(
    "table",
    { class: "tpk-table" },
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))),
  );
}

const folded = (title, ...children) => el("details", {}, el("summary", {}, title), ...children);

function code(title, html, text, status) {
  const pre = el("pre", { class: "tpk-code" });
  pre.innerHTML = html;
  const copy = el(
    "button",
    {
      type: "button",
      class: "tpk-button",
      "aria-label": `Copy ${title}`,
      onclick: async () => {
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
      },
    },
    "Copy",
  );
  return folded(title, copy, pre);
}

// What a check found beside its table; every finding also stands in the tab of findings.
function findingLines(facts, check) {
  return facts.findings
    .filter((f) => f.check === check)
    .map((f) => el("p", { class: `tpk-${f.level}` }, `${f.level}: ${f.operator}: ${f.message}`));
}

function findingsPanel(facts) {
  if (!facts.findings.length) return [el("p", {}, "No findings.")];
  return [
    table(
      "Findings",
      ["level", "message", "check", "operator"],
      facts.findings.map((f) => [f.level, f.message, f.check, f.operator]),
    ),
  ];
}

function operatorPanel(facts, status) {
  const parts = [];
  for (const o of facts.operators.filter((x) => !x.helper)) {
    parts.push(
      el("h4", {}, o.name),
      el("p", {}, el("code", {}, o.schema)),
      o.doc ? el("p", {}, o.doc) : "",
      el("p", {}, "Kernel ", el("code", {}, o.kernel), `, declared by ${o.origin}.`),
      table("Guards before the kernel", ["argument", "guard"], o.guards),
      o.derivatives.length
        ? table("Gradients", ["input", "formula"], o.derivatives)
        : el("p", {}, "Gradient: none declared; backward raises."),
      code("Generated wrapper", o.wrapper_html, o.wrapper, status),
      o.fake ? code("Fake kernel", o.fake_html, o.fake, status) : "",
      o.gradient ? code("Gradient", o.gradient_html, o.gradient, status) : "",
    );
  }
  for (const f of facts.functions) {
    parts.push(el("h4", {}, f.name), el("p", {}, el("code", {}, f.signature)));
    if (f.guards.length) parts.push(table("Guards before the kernel", ["argument", "guard"], f.guards));
  }
  for (const note of facts.notes) parts.push(el("p", {}, `Note: ${note}`));
  return parts;
}

function gradcheckPanel(facts, model) {
  const parts = [];
  if (model.get("can_rerun")) {
    const seed = el("input", { type: "number", value: "0", min: "0", class: "tpk-seed", "aria-label": "Seed" });
    seed.addEventListener("keydown", (event) => event.stopPropagation());
    parts.push(
      el(
        "p",
        {},
        el(
          "button",
          {
            type: "button",
            class: "tpk-button",
            onclick: () => model.send({ action: "rerun", checks: ["gradcheck"], seed: Number(seed.value) }),
          },
          "Run gradcheck again",
        ),
        " seed ",
        seed,
      ),
    );
  }
  const several = new Set(facts.gradcheck.map((g) => g.operator)).size > 1;
  const rows = facts.gradcheck.flatMap((g) =>
    g.pairs.map((p) => [
      p.words + (p.code ? ` (${p.code})` : ""),
      p.cause ?? "",
      `output ${p.output} by ${p.input}`,
      g.sample,
      p.worst_text,
      p.tolerance_text,
      ...(several ? [g.operator] : []),
    ]),
  );
  if (rows.length) {
    parts.push(
      table(
        "Gradcheck",
        // What matters stands where a narrow page still shows it.
        ["verdict", "likely cause", "pair", "sample", "worst element", "step and tolerance", ...(several ? ["operator"] : [])],
        rows,
      ),
    );
  }
  for (const g of facts.gradcheck.filter((x) => !x.pairs.length)) {
    parts.push(el("p", {}, `${g.words}: ${g.operator} on ${g.sample}. ${g.message}`));
  }
  for (const note of new Set(facts.gradcheck.flatMap((g) => g.notes))) parts.push(el("p", {}, `Note: ${note}`));
  const found = findingLines(facts, "gradcheck");
  parts.push(...found);
  if (!facts.gradcheck.length && !found.length) parts.push(el("p", {}, "No gradcheck was run."));
  return parts;
}

function validationPanel(facts, model) {
  const found = findingLines(facts, "validation");
  if (!facts.validation.length) return found.length ? found : [el("p", {}, "No validation was run.")];
  const body = el("div", {});
  const draw = (filter) => {
    const rows = facts.validation.filter((r) => filter === "all" || r.admitted === (filter === "admitted"));
    body.replaceChildren(
      table(
        "Validation",
        ["argument", "dtype", "device", "layout", "answer", "operator"],
        rows.map((r) => [r.argument, r.dtype, r.device, r.layout, r.answer, r.operator]),
      ),
    );
  };
  const select = el(
    "select",
    { "aria-label": "Show combinations", onchange: (event) => draw(event.target.value) },
    ["all", "admitted", "refused"].map((value) => el("option", { value }, value)),
  );
  select.addEventListener("keydown", (event) => event.stopPropagation());
  draw("all");
  const admitted = facts.validation.filter((r) => r.admitted).length;
  return [
    el("p", {}, `${facts.validation_words}, ${admitted} of ${facts.validation.length} combinations admitted`),
    ...found,
    ...facts.validation_lines.map((line) => el("p", {}, line)),
    folded("Each combination", el("p", {}, el("label", {}, "Show ", select)), body),
  ];
}

function buildPanel(facts) {
  const b = facts.build;
  const how = b.cached ? "found in the cache" : "built";
  const parts = [
    table("Build", ["fact", "value"], [
      ["result", how],
      ["time to build", `${b.seconds.toFixed(3)} s`],
      ["ready after", `${b.ready_seconds.toFixed(3)} s`],
      ["steps", Object.entries(facts.timing).map(([k, v]) => `${k} ${(v * 1000).toFixed(1)} ms`).join(", ")],
      ["headers", b.rung],
      ["library", b.library],
      ["key", b.key],
    ]),
  ];
  if (b.diagnostics.length) {
    parts.push(table("Compiler messages", ["level", "line", "message"], b.diagnostics.map((d) => [d.level, String(d.line), d.fix ? `${d.message} (${d.fix})` : d.message])));
  } else {
    parts.push(el("p", {}, "No compiler messages."));
  }
  parts.push(folded("Commands", el("pre", { class: "tpk-code" }, b.command_lines.join("\n"))));
  if (b.log.trim()) parts.push(folded("Compiler output", el("pre", { class: "tpk-code" }, b.log)));
  return parts;
}

function render({ model, el: root }) {
  const id = `tpk-${Math.random().toString(36).slice(2)}`;
  root.classList.add("tpk-report");
  const title = el("div", { class: "tpk-title" });
  const problems = el("div", { class: "tpk-problems", role: "group", "aria-label": "What failed" });
  const busy = el("div", { class: "tpk-busy", role: "status", "aria-live": "polite" });
  const strip = el("div", { class: "tpk-strip", role: "alert" });
  const tabs = el("div", { role: "tablist", "aria-label": "Report sections", class: "tpk-tabs" });
  const panels = el("div", {});
  root.append(title, problems, busy, strip, tabs, panels);
  const status = (text) => {
    busy.textContent = text;
  };
  const sections = ["Operator", "Gradcheck", "Validation", "Findings", "Build"];
  let current = 0;
  let chosen = false; // by the person: then new facts leave the section alone

  const buttons = sections.map((name, i) =>
    el("button", {
      type: "button", role: "tab", id: `${id}-tab-${i}`, "aria-controls": `${id}-panel-${i}`, class: "tpk-tab",
      onclick: () => {
        chosen = true;
        choose(i);
      },
      onkeydown: (event) => {
        const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: sections.length - 1 }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        event.stopPropagation();
        chosen = true;
        choose((next + sections.length) % sections.length, true);
      },
    }, name),
  );
  const bodies = sections.map((name, i) =>
    el("div", { role: "tabpanel", id: `${id}-panel-${i}`, "aria-labelledby": `${id}-tab-${i}`, tabindex: "0", class: "tpk-panel" }),
  );
  tabs.append(...buttons);
  panels.append(...bodies);

  function choose(i, focus = false) {
    current = i;
    buttons.forEach((button, j) => {
      button.setAttribute("aria-selected", j === i ? "true" : "false");
      button.tabIndex = j === i ? 0 : -1;
    });
    bodies.forEach((body, j) => {
      body.hidden = j !== i;
    });
    if (focus) buttons[i].focus();
  }

  function draw() {
    const facts = model.get("facts");
    title.textContent = `${facts.cell}: ${facts.title}`;
    title.classList.toggle("tpk-bad", !facts.ok);
    bodies[0].replaceChildren(...operatorPanel(facts, status).filter(Boolean));
    bodies[1].replaceChildren(...gradcheckPanel(facts, model).filter(Boolean));
    bodies[2].replaceChildren(...validationPanel(facts, model));
    bodies[3].replaceChildren(...findingsPanel(facts));
    bodies[4].replaceChildren(...buildPanel(facts));
    problems.replaceChildren(...facts.problems.map((p) => el("p", { class: `tpk-${p.level}` }, p.text)));
    problems.hidden = !facts.problems.length;
    choose(chosen ? current : sections.indexOf(facts.opening));
  }
  function showBusy() {
    busy.textContent = model.get("busy");
    const disabled = model.get("busy") !== "";
    root.querySelectorAll("button.tpk-button").forEach((button) => {
      button.disabled = disabled;
    });
  }
  function showError() {
    const error = model.get("error");
    strip.replaceChildren();
    strip.hidden = !error.type;
    if (error.type) {
      strip.append(el("strong", {}, error.type), ` ${error.text}`);
      if (error.frames) strip.append(el("pre", {}, error.frames));
    }
  }
  model.on("change:facts", draw);
  model.on("change:busy", showBusy);
  model.on("change:error", showError);
  draw();
  showBusy();
  showError();
  return () => {
    model.off("change:facts", draw);
    model.off("change:busy", showBusy);
    model.off("change:error", showError);
  };
}

export default { render };
