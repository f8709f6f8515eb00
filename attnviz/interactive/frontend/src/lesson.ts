/** The page of `attnviz view --live`: it runs the model in the browser, on the reader's own text, as it is or changed. */

import "./page.css";
import "./live.css";
import "./lesson.css";
import { DARK, LIGHT } from "./colors";
import { el } from "./dom";
import { UNCHANGED } from "./lesson/bert";
import { engine, type Engine } from "./lesson/engine";
import { example } from "./lesson/example";
import { LENSES } from "./lesson/lenses";
import { moves } from "./lesson/moves";
import { describe, small, sourceOf } from "./lesson/source";
import type { Data, Read } from "./lesson/worker";
import { mount, type View } from "./page";
import { read } from "./state";

const WAIT = 150; // milliseconds after a letter
const LARGE = "data-large"; // of the page: its type is large
const asks = () => new URLSearchParams(location.hash.slice(1)); // what the address asks for

async function lesson(): Promise<void> {
  const root = document.getElementById("attnviz")!;
  root.classList.add("attnviz", "live", "lesson");
  const night = matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = night.matches ? "dark" : "light";
  const theme = () => (root.dataset.theme === "dark" ? DARK : LIGHT);
  const data = window.attnvizData;
  if (!data) return root.replaceChildren(el("p", { role: "alert" }, "data.js is missing: copy the whole folder."));
  const said = el("p", { class: "said", role: "status", "aria-live": "polite" }, "Loading the model.");
  const own = sentence(root, data, said, theme);
  const large = el("input", { type: "checkbox", "data-control": "large-example", change: () => own.enlarge(large.checked) });
  const worked = example(theme, el("label", {}, large, el("span", {}, "Large type")));
  const panels = [{ title: "Your sentence", node: own.node }, { title: "Worked example", node: worked.node }];
  root.replaceChildren(bar(panels), ...panels.map(({ node }) => node));
  worked.draw();
  new MutationObserver(() => {
    worked.draw();
    own.theme();
  }).observe(root, { attributeFilter: ["data-theme"] });
  new MutationObserver(() => (large.checked = root.hasAttribute(LARGE))).observe(root, { attributeFilter: [LARGE] });
  root.toggleAttribute(LARGE, asks().get("large") === "1"); // also while the model is loaded
  night.addEventListener("change", () => (root.dataset.theme = night.matches ? "dark" : "light"));
  try {
    const started = await engine(data, (share) => {
      if (!said.classList.contains("wrong")) said.textContent = share < 1 ? `Loading the model: ${Math.round(100 * share)} %` : "Comparing two sentences with PyTorch.";
    });
    Object.assign(root, { lesson: { engine: started, read: own.reads } });
    await own.start(started);
  } catch (error) {
    said.classList.add("wrong");
    said.textContent = error instanceof Error ? error.message : String(error);
  }
}

/** The title with tabs, one for each panel. */
function bar(panels: { title: string; node: HTMLElement }[]): HTMLElement {
  const tabs = panels.map(({ title, node }, n) => {
    Object.assign(node, { id: `panel-${n}`, role: "tabpanel" }).setAttribute("aria-labelledby", `tab-${n}`);
    return el("button", { type: "button", role: "tab", id: `tab-${n}`, "aria-controls": `panel-${n}`, "data-control": `page-${n}`, click: () => open(n) }, title);
  });
  function open(chosen: number): void {
    panels.forEach(({ node }, n) => {
      node.hidden = n !== chosen;
      tabs[n].setAttribute("aria-selected", String(n === chosen));
      tabs[n].tabIndex = n === chosen ? 0 : -1;
    });
  }
  const list = el("div", { class: "pages", role: "tablist", "aria-label": "Page" }, ...tabs);
  list.addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: tabs.length - 1 }[key];
    if (step === undefined) return;
    const next = (tabs.indexOf(document.activeElement as HTMLButtonElement) + step) % tabs.length;
    open(next);
    tabs[next].focus();
  });
  const linked = () => open(Number(asks().get("page") === "example"));
  addEventListener("hashchange", linked);
  linked();
  return el("header", { class: "top" }, el("h1", {}, "attnviz"), list);
}

