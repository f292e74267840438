// What each section shows of the report's facts. Numbers and sentences arrive as words.

// What a check found beside its table; every finding also stands in the tab of findings.
function findingLines(facts, check) {
  return facts.findings
    .filter((f) => f.check === check)
    .map((f) => el("p", { class: `tpk-${f.level}` }, `${f.level}: ${f.operator}: ${f.message}`));
}

function findingsPanel(facts) {
  if (!facts.findings.length) return [paragraph("No findings: the checks that ran have nothing to say beside their own sections.")];
  const rows = facts.findings.map((f) => [f.level, f.message, f.check, f.operator]);
  return [shortTable("Findings", ["level", "message", "check", "operator"], rows)];
}

// A last column that says one name in every row, or a column without a word, is left out.
function shortTable(caption, heads, rows) {
  const kept = heads.map((head, i) =>
    head === "operator" ? new Set(rows.map((row) => row[i])).size > 1 : head !== "likely cause" || rows.some((row) => row[i]));
  return table(caption, heads.filter((_, i) => kept[i]), rows.map((row) => row.filter((_, i) => kept[i])));
}

// Why a section is empty, and what fills it, where somebody can press the button.
function nothing(facts, said, next) {
  if (!facts.operators.length) return paragraph(`${said}: the cell declares no operator.`);
  if (facts.findings.some((f) => f.code === "crash")) return paragraph(`${said}: the kernel crashes. See Findings.`);
  return paragraph(next ? `${said}. ${next}` : `${said}.`);
}

function operatorPanel(facts, status) {
  const parts = [];
  for (const o of facts.operators.filter((x) => !x.helper)) {
    parts.push(
      el("h4", {}, o.name),
      paragraph(el("code", {}, o.schema)),
      o.doc ? paragraph(o.doc) : "",
      paragraph("Kernel ", el("code", {}, o.kernel), `, declared by ${o.origin}.`),
      table("Guards before the kernel", ["argument", "guard"], o.guards),
      o.derivatives.length
        ? table("Gradients", ["input", "formula"], o.derivatives)
        : paragraph("Gradient: none declared; backward raises."),
      code("Generated wrapper", o.wrapper_html, o.wrapper, status),
      o.fake ? code("Fake kernel", o.fake_html, o.fake, status) : "",
      o.gradient ? code("Gradient", o.gradient_html, o.gradient, status) : "",
    );
  }
  for (const f of facts.functions) {
    parts.push(el("h4", {}, f.name), paragraph(el("code", {}, f.signature)));
    if (f.guards.length) parts.push(table("Guards before the kernel", ["argument", "guard"], f.guards));
  }
  if (facts.registered.length) {
    parts.push(table("Registered for the whole process", ["kind", "name"], facts.registered));
  }
  for (const note of facts.notes) parts.push(paragraph(`Note: ${note}`));
  const found = findingLines(facts, "opcheck");
  if (facts.opcheck.length || found.length) {
    parts.push(el("h4", {}, `Operator check (opcheck): ${facts.opcheck_words || "not finished"}`), ...found);
  }
  for (const o of facts.opcheck) {
    parts.push(paragraph(o.words));
    if (o.failures.length) {
      const rows = o.failures.map((f) => [f.test, f.code, f.variant, f.message]);
      parts.push(table("What opcheck found", ["test", "code", "call", "message"], rows));
    }
    parts.push(paragraph(`Tests: ${o.tests.join(", ")}`), ...o.notes.map((n) => paragraph(`Note: ${n}`)));
  }
  return parts;
}

const chosenText = (g) => (g.settings ? `${g.sample} (${g.settings})` : g.sample);

