/** The controls above a view: native buttons, lists and fields that reflect the state. */

import type { Layer, Payload, Stack } from "./data";
import { el } from "./dom";
import { MOST_HEADS, type State } from "./state";
import { literal, parseRanges, ranges } from "./text";

type Change = (changed: Partial<State>) => void;
interface Control {
  node: HTMLElement;
  follow(state: State): void;
}
export interface Controls {
  node: HTMLElement;
  follow(state: State): void;
}
/** Page actions other than state changes. */
export interface Actions {
  change: Change;
  next(): void;
  save(kind: "svg" | "png"): void;
  /** Show a line about something that was typed. */
  tell(line: string): void;
}

const VIEWS = { grid: "Grid", head: "Head", token: "Token", steps: "Steps" } as const;
const MEAN = "mean"; // instead of the number of a layer
const CHIPS = 32; // maximum number of heads with one button each
const HELP = [
  ["1 – 4", "grid, head, token, steps"],
  ["← ↑ → ↓", "move over the view"],
  ["Enter", "open a head, lock a token"],
  ["Esc", "unlock"],
  ["+ − 0", "zoom a map, show all of it"],
  ["/", "search for a token"],
];

export function controls(payload: Payload, explains: boolean, theme: () => string[], actions: Actions): Controls {
  const { change } = actions;
  const two = payload.results.length > 1;
  const stacks = payload.results[0].stacks;
  const stack = (state: State) => stacks.find(({ name }) => name === state.stack)!;
  const layer = (state: State) => stack(state).layers.find((each) => each.layer === state.layer)!;
  const inGrid = ({ view }: State) => view === "grid" || view === "token";
  const ofSome = (state: State) => inGrid(state) || (state.view === "head" && state.mean);
  const [first, second] = payload.results.map(({ name }) => name);

  const main: Control[] = [
    tabs(change),
    ...(two ? [choice("show", "Show", [["first", `1: ${first}`], ["second", `2: ${second}`], ["difference", "1 − 2"]], change)] : []),
    ...(stacks.length > 1 ? [choice("stack", "Stack", stacks.map(({ name, title }) => [name, title]), change)] : []),
    only(layers(change, stack), (state) => !inGrid(state)),
    only(heads(actions, layer, theme), (state) => !ofSome(state)),
    only(some("layers", "Layers", actions, (state) => stack(state).layers.map(({ layer }) => layer)), ofSome),
    only(some("only", "Heads", actions, (state) => [...new Set(stack(state).layers.flatMap(({ heads }) => heads))]), ofSome),
    only(averaging(change), inGrid),
    ...(explains ? [pointing(change)] : []),
  ];
  const more: Control[] = [
    only(choice("by", "Weights", [["query", "outgoing"], ["key", "incoming"]], change), ({ view }) => view === "token"),
    only(words(change), ({ view }) => view !== "steps"),
    only(choice("special", "Special tokens", [["keep", "keep"], ["hide", "hide"], ["remove", "remove"]], change), ({ view }) => view !== "steps"),
    only(threshold(change), ({ view }) => view !== "steps"),
    only(choice("colors", "Colors", [["shared", "shared"], ["head", "per head"]], change), ({ view }) => view === "grid"),
    search(change, actions.next),
    choice("theme", "Theme", [["auto", "auto"], ["light", "light"], ["dark", "dark"]], change),
    largeType(change),
    buttons(actions),
  ];
  const all = [...main, ...more];
  const row = (name: string, label: string, some: Control[]) =>
    el("div", { class: name, role: "group", "aria-label": label }, ...some.map(({ node }) => node));
  // A narrow window shows the tabs alone until the other controls are unfolded.
  const fold = el("button", { type: "button", class: "fold", "data-control": "fold", "aria-expanded": "false", click: () => {
    fold.setAttribute("aria-expanded", String(node.classList.toggle("open")));
  } }, "Settings");
  const node = el("div", { class: "bars" }, row("bar", "What is shown", main), fold, row("bar more", "How it is shown", more));
  return {
    node,
    follow: (state) => all.forEach((control) => control.follow(state)),
  };
}

