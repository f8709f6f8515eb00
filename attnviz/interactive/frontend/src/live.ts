/** The page of `attnviz serve`: it sends forms to the server and shows the answers. */

import "./page.css";
import "./live.css";
import type { Explanation, Source } from "./data";
import { download, el } from "./dom";
import { mount, type View } from "./page";
import { senses, type Senses } from "./senses";
import { shift, type Shift } from "./shift";

interface About { models: string[]; generating: string[]; words: string[]; max_tokens: number; max_generated: number }
interface Turn { ahead: number; doing: string; done: number }
interface Figure { threads?: Senses; moved?: Shift; svg: string; verdict: string; summary: string; warnings: string[] }
type Asked = Record<string, string>;

interface Field {
  label: string; value?: string; hint?: string; optional?: boolean; words?: string[]; lines?: number;
  /** Of a number: the largest. */
  most?: number;
  /** The models that have this field; by default all. */
  models?: string[];
}
/** A request form, and how its answer is shown. */
interface Page {
  path: string;
  title: string;
  /** For each field: its label, initial value and purpose. */
  fields: Record<string, Field>;
  show(answer: unknown, into: HTMLElement, asked: Asked): void;
}

const POLL = 400; // milliseconds between queue requests
const KEPT = "attnviz"; // where the browser keeps what was typed, until the tab is closed

async function live(): Promise<void> {
  const root = document.getElementById("attnviz")!;
  root.classList.add("attnviz", "live");
  const night = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => (root.dataset.theme = night.matches ? "dark" : "light");
  night.addEventListener("change", follow);
  follow();
  try {
    const answer = await fetch("/about");
    if (!answer.ok) throw new Error(await answer.text());
    build(root, (await answer.json()) as About);
  } catch (error) {
    root.replaceChildren(el("p", { role: "alert" }, told(error)));
  }
}

function build(root: HTMLElement, about: About): void {
  const model = el("select", { "data-control": "model" }, ...about.models.map((name) => el("option", {}, name)));
  const kept = recall();
  const panels = pages(root, about).map((page) => panel(page, () => model.value, kept));
  if (about.models.includes(kept.model)) model.value = kept.model;
  model.addEventListener("change", () => keep({ model: model.value }));
  const tabs = panels.map(({ title }, n) =>
    el("button", { type: "button", role: "tab", id: `tab-${n}`, "aria-controls": `panel-${n}`, "data-control": `page-${n}`, click: () => open(n) }, title),
  );
  panels.forEach(({ node }, n) => {
    node.id = `panel-${n}`;
    node.setAttribute("aria-labelledby", `tab-${n}`);
  });
  function open(chosen: number): void {
    keep({ open: String(chosen) });
    panels.forEach(({ node }, n) => {
      node.hidden = n !== chosen;
      tabs[n].setAttribute("aria-selected", String(n === chosen));
      tabs[n].tabIndex = n === chosen ? 0 : -1;
    });
  }
  const bar = el("div", { class: "pages", role: "tablist", "aria-label": "Analysis" }, ...tabs);
  bar.addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: tabs.length - 1 }[key];
    if (step === undefined) return;
    const next = (tabs.indexOf(document.activeElement as HTMLButtonElement) + step) % tabs.length;
    open(next);
    tabs[next].focus();
  });
  const top = el("header", { class: "top" }, el("h1", {}, "attnviz"), bar, el("label", { class: "model" }, el("span", {}, "Model"), model));
  root.replaceChildren(top, ...panels.map(({ node }) => node));
  const first = panels[Number(kept.open)] ? Number(kept.open) : 0;
  open(first);
  panels[first].node.querySelector<HTMLInputElement | HTMLTextAreaElement>("textarea, input")?.select();
  panels[first].submit();
}

/** Return what was typed before the page was loaded again. */
function recall(): Asked {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") as Asked;
  } catch {
    return {}; // no storage in this browser
  }
}
function keep(changed: Asked): void {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify({ ...recall(), ...changed }));
  } catch {
    return;
  }
}