function gradcheckPanel(facts, status, canAsk) {
  const parts = [];
  const rows = facts.gradcheck.flatMap((g) =>
    g.pairs.map((p) => [
      p.words + (p.code ? ` (${p.code})` : ""),
      p.cause ?? "",
      `${g.order === 2 ? "second order: " : ""}output ${p.output} by ${p.input}`,
      chosenText(g),
      p.worst_text,
      p.tolerance_text,
      g.operator,
    ]),
  );
  if (rows.length) {
    // What matters stands where a narrow page still shows it.
    const heads = ["verdict", "likely cause", "pair", "sample", "worst element", "step and tolerance", "operator"];
    parts.push(shortTable("Gradcheck", heads, rows));
  }
  for (const g of facts.gradcheck.filter((x) => !x.pairs.length)) {
    parts.push(paragraph(`${g.words}: ${g.operator} on ${chosenText(g)}. ${g.message}`));
  }
  for (const note of new Set(facts.gradcheck.flatMap((g) => g.notes))) parts.push(paragraph(`Note: ${note}`));
  for (const g of facts.gradcheck) {
    for (const p of g.pairs) parts.push(...pictures(g, p));
  }
  const found = findingLines(facts, "gradcheck");
  parts.push(...found);
  if (!facts.gradcheck.length && !found.length) parts.push(nothing(facts, "No gradcheck was run", canAsk && "The button above runs it."));
  return parts;
}

function pictures(check, pair) {
  const parts = [];
  const where = `${check.operator} on ${chosenText(check)}, output ${pair.output} by ${pair.input}`;
  if (pair.jacobian) {
    const make = () => [paragraph(pair.jacobian_text), heatMap(pair.jacobian, pair, pair.jacobian_text)];
    parts.push(foldedLater(`Jacobian error: ${where}`, make, pair.bad));
  }
  if (pair.curve) {
    const c = pair.curve;
    const points = (gaps) => c.steps.map((step, i) => [step, Number(gaps[i])]);
    const make = () => [
      paragraph(pair.curve_text),
      logPlot({
        label: `Error against step: ${pair.curve_text}`,
        x: "step of the differences",
        y: "largest error",
        lines: [
          { name: "gap to the formula", points: points(c.formula_gap) },
          { name: "gap to the extrapolation", points: points(c.reference_gap) },
        ],
        marks: [
          { at: c.meeting, text: "rounding | truncation" },
          { at: c.used, text: "step of the check" },
        ],
      }),
      folded("Values", table("Error against step", ["step", "gap to the formula", "gap to the extrapolation"], c.words)),
    ];
    parts.push(foldedLater(`Error against step: ${where}`, make, true));
  }
  return parts;
}

function validationPanel(facts) {
  const found = findingLines(facts, "validation");
  if (!facts.validation.length) return found.length ? found : [nothing(facts, "No validation was run")];
  const body = el("div", {});
  const which = choice("Show combinations", [["all"], ["admitted"], ["refused"], ["wrong"]]);
  const words = el("input", { type: "search", "aria-label": "Filter combinations by text" });
  const draw = () => {
    const wanted = words.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const rows = facts.validation
      .filter((r) =>
        which.value === "all" || (which.value === "wrong" ? r.verdict !== "ok" : r.admitted === (which.value === "admitted")))
      .map((r) => [r.argument, r.dtype, r.device, r.layout, r.answer, r.operator])
      .filter((row) => wanted.every((word) => row.join(" ").toLowerCase().includes(word)));
    body.replaceChildren(
      shortTable("Validation", ["argument", "dtype", "device", "layout", "answer", "operator"], rows),
      paragraph(`${rows.length} of ${facts.validation.length} combinations`),
    );
  };
  which.addEventListener("change", draw);
  words.addEventListener("input", draw);
  draw();
  return [
    paragraph(facts.validation_title),
    ...found,
    ...facts.validation_lines.map((line) => paragraph(line)),
    folded("Each combination", el("div", { class: "tpk-controls" }, field("show", which), field("text", words)), body),
  ];
}

function compilePanel(facts, status, canAsk) {
  const parts = [...findingLines(facts, "compile")];
  for (const c of facts.compiled) {
    parts.push(paragraph(c.words));
    if (c.regions.length) {
      parts.push(table("What runs together", ["as", "nodes", "reason"], c.regions.map((r) => [r.kind, r.nodes, r.reason])));
    }
    if (c.graph) parts.push(plainCode("Graph", c.graph, status));
    if (c.backward_graph) parts.push(plainCode("Backward graph", c.backward_graph, status));
  }
  if (!parts.length) parts.push(nothing(facts, "Nothing was compiled yet",
      canAsk && "The button above runs the operator in a compiled graph and eagerly, and shows the graph and how far both differ."));
  return parts;
}

