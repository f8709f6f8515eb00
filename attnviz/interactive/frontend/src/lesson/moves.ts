/** What a reader can move: the scale, the mask, the positions, one word, and heads. */

import { el } from "../dom";
import type { State } from "../state";
import { literal } from "../text";
import { UNCHANGED, type Changes, type Config } from "./bert";
import type { Read } from "./worker";

const NEAR = 2; // tokens away
const MASKS: [name: string, label: string][] = [["none", "none"], ["later", "later words"], ["far", `more than ${NEAR} away`], ["special", "[CLS] and [SEP]"]];
const POSITIONS: [name: string, label: string][] = [["kept", "as they are"], ["shuffled", "shuffled"], ["none", "left out"]];

export interface Moves {
  node: HTMLElement;
  /** The fields for one word. */
  replace: HTMLElement[];
  changes(read: Read): Changes;
  /** The text with the other word. */
  replaced(read: Read): string;
  follow(read: Read, state: State): void;
}

export function moves(config: Config, state: () => State | undefined, changed: () => void): Moves {
  let off: [number, number][] = [];
  let seed = 1;
  let words = "";
  const select = (control: string, choices: [string, string][]) =>
    el("select", { "data-control": control, change: changed }, ...choices.map(([value, label]) => el("option", { value }, label)));
  const slider = el("input", { type: "range", min: -3, max: 3, step: 0.05, value: 0, "data-control": "scale", "aria-label": "Scale of the scores, as a power of 2", input: () => {
    write();
    changed();
  } });
  const scale = () => 2 ** slider.valueAsNumber;
  const factor = el("output", { class: "factor" });
  const none = Math.sqrt(config.hidden_size / config.num_attention_heads);
  const unscaled = el("button", { type: "button", "data-control": "unscaled", title: "Do not divide by √dₖ", click: () => set(Math.log2(none)) }, "no scale");
  const [mask, positions] = [select("mask", MASKS), select("positions", POSITIONS)];
  const shuffle = el("button", { type: "button", "data-control": "shuffle", click: () => {
    seed++;
    positions.value = "shuffled";
    changed();
  } }, "Shuffle");
  const head = el("button", { type: "button", "data-control": "off", click: () => {
    const { layer, heads } = state()!;
    const isOff = off.some((one) => String(one) === String([layer, heads[0]]));
    off = isOff ? off.filter((one) => String(one) !== String([layer, heads[0]])) : [...off, [layer, heads[0]]];
    changed();
  } }, "Head off");
  const chips = el("span", { class: "chips" });
  const word = el("select", { "data-control": "word", change: () => {
    other.disabled = word.value === "";
    if (!other.disabled) other.focus();
    changed();
  } });
  const other = el("input", { type: "text", "data-control": "other", "aria-label": "The other word", autocomplete: "off", spellcheck: "false", placeholder: "another word", disabled: true, input: changed });
  const reset = el("button", { type: "button", "data-control": "reset", click: () => {
    [off, mask.value, positions.value, word.value, other.value, other.disabled] = [[], "none", "kept", "", "", true];
    set(0);
  } }, "Reset");
  const field = (name: string, ...nodes: HTMLElement[]) => el("div", { class: "field", role: "group", "aria-label": name }, el("span", {}, name), ...nodes);
  const node = el("div", { class: "bar moves", role: "group", "aria-label": "Change the model" },
    field("Scale", slider, factor, unscaled), field("Hide keys", mask), field("Positions", positions, shuffle), field("Heads", head, chips), reset);

  function set(power: number): void {
    slider.value = String(power);
    write();
    changed();
  }
  function write(): void {
    const value = Math.abs(scale() - none) < 0.02 * none ? none : scale();
    factor.textContent = value === 1 ? "1 / √dₖ" : value === none ? "1 (none)" : `${Number(value.toPrecision(2))} / √dₖ`;
  }
  write();
  return {
    node,
    replace: [el("div", { class: "typed other" }, el("label", {}, el("span", {}, "Replace"), word), other)],
    changes({ ids, axis }) {
      const hidden = mask.value === "special" ? axis.special : [];
      const [before, after] = mask.value === "far" ? [NEAR, NEAR] : [null, mask.value === "later" ? 0 : null];
      const value = Math.abs(scale() - none) < 0.02 * none ? none : scale();
      return {
        ...UNCHANGED, scale: value, mask: { before, after, hidden }, off,
        positions: positions.value === "shuffled" ? shuffled(ids.length, seed) : (positions.value as "kept" | "none"),
      };
    },
    replaced({ text, spans }) {
      if (word.value === "" || !other.value.trim()) return text;
      const [start, end] = spans[Number(word.value)] ?? [0, 0];
      return end ? text.slice(0, start) + other.value.trim() + text.slice(end) : text;
    },
    follow({ text, spans }, { layer, heads }) {
      const isOff = off.some((one) => String(one) === String([layer, heads[0]]));
      head.textContent = `Switch ${layer}.${heads[0]} ${isOff ? "on" : "off"}`;
      chips.replaceChildren(...off.map(([layer, number]) => el("button", { type: "button", class: "chip", "aria-label": `Switch head ${layer}.${number} on`, click: () => {
        off = off.filter((one) => String(one) !== String([layer, number]));
        changed();
      } }, `${layer}.${number} ×`)));
      reset.disabled = !off.length && scale() === 1 && mask.value === "none" && positions.value === "kept" && word.value === "";
      const labels = spans.map((span) => text.slice(...span));
      if (words === labels.join("\n")) return;
      words = labels.join("\n");
      const kept = labels.length > Number(word.value) ? word.value : "";
      word.replaceChildren(el("option", { value: "" }, "no word"), ...labels.map((label, n) => el("option", { value: n }, literal(label))));
      word.value = kept;
      other.disabled = word.value === "";
    },
  };
}

/** Return positions of which those between the first and the last are in another order, the same for a seed. */
function shuffled(count: number, seed: number): number[] {
  const order = Array.from({ length: count }, (_, n) => n);
  let state = seed * 2654435761;
  for (let n = count - 2; n > 1; n--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const other = 1 + Math.floor((state / 2 ** 32) * n);
    [order[n], order[other]] = [order[other], order[n]];
  }
  return order;
}