/** Show a control only for states that use it. */
function only(control: Control, isUsed: (state: State) => boolean): Control {
  return {
    node: control.node,
    follow: (state) => {
      control.node.hidden = !isUsed(state);
      if (isUsed(state)) control.follow(state);
    },
  };
}

function tabs(change: Change): Control {
  const made = Object.entries(VIEWS).map(([view, name], n) =>
    el("button", { type: "button", "data-control": `view-${view}`, title: `${name} (${n + 1})`, click: () => change({ view: view as State["view"] }) }, name),
  );
  return {
    node: el("div", { class: "tabs", role: "group", "aria-label": "View" }, ...made),
    follow: ({ view }) => made.forEach((button, n) => button.setAttribute("aria-pressed", String(Object.keys(VIEWS)[n] === view))),
  };
}

function field(name: string, input: HTMLElement, ...after: HTMLElement[]): HTMLElement {
  return el("label", {}, el("span", {}, name), input, ...after);
}

function choice(name: keyof State, label: string, choices: string[][], change: Change): Control {
  const options = choices.map(([value, text]) => el("option", { value }, text));
  const select = el("select", { "data-control": name, change: () => change({ [name]: select.value }) }, ...options);
  return { node: field(label, select), follow: (state) => (select.value = String(state[name])) };
}

function layers(change: Change, stack: (state: State) => Stack): Control {
  const select = el("select", { "data-control": "layer", change: () => change(select.value === MEAN ? { mean: true } : { layer: Number(select.value), mean: false }) });
  const mean = el("option", { value: MEAN }, "mean of all");
  let shown: Stack | null = null;
  return {
    node: field("Layer", select),
    follow: (state) => {
      if (shown !== stack(state)) {
        shown = stack(state);
        select.replaceChildren(...shown.layers.map(({ layer }) => el("option", { value: layer }, String(layer))), mean);
      }
      mean.hidden = state.view === "steps";
      select.value = state.mean && state.view !== "steps" ? MEAN : String(state.layer);
    },
  };
}

/** One toggle button per head; a text field if there are too many heads. */
function heads({ change, tell }: Actions, layer: (state: State) => Layer, theme: () => string[]): Control {
  const box = el("span", { class: "chips" });
  let numbers = "";
  let now: State;
  const typed = ranged("heads", "Heads", () => layer(now).heads, tell, (found) => change({ heads: found ?? now.heads }));
  const toggle = (head: number, alone: boolean) => {
    const on = now.heads.includes(head);
    const rest = now.heads.filter((each) => each !== head);
    const next = on ? rest : [...now.heads, head].sort((a, b) => a - b);
    change({ heads: alone || now.view === "steps" || !next.length ? [head] : next.slice(-MOST_HEADS) });
  };
  return {
    node: el("div", { class: "field", role: "group", "aria-label": "Heads" }, el("span", {}, "Heads"), box),
    follow: (state) => {
      now = state;
      const there = layer(state).heads;
      if (numbers !== String(there)) {
        numbers = String(there);
        const chip = (head: number) =>
          el("button", {
            type: "button", class: "chip", "data-control": `head-${head}`,
            title: "click to add or remove, double-click to select only this head",
            click: () => toggle(head, false), dblclick: () => toggle(head, true),
          }, String(head));
        box.replaceChildren(...(there.length > CHIPS ? [typed] : there.map(chip)));
      }
      typed.value = ranges(state.heads);
      there.forEach((head, n) => {
        if (there.length > CHIPS) return;
        const button = box.children[n] as HTMLElement;
        const at = (state.view === "steps" ? state.heads.slice(0, 1) : state.heads).indexOf(head);
        button.setAttribute("aria-pressed", String(at >= 0));
        button.style.borderBottomColor = at >= 0 ? theme()[at % theme().length] : "";
      });
    },
  };
}

/** A field for numbers such as 0-3, 7. What names no number is answered, and nothing changes. */
function ranged(name: string, what: string, there: () => number[], tell: Actions["tell"], change: (found: number[] | null) => void): HTMLInputElement {
  const input = el("input", { type: "text", size: 7, "data-control": name, placeholder: "all", title: "numbers such as 0-3, 7", change: () => {
    const odd = input.value.split(",").map((part) => part.trim()).filter((part) => part && !parseRanges(part, there()));
    input.setAttribute("aria-invalid", String(odd.length > 0));
    if (odd.length) tell(`${what}: “${literal(odd.join(", "))}” names none. Type numbers from ${ranges(there())}, such as ${there()[0]} or ${there()[0]}-${there()[Math.min(2, there().length - 1)]}.`);
    else change(parseRanges(input.value, there()));
  } });
  return input;
}

