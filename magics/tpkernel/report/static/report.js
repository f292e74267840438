// The live view of a report: tabs, controls and messages to the kernel. It loads nothing.

// The controls of a section. They are made once: new facts do not take what a person has typed.
function gradcheckControls(model) {
  const choices = model.get("choices");
  const operators = Object.keys(choices);
  if (!operators.length) return [];
  const operator = choice("Operator", [["", "all operators"], ...operators.map((o) => [o])]);
  if (operators.length === 1) operator.value = operators[0];
  const named = el("span", { class: "tpk-fields" });
  const seed = numberField("Seed", "0", { min: "0", step: "1" });
  const step = numberField("Step", "", { min: "0", step: "any", placeholder: "by dtype" });
  const atol = numberField("atol, absolute tolerance", "", { min: "0", step: "any", placeholder: "by dtype" });
  const rtol = numberField("rtol, relative tolerance", "", { min: "0", step: "any", placeholder: "by dtype" });
  const mode = choice("Mode", [["reverse"], ["forward"], ["both"]]);
  const check = (label) => el("input", { type: "checkbox", "aria-label": label });
  const fast = check("Fast");
  const second = check("Second order");
  const curve = check("Error against step");
  const dtype = choice("Dtype", [["", "widest"]]);
  let shapes = {};
  let inputs = {};

  function name() {
    const chosen = choices[operator.value];
    shapes = {};
    inputs = {};
    const dtypes = new Set((chosen ? [chosen] : Object.values(choices)).flatMap((c) => c.dtypes));
    dtype.replaceChildren(el("option", { value: "" }, "widest"), ...[...dtypes].map((d) => el("option", { value: d }, d)));
    const parts = [];
    for (const [argument, text] of Object.entries(chosen?.shapes ?? {})) {
      shapes[argument] = el("input", { type: "text", class: "tpk-shape", placeholder: text, "aria-label": `Shape of ${argument}` });
      parts.push(field(`shape of ${argument}`, shapes[argument]));
    }
    for (const argument of chosen?.inputs ?? []) {
      inputs[argument] = check(`Check ${argument}`);
      inputs[argument].checked = true;
      parts.push(field(`check ${argument}`, inputs[argument]));
    }
    named.replaceChildren(...parts);
  }
  operator.addEventListener("change", name);
  name();

  const run = runButton("Run gradcheck again", () => {
    const typed = Object.entries(shapes).filter(([, input]) => input.value.trim());
    const wanted = Object.entries(inputs).filter(([, input]) => input.checked).map(([argument]) => argument);
    model.send({
      action: "gradcheck",
      settings: {
        operator: operator.value,
        shapes: Object.fromEntries(typed.map(([argument, input]) => [argument, input.value])),
        dtype: dtype.value,
        seed: seed.value,
        step: step.value,
        atol: atol.value,
        rtol: rtol.value,
        mode: mode.value,
        fast: fast.checked,
        inputs: wanted.length === Object.keys(inputs).length ? [] : wanted,
        order: second.checked ? 2 : 1,
        curve: curve.checked,
      },
    });
  });
  return [
    el(
      "div",
      { class: "tpk-controls", role: "group", "aria-label": "Gradcheck settings" },
      operators.length > 1 ? field("operator", operator) : "",
      named,
      field("dtype", dtype), field("seed", seed), field("step", step), field("atol", atol), field("rtol", rtol),
      field("mode", mode), field("fast", fast), field("second order", second), field("error against step", curve),
      run,
    ),
  ];
}

function timingControls(model) {
  const choices = model.get("choices");
  if (!Object.keys(choices).length) return [];
  const named = Object.values(choices).find((c) => c.reference)?.reference ?? "";
  const reference = el("input", { type: "text", class: "tpk-reference", "aria-label": "Reference", placeholder: "numpy:tanh or log(1 + exp(x))" });
  reference.value = named;
  const dtypes = new Set(Object.values(choices).flatMap((c) => c.dtypes));
  const dtype = choice("Dtype of the times", [["", "widest"], ...[...dtypes].map((d) => [d])]);
  const run = runButton("Time it", () => model.send({ action: "timing", reference: reference.value, dtype: dtype.value }));
  return [el("div", { class: "tpk-controls", role: "group", "aria-label": "Timing settings" },
    field("reference", reference), field("dtype", dtype), run)];
}

