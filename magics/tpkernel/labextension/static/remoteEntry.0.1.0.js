/*
 * JupyterLab's side of %%tpkernel: C++ in the cell's editor, compiler messages where they belong,
 * and reports that are shown without a kernel.
 *
 * A container of module federation, written by hand: an object with `init` and `get`. It takes what
 * it needs from JupyterLab, so nothing is bundled or built. The file's name carries the version, so
 * that a browser does not keep an old copy.
 */
(() => {
  const NAME = "tpkernel";
  const DIAGNOSTICS = "application/vnd.tpkernel.diagnostics+json";
  const REPORT = "application/vnd.tpkernel.report+json";
  const WIDGET = "application/vnd.jupyter.widget-view+json";
  const COMM = "tpkernel.diagnostics";
  let shareScope;

  /** Give a module that JupyterLab shares, in its newest version. */
  async function shared(name) {
    const offered = shareScope[name];
    if (!offered) throw new Error(`tpkernel: JupyterLab does not share ${name}`);
    const [newest] = Object.keys(offered).sort((a, b) => b.localeCompare(a, undefined, { numeric: true }));
    return (await offered[newest].get())();
  }

  /** The number of the magic's line, or 0: blank lines and comments may stand above it. */
  function magicLine(doc) {
    for (let number = 1; number <= doc.lines; number++) {
      const text = doc.line(number).text;
      if (/^%%tpkernel(?!\w)/.test(text)) return number;
      if (text.trim() && !/^\s*(#|\/\/)/.test(text)) return 0;
    }
    return 0;
  }

  // -- what is known of each cell ------------------------------------------------------------------

  /** Messages that arrived before their cell's output, by cell id. */
  class LiveMessages {
    constructor() {
      this.byCell = new Map();
      this.listeners = new Set();
    }

    set(cell, messages) {
      this.byCell.set(cell, messages);
      for (const listener of this.listeners) listener(cell);
    }

    get(cell) {
      return this.byCell.get(cell);
    }

    drop(cell) {
      if (this.byCell.delete(cell)) for (const listener of this.listeners) listener(cell);
    }

    /** Listen to a notebook's kernel, and to each that takes its place. */
    follow(sessionContext) {
      let kernel = null;
      const receive = (comm, opening) => {
        const take = (data) => {
          if (data?.cell_id) this.set(data.cell_id, data.diagnostics ?? []);
        };
        take(opening.content.data);
        comm.onMsg = (message) => take(message.content.data);
      };
      const change = () => {
        const next = sessionContext.session?.kernel ?? null;
        if (next === kernel) return;
        kernel = next;
        kernel?.registerCommTarget(COMM, receive);
      };
      sessionContext.kernelChanged.connect(change);
      change();
    }
  }

  /** The messages that a cell's outputs carry; they are saved with the notebook. */
  function saved(outputs) {
    const found = [];
    for (let i = 0; !outputs.isDisposed && i < outputs.length; i++) {
      found.push(...(outputs.get(i).data?.[DIAGNOSTICS]?.diagnostics ?? []));
    }
    return found;
  }

  /** Where a message stands in the text now, or null where its line was changed since. */
  function locate(doc, message) {
    let line = message.line >= 1 && message.line <= doc.lines ? doc.line(message.line) : null;
    const wanted = message.source_line?.trimEnd();
    if (wanted !== undefined && line?.text.trimEnd() !== wanted) {
      line = null;
      for (let away = 1; away <= doc.lines && !line; away++) {
        for (const number of [message.line - away, message.line + away]) {
          if (number >= 1 && number <= doc.lines && doc.line(number).text.trimEnd() === wanted) line = doc.line(number);
        }
      }
    }
    if (!line) return null;
    const blank = /^\s*/.exec(line.text)[0].length;
    const from = Math.min(line.from + (message.column ? message.column - 1 : blank), line.to);
    const word = /^[\w]+/.exec(doc.sliceString(from, line.to));
    let to = message.column ? from + (word ? word[0].length : 1) : line.to;
    if (message.end_column) to = line.from + message.end_column - 1;
    to = Math.min(Math.max(to, from + 1), line.to);
    // At the end of a line, such as for a missing semicolon: mark what stands before.
    return to > from ? { from, to } : { from: Math.max(line.from, line.to - 1), to: line.to };
  }

  // -- the editor ----------------------------------------------------------------------------------

  const CUDA = new RegExp(
    String.raw`\b(?:__(?:global|device|host|shared|constant|managed|grid_constant)__|__(?:restrict|forceinline|noinline)__` +
      String.raw`|__launch_bounds__|__syncthreads(?:_\w+)?|__syncwarp|__shfl(?:_\w+)?_sync|__ballot_sync|__ldg` +
      String.raw`|(?:thread|block)Idx|(?:block|grid)Dim|warpSize|atomic(?:Add|Sub|Min|Max|Exch|CAS|And|Or|Xor))\b|<<<|>>>`,
    "g",
  );

  function editorExtension(codemirror, state, view, live) {
    const { Compartment, Prec, RangeSet, StateEffect, StateField } = state;
    const { Decoration, EditorView, GutterMarker, MatchDecorator, ViewPlugin, gutter, hoverTooltip, keymap } = view;

    const replace = StateEffect.define();
    const messages = StateField.define({
      create: () => [],
      update(list, transaction) {
        for (const effect of transaction.effects) if (effect.is(replace)) return effect.value;
        if (!transaction.docChanged) return list;
        return list
          .map((m) => ({ ...m, from: transaction.changes.mapPos(m.from, 1), to: transaction.changes.mapPos(m.to, -1) }))
          .filter((m) => m.to > m.from);
      },
      provide: (field) =>
        EditorView.decorations.from(field, (list) =>
          Decoration.set(list.map((m) => Decoration.mark({ class: `tpk-under tpk-under-${m.severity}` }).range(m.from, m.to)), true)),
    });

    const spoken = (m) => `${m.severity}: ${m.message}${m.fix ? ` (write ${m.fix})` : ""}`;

    class Sign extends GutterMarker {
      constructor(severity, text) {
        super();
        this.severity = severity;
        this.text = text;
      }

      eq(other) {
        return other.severity === this.severity && other.text === this.text;
      }

      toDOM() {
        const node = document.createElement("span");
        node.className = `tpk-sign tpk-sign-${this.severity}`;
        node.textContent = { error: "●", warning: "▲" }[this.severity] ?? "○";
        node.title = this.text; // gutters are hidden from screen readers: F8 speaks
        return node;
      }
    }

    const rank = { error: 0, warning: 1 };
    const signs = gutter({
      class: "tpk-gutter",
      initialSpacer: () => new Sign("error", ""),
      markers(editor) {
        const byLine = new Map();
        for (const m of editor.state.field(messages)) {
          const at = editor.state.doc.lineAt(m.from).from;
          byLine.set(at, [...(byLine.get(at) ?? []), m]);
        }
        const made = [...byLine].map(([at, list]) => {
          const [first] = [...list].sort((a, b) => (rank[a.severity] ?? 2) - (rank[b.severity] ?? 2));
          return new Sign(first.severity, list.map(spoken).join("\n")).range(at);
        });
        return RangeSet.of(made, true);
      },
    });

    const tip = hoverTooltip((editor, position) => {
      const here = editor.state.field(messages).filter((m) => m.from <= position && position <= m.to);
      if (!here.length) return null;
      return {
        pos: here[0].from,
        above: true,
        create() {
          const dom = document.createElement("div");
          dom.className = "tpk-tip";
          dom.textContent = here.map(spoken).join("\n");
          return { dom };
        },
      };
    });

    // F8 goes from message to message, as in other editors, and says it.
    function step(editor, direction) {
      const list = [...editor.state.field(messages)].sort((a, b) => a.from - b.from);
      if (!list.length) return false;
      const head = editor.state.selection.main.head;
      const next = direction > 0
        ? list.find((m) => m.from > head) ?? list[0]
        : list.findLast((m) => m.from < head) ?? list.at(-1);
      const line = editor.state.doc.lineAt(next.from).number;
      editor.dispatch({
        selection: { anchor: next.from },
        scrollIntoView: true,
        effects: EditorView.announce.of(`Line ${line}, ${spoken(next)}`),
      });
      return true;
    }
    const keys = keymap.of([
      { key: "F8", run: (editor) => step(editor, 1) },
      { key: "Shift-F8", run: (editor) => step(editor, -1) },
    ]);

    const matcher = new MatchDecorator({ regexp: CUDA, decoration: Decoration.mark({ class: "tpk-cuda" }) });
    const cudaWords = ViewPlugin.fromClass(
      class {
        constructor(editor) {
          this.decorations = matcher.createDeco(editor);
        }

        update(update) {
          this.decorations = matcher.updateDeco(update, this.decorations);
        }
      },
      { decorations: (plugin) => plugin.decorations },
    );

    const mutedMagic = EditorView.decorations.of((editor) => {
      const number = magicLine(editor.state.doc);
      return number
        ? Decoration.set([Decoration.line({ class: "tpk-magic-line" }).range(editor.state.doc.line(number).from)])
        : Decoration.none;
    });

    const wave = (colour) => ({ textDecoration: `underline wavy ${colour}`, textUnderlineOffset: "3px" });
    const look = EditorView.baseTheme({
      ".tpk-magic-line, .tpk-magic-line *": { color: "var(--jp-mirror-editor-operator-color) !important" },
      ".tpk-cuda, .tpk-cuda *": { color: "var(--jp-mirror-editor-keyword-color) !important", fontWeight: "bold" },
      ".tpk-under-error": wave("var(--jp-error-color1)"),
      ".tpk-under-warning": wave("var(--jp-warn-color1)"),
      ".tpk-under-note": wave("var(--jp-info-color1)"),
      ".tpk-gutter": { width: "1.2em" },
      ".tpk-sign": { cursor: "help" },
      ".tpk-sign-error": { color: "var(--jp-error-color1)" },
      ".tpk-sign-warning": { color: "var(--jp-warn-color1)" },
      ".tpk-sign-note": { color: "var(--jp-info-color1)" },
      ".tpk-tip": {
        background: "var(--jp-layout-color1)",
        border: "1px solid var(--jp-border-color1)",
        color: "var(--jp-content-font-color1)",
        fontFamily: "var(--jp-code-font-family)",
        maxWidth: "60em",
        padding: "2px 6px",
        whiteSpace: "pre-wrap",
      },
    });
    const always = [messages, signs, tip, keys, cudaWords, mutedMagic, look];

    return (model, languages) => {
      const slot = new Compartment();
      const { outputs, id } = model; // kept: the model is disposed before its editor

      class Follower {
        constructor(editor) {
          this.editor = editor;
          this.isOn = false;
          this.changed = () => {
            // A run begins by clearing: what was live belongs to the run before.
            if (!outputs.isDisposed && outputs.length === 0) live.drop(id);
            this.lint();
          };
          this.arrived = (cell) => {
            if (cell === id) this.lint();
          };
          outputs.changed.connect(this.changed);
          live.listeners.add(this.arrived);
          this.follow();
        }

        update(update) {
          if (!update.docChanged) return;
          this.follow();
          this.lint(); // a message whose line is no longer as it was compiled goes
        }

        destroy() {
          this.isGone = true;
          outputs.changed.disconnect(this.changed);
          live.listeners.delete(this.arrived);
        }

        /** Switch C++ on or off as the magic is typed or removed. */
        async follow() {
          const isOn = magicLine(this.editor.state.doc) > 0;
          if (isOn === this.isOn) return;
          this.isOn = isOn;
          const cpp = isOn ? await languages.getLanguage("text/x-c++src") : null;
          await null; // never inside an update
          if (this.isGone || this.isOn !== isOn) return;
          const extensions = isOn ? [Prec.highest(cpp?.support ?? []), ...always] : [];
          this.editor.dispatch({ effects: slot.reconfigure(extensions) });
          this.lint();
        }

        async lint() {
          await null;
          if (this.isGone || !this.editor.state.field(messages, false)) return;
          const doc = this.editor.state.doc;
          const list = live.get(id) ?? saved(outputs);
          const placed = list.flatMap((message) => {
            const place = locate(doc, message);
            return place ? [{ severity: "error", ...message, ...place }] : [];
          });
          placed.sort((a, b) => a.from - b.from || a.to - b.to);
          this.editor.dispatch({ effects: replace.of(placed) });
        }
      }
      return [slot.of([]), ViewPlugin.fromClass(Follower)];
    };
  }

  function editorPlugin(codemirror, state, view, notebook) {
    const live = new LiveMessages();
    const { IEditorExtensionRegistry, IEditorLanguageRegistry, EditorExtensionRegistry } = codemirror;
    return {
      id: `${NAME}:editor`,
      autoStart: true,
      requires: [IEditorExtensionRegistry, IEditorLanguageRegistry],
      optional: [notebook.INotebookTracker],
      activate(app, extensions, languages, tracker) {
        const forCell = editorExtension(codemirror, state, view, live);
        extensions.addExtension({
          name: NAME,
          factory: ({ model }) =>
            model.type === "code" && model.outputs
              ? EditorExtensionRegistry.createImmutableExtension(forCell(model, languages))
              : null,
        });
        tracker?.widgetAdded.connect((_, panel) => live.follow(panel.sessionContext));
        tracker?.forEach((panel) => live.follow(panel.sessionContext));
      },
    };
  }

  // -- reports -------------------------------------------------------------------------------------

  const TRIES = 8;
  const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

  /** The static form at once; the live view takes its place if, and as soon as, its model exists. */
  function reportPlugin(notebook, widgets) {
    class ReportOutput extends widgets.Panel {
      constructor(rendermime) {
        super();
        this.rendermime = rendermime;
        this.turn = 0;
        this.live = null;
      }

      /** Called again when the output is updated: a live view shows the new facts by itself. */
      async renderModel(model) {
        const id = model.data[WIDGET]?.model_id;
        if (this.live && this.live === id) return;
        const turn = ++this.turn;
        const still = this.rendermime.createRenderer("text/html");
        await still.renderModel(model);
        if (turn !== this.turn || this.isDisposed) {
          still.dispose();
          return;
        }
        this.live = null;
        for (const old of [...this.widgets]) old.dispose();
        this.addWidget(still);
        if (id) void this.goLive(model, id, still, turn);
      }

      async goLive(model, id, still, turn) {
        for (let tries = 0; tries < TRIES && !this.isDisposed && turn === this.turn; tries++) {
          // A renderer made before the notebook's widget manager waits for ever: make it anew.
          const moving = this.rendermime.createRenderer(WIDGET);
          await Promise.race([moving.renderModel(model).catch(() => null), pause(3000)]);
          if (!this.isDisposed && turn === this.turn && moving.widgets?.length) {
            this.live = id;
            still.dispose();
            this.addWidget(moving);
            return;
          }
          moving.dispose();
          await pause(500);
        }
      }
    }
    return {
      id: `${NAME}:report`,
      autoStart: true,
      requires: [notebook.INotebookTracker],
      activate(app, tracker) {
        const register = (panel) => {
          const { rendermime } = panel.content;
          const createRenderer = () => new ReportOutput(rendermime);
          rendermime.addFactory({ safe: false, mimeTypes: [REPORT], createRenderer }, -20);
        };
        tracker.widgetAdded.connect((_, panel) => register(panel));
        tracker.forEach(register);
      },
    };
  }

  (window._JUPYTERLAB ??= {})[NAME] = {
    init(scope) {
      shareScope = scope;
    },
    async get() {
      const names = ["@jupyterlab/codemirror", "@codemirror/state", "@codemirror/view", "@jupyterlab/notebook", "@lumino/widgets"];
      const [codemirror, state, view, notebook, widgets] = await Promise.all(names.map(shared));
      const plugins = [editorPlugin(codemirror, state, view, notebook), reportPlugin(notebook, widgets)];
      return () => ({ __esModule: true, default: plugins });
    },
  };
})();