function some(name: "layers" | "only", label: string, { change, tell }: Actions, there: (state: State) => number[]): Control {
  let now: State;
  const input = ranged(name, label, () => there(now), tell, (found) => change({ [name]: found }));
  return {
    node: field(label, input),
    follow: (state) => {
      now = state;
      input.value = ranges(state[name] ?? []);
      input.removeAttribute("aria-invalid");
    },
  };
}

function averaging(change: Change): Control {
  const button = el("button", { type: "button", "data-control": "mean", title: "Show the mean of these heads as one map", click: () => change({ view: "head", mean: true }) }, "Mean of these");
  return { node: button, follow: () => {} };
}

function largeType(change: Change): Control {
  const box = el("input", { type: "checkbox", "data-control": "large", change: () => change({ large: box.checked }) });
  return { node: field("Large type", box), follow: ({ large }) => (box.checked = large) };
}

function words(change: Change): Control {
  const select = el("select", { "data-control": "words", change: () => change({ words: select.value === "words" }) },
    el("option", { value: "words" }, "words"), el("option", { value: "pieces" }, "pieces"));
  return { node: field("Tokens", select), follow: (state) => (select.value = state.words ? "words" : "pieces") };
}

/** What pointing at a generated token shows. */
function pointing(change: Change): Control {
  const select = el("select", { "data-control": "explain", change: () => change({ explain: select.value === "contributions" }) },
    el("option", { value: "contributions" }, "contributions"), el("option", { value: "attention" }, "attention"));
  return { node: field("Generated tokens", select), follow: (state) => (select.value = state.explain ? "contributions" : "attention") };
}

function threshold(change: Change): Control {
  let now = 0;
  // The slider is quadratic, because most weights are small.
  const slider = el("input", { type: "range", min: 0, max: 1, step: 0.01, "data-control": "threshold-slider", "aria-label": "Hide weights below", input: () => change({ threshold: Number((Number(slider.value) ** 2).toPrecision(2)) }) });
  const typed = el("input", { type: "number", min: 0, max: 1, step: "any", "data-control": "threshold", "aria-label": "Hide weights below, as a number", change: () => {
    change({ threshold: Number(typed.value) || 0 });
    typed.value = String(now); // the accepted value
  } });
  return {
    node: el("div", { class: "field" }, el("span", {}, "Hide below"), slider, typed),
    follow: ({ threshold }) => {
      now = threshold;
      if (Math.abs(Number(slider.value) ** 2 - threshold) > 0.006 * Math.max(threshold, 0.01)) slider.value = String(Math.sqrt(threshold));
      if (document.activeElement !== typed) typed.value = String(threshold);
    },
  };
}

function search(change: Change, next: () => void): Control {
  const input = el("input", {
    type: "search", size: 9, "data-control": "find", placeholder: "token", title: "Enter goes to the next match",
    input: () => change({ find: input.value }),
    keydown: (event) => (event as KeyboardEvent).key === "Enter" && next(),
  });
  return {
    node: field("Find", input),
    follow: ({ find }) => {
      if (input.value !== find) input.value = find;
    },
  };
}

function buttons({ save }: Actions): Control {
  const keys = el("dl", {}, ...HELP.flatMap(([key, what]) => [el("dt", {}, key), el("dd", {}, what)]));
  const help = el("details", { class: "help" }, el("summary", { "aria-label": "Keyboard help", "data-control": "help" }, "?"), keys);
  help.addEventListener("focusout", () => (help.open = false));
  const button = (kind: "svg" | "png") =>
    el("button", { type: "button", "data-control": `save-${kind}`, title: `Save this view as ${kind.toUpperCase()}`, click: () => save(kind) }, kind.toUpperCase());
  return { node: el("div", { class: "end" }, button("svg"), button("png"), help), follow: () => {} };
}