/** The reader's sentence: what can be moved, the view of the attention, and the lenses below it. */
function sentence(root: HTMLElement, data: Data, said: HTMLElement, theme: () => typeof LIGHT) {
  const text = el("textarea", { name: "text", rows: 1, autocomplete: "off", spellcheck: "false", "aria-describedby": "said", input: () => later(WAIT) });
  text.value = data.start.text;
  said.id = "said";
  const handles = moves(data.config, () => view?.state, () => later(0));
  const into = el("div", { class: "answer" });
  const glass = el("section", { class: "lenses", "aria-label": "Questions about this head" });
  const node = el("section", { "data-state": "asked" },
    el("form", { class: "ask" }, el("div", { class: "typed" }, el("label", {}, el("span", {}, "Sentence"), text)), ...handles.replace),
    handles.node, said, into, glass);
  node.querySelector("form")!.addEventListener("submit", (event) => event.preventDefault());
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    later(0);
  });

  let run: Engine | null = null;
  let view: View | null = null;
  let reads: Read[] = [];
  let timer = 0;
  let busy = false;
  let again = false;
  let chosen = 0;
  let pairs = false; // whether two results are shown
  let linked: () => Partial<View["state"]> = () => ({}); // what the address asks for
  let asked = 0;
  let drawn = 0;

  function say(line: string, kind: "" | "wrong" | "moved" = ""): void {
    said.textContent = line;
    said.className = `said ${kind}`.trim();
  }
  /** Say in the document whether all that was asked is drawn. */
  function settle(): void {
    node.dataset.state = timer || busy || asked > drawn ? "asked" : "drawn";
  }
  function later(wait: number): void {
    clearTimeout(timer);
    timer = setTimeout(() => void compute(), wait);
    settle();
  }
  /** Compute what is asked now; of what was asked meanwhile, only the latest. */
  async function compute(): Promise<void> {
    timer = 0;
    again ||= busy;
    if (!busy && run && !text.value.trim()) say(view ? "Type a sentence. Below is the one before." : "Type a sentence.");
    if (busy || !run || !text.value.trim()) return settle();
    busy = true;
    settle();
    into.setAttribute("aria-busy", "true");
    try {
      do {
        again = false;
        const plain = await run.read(text.value, UNCHANGED);
        const replaced = handles.replaced(plain);
        const changes = handles.changes(plain);
        const moved = replaced !== text.value || describe(changes) !== "";
        reads = moved ? [await run.read(replaced, replaced === text.value ? changes : handles.changes(await run.read(replaced, UNCHANGED))), plain] : [plain];
      } while (again);
      await show();
    } catch (error) {
      say(error instanceof Error ? error.message : String(error), "wrong");
    } finally {
      busy = false;
      into.setAttribute("aria-busy", "false");
      settle();
    }
    if (again) await compute();
  }
  /** Draw the new attention before the old one goes. */
  async function show(): Promise<void> {
    const { agreement } = run!;
    const old = view;
    const { stack, layer, heads, view: shown, words, mean, special, theme: colors, large, threshold, show: difference } = old?.state ?? ({} as View["state"]);
    const source = sourceOf(reads, agreement, data);
    linked = () => read(location.hash, source.payload);
    const isOther = reads.length > 1 && reads[0].text !== reads[1].text;
    const show = pairs ? difference : isOther ? "difference" : "first";
    const state = { ...(old ? { stack, layer, heads, view: shown, words, mean, special, theme: colors, large, threshold } : { ...linked(), large: root.hasAttribute(LARGE) }), ...(reads.length > 1 && { show }) };
    pairs = reads.length > 1;
    const inner = el("div", { class: "fresh" });
    into.append(inner);
    new MutationObserver(() => {
      root.dataset.theme = inner.dataset.theme;
      root.toggleAttribute(LARGE, inner.hasAttribute(LARGE));
    }).observe(inner, { attributeFilter: ["data-theme", LARGE] });
    view = mount(inner, source, { state, onselect: () => void look() });
    Object.assign(root, { attnviz: view });
    await view.ready;
    old?.destroy();
    into.replaceChildren(inner);
    inner.classList.remove("fresh");
    const { verdict } = source.payload.results[0];
    const moved = describe(reads[0].changes);
    if (verdict === "failed") say("✗ This page computes other numbers than PyTorch.", "wrong");
    else if (moved) say(`≠ Changed model: ${moved}.`, "moved");
    else say(`✓ Computed here in ${Math.round(reads[0].milliseconds)} ms, checked on two sentences: weights within ${small(agreement.weights)} of PyTorch's.`);
    handles.follow(reads[reads.length - 1], view.state);
    await look();
  }
  /** Draw the chosen lens for the chosen head. */
  async function look(): Promise<void> {
    if (!view || !reads.length) return;
    const turn = ++asked;
    settle();
    const { layer, heads, query } = view.state;
    handles.follow(reads[reads.length - 1], view.state);
    const base = reads[reads.length - 1];
    const nodes = await LENSES[chosen].draw({ base, data, layer, head: heads[0], query: Math.min(query ?? base.axis.word, base.ids.length - 1), scale: reads[0].changes.scale, theme: theme(), engine: run! });
    if (turn !== asked) return;
    const tab = (n: number) => el("button", { type: "button", "data-control": `lens-${n}`, title: LENSES[n].about, "aria-pressed": String(n === chosen), click: () => {
      chosen = n;
      void look().then(() => glass.querySelector<HTMLElement>(`[data-control=lens-${n}]`)?.focus());
    } }, LENSES[n].name);
    glass.replaceChildren(el("div", { class: "bar" }, el("div", { class: "tabs", role: "group", "aria-label": "Question" }, ...LENSES.map((_, n) => tab(n))), el("h2", {}, LENSES[chosen].about)), ...nodes);
    drawn = turn;
    settle();
  }
  return {
    node,
    theme: () => void look(),
    reads: () => reads,
    enlarge(large: boolean): void {
      root.toggleAttribute(LARGE, large);
      view?.show({ large });
    },
    async start(started: Engine): Promise<void> {
      run = started;
      await compute();
      addEventListener("hashchange", () => view?.show(linked()));
    },
  };
}

void lesson();