function pages(root: HTMLElement, { words, max_tokens, generating, max_generated }: About): Page[] {
  const most = `Up to ${max_tokens.toLocaleString("en")} tokens.`;
  return [
    {
      path: "/attention", title: "Attention", show: attention(root),
      fields: {
        text: { label: "Sentence", value: "the train left the station on time", hint: `${most} Press Enter to show it.` },
        compare: { label: "Compare with", hint: "A second sentence: the page shows the difference.", optional: true },
        ...(generating.length && { generate: { label: "Generate", hint: "Tokens. Point at one to see why.", optional: true, most: max_generated, models: generating } }),
      },
    },
    {
      path: "/senses", title: "Senses", show: picture,
      fields: {
        word: { label: "Word", value: words[0], hint: `Bundled sentences: ${words.join(", ")}.`, words },
        sentences: { label: "Your own sentences", hint: "One on each line after its sense, as in “river: We sat on the bank.” Two or more for each sense.", optional: true, lines: 3 },
      },
    },
    {
      path: "/shift", title: "Shift", show: picture,
      fields: {
        text: { label: "Sentence", value: "We sat on the bank of the river.", hint: `{mud|cash} compares two sentences. ${most}` },
        word: { label: "Word", value: "bank", hint: "the#2 is the second “the”." },
        toward: {
          label: "Between two regions", optional: true, lines: 2,
          hint: "Sentences with the word, one on each line after the name of its region, as in “money: She opened an account at the bank.”",
        },
      },
    },
  ];
}

/** A form with its progress message, and the latest answer below it. */
function panel(page: Page, model: () => string, kept: Asked): { title: string; node: HTMLElement; submit(): void } {
  const inputs = Object.entries(page.fields).map(([name, field]) => {
    const more = { name, "aria-describedby": `${page.path}-${name}`, autocomplete: "off", spellcheck: "false", required: !field.optional };
    const input = field.most ? el("input", { ...more, type: "number", min: 2, max: field.most }) : name === "word" ? el("input", field.words ? { ...more, list: `${page.path}-words` } : more) : el("textarea", { ...more, rows: field.lines ?? 1 });
    input.value = kept[`${page.path} ${name}`] ?? field.value ?? "";
    input.addEventListener("input", () => keep({ [`${page.path} ${name}`]: input.value }));
    return { name, field, input };
  });
  const said = el("p", { class: "said", role: "status", "aria-live": "polite" });
  const into = el("div", { class: "answer" });
  const show = el("button", { type: "submit", class: "first", "data-control": "ask" }, "Show");
  const cancel = el("button", { type: "button", hidden: true, "data-control": "cancel", click: () => asking?.abort() }, "Cancel");
  const form = el(
    "form", { class: "ask", novalidate: true },
    ...inputs.map(({ name, field, input }) =>
      el("div", { class: "typed" },
        el("label", {}, el("span", {}, field.label), input),
        el("small", { id: `${page.path}-${name}` }, field.hint ?? ""),
        ...(field.words ? [el("datalist", { id: `${page.path}-words` }, ...field.words.map((value) => el("option", { value })))] : []))),
    el("div", { class: "press" }, show, cancel),
  );
  let asking: AbortController | null = null;

  function say(line: string, wrong = false): void {
    if (said.textContent !== line) said.textContent = line;
    said.classList.toggle("wrong", wrong);
  }
  async function submit(): Promise<void> {
    asking?.abort();
    const mine = (asking = new AbortController());
    const asked = Object.fromEntries([["model", model()], ...inputs.map(({ name, field, input }) => [name, field.models?.includes(model()) === false ? "" : input.value])]);
    const tell = (line: string, wrong = false) => mine === asking && say(line, wrong);
    cancel.hidden = false;
    into.setAttribute("aria-busy", "true");
    tell("Request sent.");
    try {
      const answer = await ask(page.path, asked, mine.signal, tell);
      if (mine !== asking) return;
      page.show(answer, into, asked);
      say((answer as { warnings: string[] }).warnings.join(" "));
    } catch (error) {
      if (mine === asking && !mine.signal.aborted) into.replaceChildren(); // it answers another question
      tell(mine.signal.aborted ? "Canceled." : told(error), !mine.signal.aborted);
    } finally {
      if (mine === asking) {
        asking = null;
        cancel.hidden = true;
        into.setAttribute("aria-busy", "false");
      }
    }
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void submit();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target instanceof HTMLTextAreaElement && event.target.rows === 1) {
      event.preventDefault();
      form.requestSubmit();
    }
    if (event.key === "Escape") asking?.abort();
  });
  return { title: page.title, node: el("section", { role: "tabpanel" }, form, said, into), submit: () => void submit() };
}