function timingPanel(facts, status, canAsk) {
  const parts = [...findingLines(facts, "timing")];
  for (const t of facts.timing) {
    const title = `Times of ${t.operator}, ${t.dtype}`;
    const lines = (of) => [
      { name: t.operator, points: t.rows.map((r) => [r.elements, of(r, r.seconds)]) },
      { name: "copying as many bytes (the machine's limit)", points: t.rows.map((r) => [r.elements, of(r, r.limit)]) },
      ...(t.reference
        ? [{ name: t.reference, points: t.rows.map((r) => [r.elements, of(r, r.reference)]) }]
        : []),
    ];
    const last = t.rows.at(-1);
    const spoken = last ? `; at ${last.words[0]} ${last.words[1]}, ${last.words[3]}, ${last.words[5]} of the limit` : "";
    parts.push(
      table(title, facts.timing_heads, t.rows.map((r) => r.words), facts.timing_heads.slice(1)),
      ...t.notes.map((n) => paragraph(`Note: ${n}`)),
      logPlot({
        label: `${title} across sizes${spoken}`,
        x: "elements of the largest tensor",
        y: "seconds",
        lines: lines((r, seconds) => seconds),
      }),
      logPlot({
        label: `Bandwidth of ${t.operator} across sizes${spoken}`,
        x: "elements of the largest tensor",
        y: "bytes in a second",
        lines: lines((r, seconds) => r.bytes / seconds),
      }),
    );
  }
  if (!parts.length) parts.push(nothing(facts, "Nothing was timed yet",
      canAsk && "The button above times the operator across sizes, beside the reference if there is one, and what copying as many bytes takes."));
  return parts;
}

function buildPanel(facts, status) {
  const b = facts.build;
  const how = b.cached ? "found in the cache" : "built";
  const parts = [
    table("Build", ["fact", "value"], [
      ["result", how],
      ["time to build", `${b.seconds.toFixed(3)} s`],
      ["ready after", `${b.ready_seconds.toFixed(3)} s`],
      ["steps", Object.entries(facts.steps).map(([k, v]) => `${k} ${(v * 1000).toFixed(1)} ms`).join(", ")],
      ["headers", b.rung],
      ["library", b.library],
      ["key", b.key],
    ]),
  ];
  if (b.cuda) {
    parts.push(paragraph(`Built for ${b.cuda.text}.`));
    parts.push(table("CUDA kernels", b.cuda.heads, b.cuda.rows));
  }
  if (b.diagnostics.length) {
    const rows = b.diagnostics.map((d) => [d.level, d.column ? `${d.line}:${d.column}` : String(d.line), d.fix ? `${d.message} (${d.fix})` : d.message, d.source_line?.trim() ?? ""]);
    parts.push(table("Compiler messages", ["level", "line", "message", "source"], rows));
  } else {
    parts.push(paragraph("No compiler messages."));
  }
  if (b.inputs.length) parts.push(folded("Cache key in clear", table("What the key is made of", ["part", "value"], b.inputs)));
  parts.push(plainCode("Commands", b.command_lines.join("\n"), status));
  if (b.log.trim()) parts.push(plainCode("Compiler output", b.log, status));
  if (facts.listing) parts.push(...listing(facts.listing, status));
  return parts;
}

function listing(facts, status) {
  const parts = [el("h4", {}, "What the compiler made")];
  if (facts.remarks.length) {
    const rows = facts.remarks.map((d) => [String(d.line), d.message, d.source_line?.trim() ?? ""]);
    parts.push(table("Remarks of the optimiser", ["line", "remark", "source"], rows));
  } else {
    parts.push(paragraph("The optimiser has no remarks on the cell's lines."));
  }
  const functions = new Map();
  for (const i of facts.instructions) {
    const line = i.line === null ? "" : `  ; line ${i.line}`;
    functions.set(i.function, [...(functions.get(i.function) ?? []), `${i.address}: ${i.text}${line}`]);
  }
  for (const [name, lines] of functions) parts.push(plainCode(`Machine code of ${name}`, lines.join("\n"), status));
  if (facts.command) parts.push(paragraph("Command ", el("code", {}, facts.command)));
  parts.push(...facts.notes.map((n) => paragraph(`Note: ${n}`)));
  return parts;
}
