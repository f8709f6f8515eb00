/** The complete state of a view; it is stored in the page's address, so that a link restores it. */

import type { Payload, ViewName } from "./data";
import { parseRanges, ranges } from "./text";

export interface State {
  view: ViewName;
  stack: string;
  layer: number;
  /** The selected heads of the layer; views of one head use the first. */
  heads: number[];
  /** The query and the key token: the position of the first piece. */
  query: number | null;
  key: number | null;
  lock: boolean;
  /** Show the mean over all selected layers and heads, in the head view. */
  mean: boolean;
  words: boolean;
  special: "keep" | "hide" | "remove";
  threshold: number;
  find: string;
  /** One of two results, or the first minus the second. */
  show: "first" | "second" | "difference";
  /** Layers and heads of the grid and token views; null for all. */
  layers: number[] | null;
  only: number[] | null;
  colors: "shared" | "head";
  /** Direction of the weights in the token view: from the token, or to it. */
  by: "query" | "key";
  /** The token range of a zoomed map: start and end of the queries, start and end of the keys. */
  range: [number, number, number, number] | null;
  theme: "auto" | "light" | "dark";
  /** Large type, for a projector. */
  large: boolean;
  /** Color the text by what it contributed to a generated token, if the page has that; else by attention. */
  explain: boolean;
}
/** The selection passed to listeners; positions are those of word pieces. */
export type Selection = Pick<State, "view" | "stack" | "layer" | "heads" | "query" | "key" | "words">;

export const MOST_HEADS = 12;

export function startOf({ start, results }: Payload): State {
  return {
    view: start.view, stack: start.stack, layer: start.layer, heads: [start.head],
    query: null, key: null, lock: false, mean: false, words: start.words, special: "keep", threshold: 0,
    find: "", show: results.length > 1 ? "difference" : "first", layers: null, only: null, colors: "shared", by: "query",
    range: null, theme: "auto", large: false, explain: true,
  };
}

export function selection({ view, stack, layer, heads, query, key, words }: State): Selection {
  return { view, stack, layer, heads, query, key, words };
}

const CHOICES = new Map<keyof State, string[]>([
  ["view", ["grid", "head", "token", "steps"]],
  ["special", ["keep", "hide", "remove"]],
  ["show", ["first", "second", "difference"]],
  ["colors", ["shared", "head"]],
  ["by", ["query", "key"]],
  ["theme", ["auto", "light", "dark"]],
]);

/** Serialize the differences from the initial state: view=head&layer=5&head=3. */
export function write(state: State, start: State): string {
  const parts: string[] = [];
  for (const name of Object.keys(start) as (keyof State)[]) {
    const value = state[name];
    if (String(value) === String(start[name])) continue;
    parts.push(`${name}=${encodeURIComponent(written(name, value)).replace(/%2C/g, ",")}`);
  }
  return parts.join("&");
}

function written(name: string, value: State[keyof State]): string {
  if (typeof value === "boolean") return value ? "1" : "0";
  if (!Array.isArray(value)) return String(value ?? "");
  return name === "range" ? value.join(",") : ranges(value).replace(/–/g, "-").replace(/ /g, "");
}

/** Parse a fragment; missing or invalid values keep their defaults. */
export function read(fragment: string, payload: Payload): State {
  const state = startOf(payload);
  const given = new Map<string, string>();
  for (const part of fragment.replace(/^#/, "").split("&")) {
    const [name, value = ""] = part.split("=");
    try {
      given.set(name, decodeURIComponent(value));
    } catch {
      continue; // an invalid escape sequence
    }
  }
  return sound({ ...state, ...parse(given) }, payload);
}

function parse(given: Map<string, string>): Partial<State> {
  const any = Array.from({ length: 512 }, (_, n) => n);
  const whole = (text: string) => (/^\d{1,7}$/.test(text) ? Number(text) : null);
  const found: Record<string, unknown> = {};
  for (const [name, text] of given) {
    if (CHOICES.has(name as keyof State)) found[name] = text;
    else if (name === "stack" || name === "find") found[name] = text.slice(0, 200);
    else if (name === "lock" || name === "words" || name === "mean" || name === "large" || name === "explain") found[name] = text === "1";
    else if (name === "layer" && whole(text) !== null) found[name] = whole(text);
    else if (name === "query" || name === "key") found[name] = whole(text);
    else if (name === "threshold" && Number.isFinite(Number(text))) found[name] = Number(text);
    else if (name === "layers" || name === "only") found[name] = parseRanges(text, any);
    else if (name === "heads" && parseRanges(text, any)) found[name] = parseRanges(text, any);
    else if (name === "range") {
      const sides = text.split(",").map(whole);
      found[name] = sides.length === 4 && sides.every((side) => side !== null) ? sides : null;
    }
  }
  return found as Partial<State>;
}

/** Return a valid state: replace layers, heads or tokens that the results do not have. */
export function sound(wanted: State, payload: Payload): State {
  const { results, start } = payload;
  const begun = startOf(payload);
  const odd = [...CHOICES].filter(([name, choices]) => !choices.includes(String(wanted[name])));
  const state = { ...wanted, ...Object.fromEntries(odd.map(([name]) => [name, begun[name]])) };
  const stack =
    results[0].stacks.find(({ name }) => name === state.stack) ??
    results[0].stacks.find(({ name }) => name === start.stack) ??
    results[0].stacks[0];
  const layer = stack.layers.find(({ layer }) => layer === state.layer) ?? stack.layers[0];
  const heads = state.heads.filter((head) => layer.heads.includes(head)).slice(0, MOST_HEADS);
  const [m, n] = sizesOf(state, payload);
  const inside = (at: number | null, size: number) => (at !== null && at < size ? at : null);
  const some = (numbers: number[] | null, there: number[]) => {
    const found = numbers?.filter((number) => there.includes(number)) ?? [];
    return found.length && found.length < there.length ? found : null;
  };
  const all = [...new Set(stack.layers.flatMap(({ heads }) => heads))];
  const [query, key] = [inside(state.query, m), inside(state.key, n)];
  return {
    ...state,
    stack: stack.name,
    layer: layer.layer,
    heads: heads.length ? heads : [layer.heads[0]],
    query,
    key,
    lock: state.lock && (query !== null || key !== null),
    threshold: Math.min(1, Math.max(0, state.threshold)),
    show: results.length > 1 ? state.show : "first",
    layers: some(state.layers, stack.layers.map(({ layer }) => layer)),
    only: some(state.only, all),
    range: soundRange(state.range, m, n),
  };
}

/** Return the numbers of queries and keys of the text that is shown. */
export function sizesOf({ stack, show }: State, { results }: Payload): [number, number] {
  const { axes, stacks } = results[show === "second" ? 1 : 0] ?? results[0];
  const { queries, keys } = stacks.find(({ name }) => name === stack) ?? stacks[0];
  return [axes[queries].labels.length, axes[keys].labels.length];
}

function soundRange(range: State["range"], m: number, n: number): State["range"] {
  if (!range) return null;
  const side = (first: number, end: number, size: number) => {
    const start = Math.max(0, Math.min(Math.round(first), size - 1));
    return [start, Math.max(start + 1, Math.min(Math.round(end), size))];
  };
  const [a, b, c, d] = [...side(range[0], range[1], m), ...side(range[2], range[3], n)];
  return b - a === m && d - c === n ? null : [a, b, c, d];
}