/** Send a request; meanwhile report the queue position and the progress. */
async function ask(path: string, asked: Asked, signal: AbortSignal, say: (line: string) => void): Promise<unknown> {
  // crypto.randomUUID requires a secure context, unlike plain HTTP from another machine
  const ticket = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  let pending = true;
  const timer = setInterval(async () => {
    const turn = await fetch(`/turn/${ticket}`, { signal }).then((found) => found.json() as Promise<Turn | null>, () => null);
    if (turn && pending) say(place(turn));
  }, POLL);
  try {
    const answer = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...asked, ticket }), signal,
    });
    if (!answer.ok) throw new Error(await answer.text());
    return await answer.json();
  } finally {
    pending = false;
    clearInterval(timer);
  }
}

function place({ ahead, doing, done }: Turn): string {
  if (ahead) return `${ahead} ahead of you.`;
  return doing ? `${doing[0].toUpperCase()}${doing.slice(1)}: ${Math.round(100 * done)} %` : "Running the model.";
}

function told(error: unknown): string {
  if (error instanceof TypeError) return "The server does not respond. Check that it is still running in its terminal.";
  return error instanceof Error ? error.message : String(error);
}

/** Show attention like `attnviz view`; the selection carries over to the next text. */
function attention(root: HTMLElement): Page["show"] {
  let view: View | null = null;
  let read = "";
  return (answer, into, { model, text, generate }) => {
    const { payload, blocks } = answer as Source;
    const { stack, layer, heads, query, key, lock, range, find, show, layers, only, ...kept } = view?.state ?? ({} as Partial<View["state"]>);
    const state = !view ? {} : model === read ? { ...kept, stack, layer, heads, layers, only } : kept;
    read = model;
    view?.destroy();
    const inner = el("div");
    new MutationObserver(() => (root.dataset.theme = inner.dataset.theme)).observe(inner, { attributeFilter: ["data-theme"] });
    into.replaceChildren(inner);
    const explain = (position: number, signal: AbortSignal, say: (line: string) => void) =>
      ask("/explain", { model, text, position: String(position) }, signal, say) as Promise<Explanation>;
    view = mount(inner, { payload, blocks, ...(generate && { explain }) }, { state, fill: true });
  };
}

/** Draw the senses or the shift of a word; its figure can be saved. */
function picture(answer: unknown, into: HTMLElement, { word }: Asked): void {
  const { svg, verdict, summary, threads, moved } = answer as Figure;
  const name = `attnviz-${word.replace(/[^\p{L}\p{N}]+/gu, "-")}.svg`;
  const save = () => download(name, new Blob([svg], { type: "image/svg+xml" }));
  const notes = (threads ?? moved)!.notes.join("; ");
  into.replaceChildren(
    threads ? senses(threads) : shift(moved!),
    el("div", { class: "proven" },
      ...(notes ? [el("p", { class: "notes" }, `${notes[0].toUpperCase()}${notes.slice(1)}.`)] : []),
      el("p", { class: "verdict", "data-verdict": verdict }, `${verdict === "verified" ? "✓" : "✗"} ${summary}`),
      el("button", { type: "button", "data-control": "save-figure", title: "Save the figure for print, as SVG", click: save }, "SVG")),
  );
}

void live();