function render({ model, el: root }) {
  const id = `tpk-${Math.random().toString(36).slice(2)}`;
  root.classList.add("tpk-report");
  const title = el("div", { class: "tpk-title" });
  const problems = el("div", { class: "tpk-problems", role: "group", "aria-label": "What failed" });
  const busy = el("div", { class: "tpk-busy", role: "status", "aria-live": "polite" });
  const cancel = el("button", { type: "button", class: "tpk-cancel", onclick: () => model.send({ action: "cancel" }) }, "Cancel");
  const bar = el("progress", { class: "tpk-bar", "aria-label": "Work in progress" });
  const clock = el("span", { class: "tpk-clock", "aria-hidden": "true" });
  // One row, there also while nothing runs, so that the sections stay where they are.
  const work = el("div", { class: "tpk-work" }, bar, busy, clock, cancel);
  const strip = el("div", { class: "tpk-strip", role: "alert" });
  const tabs = el("div", { role: "tablist", "aria-label": "Report sections", class: "tpk-tabs" });
  const panels = el("div", {});
  root.append(title, problems, work, strip, tabs, panels);
  const status = (text) => {
    busy.textContent = text;
  };
  const live = model.get("can_run");
  const ask = (label, action) => () => (live ? [paragraph(runButton(label, () => model.send({ action })))] : []);
  const none = () => [];
  const operators = Object.keys(model.get("choices")).length;
  const canAsk = live && operators > 0;
  const sections = {
    Operator: [operatorPanel, operators ? ask("Run opcheck again", "opcheck") : none],
    Gradcheck: [gradcheckPanel, () => (live ? gradcheckControls(model) : [])],
    Validation: [validationPanel, none],
    Compile: [compilePanel, operators ? ask("Compare with tp.compile", "compile") : none],
    Timing: [timingPanel, () => (live ? timingControls(model) : [])],
    Findings: [findingsPanel, none],
    Build: [buildPanel, ask("Show remarks and machine code", "listing")],
  };
  const names = model.get("facts").sections.filter((name) => name in sections);
  let current = 0;
  let chosen = false; // by the person: then new facts leave the section alone

  const buttons = names.map((name, i) =>
    el("button", {
      type: "button", role: "tab", id: `${id}-tab-${i}`, "aria-controls": `${id}-panel-${i}`, class: "tpk-tab",
      onclick: () => {
        chosen = true;
        choose(i);
      },
      onkeydown: (event) => {
        const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: names.length - 1 }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        chosen = true;
        choose((next + names.length) % names.length, true);
      },
    }, name),
  );
  const results = names.map(() => el("div", {}));
  const bodies = names.map((name, i) =>
    el(
      "div",
      { role: "tabpanel", id: `${id}-panel-${i}`, "aria-labelledby": `${id}-tab-${i}`, tabindex: "0", class: "tpk-panel" },
      ...sections[name][1](),
      results[i],
    ),
  );
  tabs.append(...buttons);
  panels.append(...bodies);

  function choose(i, focus = false) {
    current = i;
    buttons.forEach((node, j) => {
      node.setAttribute("aria-selected", j === i ? "true" : "false");
      node.tabIndex = j === i ? 0 : -1;
    });
    bodies.forEach((body, j) => {
      body.hidden = j !== i;
    });
    if (focus) buttons[i].focus();
  }

  function draw() {
    const facts = model.get("facts");
    title.replaceChildren(el("span", {}, `${facts.cell}: ${facts.title}`));
    title.classList.toggle("tpk-bad", !facts.ok);
    names.forEach((name, i) => results[i].replaceChildren(...sections[name][0](facts, status, canAsk).filter(Boolean)));
    problems.replaceChildren(...facts.problems.map((p) => el("p", { class: `tpk-${p.level}` }, p.text)));
    problems.hidden = !facts.problems.length;
    choose(chosen ? current : names.indexOf(facts.opening));
  }

  let since = 0;
  let timer;
  function tick() {
    clock.textContent = `${Math.round((Date.now() - since) / 1000)} s`;
  }
  function showBusy() {
    const text = model.get("busy");
    const running = text !== "";
    busy.textContent = text;
    if (running && bar.hidden) {
      since = Date.now();
      timer = setInterval(tick, 1000);
      tick();
    } else if (!running) {
      clearInterval(timer);
    }
    bar.hidden = !running;
    clock.hidden = !running;
    cancel.hidden = !model.get("can_cancel");
    root.querySelectorAll("button.tpk-run").forEach((node) => {
      node.disabled = running;
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
  // JupyterLab would insert, cut and delete cells by letters that are pressed here. Chords such as
  // Ctrl+S stay the notebook's.
  root.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey || event.altKey)) event.stopPropagation();
  });

  const watched = { "change:facts": draw, "change:busy": showBusy, "change:can_cancel": showBusy, "change:error": showError };
  for (const [event, handler] of Object.entries(watched)) model.on(event, handler);
  bar.hidden = true;
  draw();
  showBusy();
  showError();
  return () => {
    clearInterval(timer);
    for (const [event, handler] of Object.entries(watched)) model.off(event, handler);
  };
}

export default { render };
