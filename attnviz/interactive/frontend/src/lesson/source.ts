/** From texts that the page has computed to the data that its views draw. */

import type { Aligned, Codes, Result, Source } from "../data";
import { headOf, ruleOf, UNCHANGED, type Changes } from "./bert";
import type { Agreement, Data, Read } from "./worker";

/** How far this page may be from PyTorch with the same numbers: 10 × what is measured, and far below what 1 % of the scale changes. */
const TOLERANCE = 2e-5;
const STACK = "encoder";

export function sourceOf(reads: Read[], agreement: Agreement, data: Data): Source {
  const blocks: Uint8Array[] = [];
  const add = (numbers: Float32Array, rows: number): Codes => {
    const bytes = new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength);
    return { block: blocks.push(bytes) - 1, shape: [rows, numbers.length / rows], kind: "float", levels: 0, scale: 0 };
  };
  const { num_attention_heads: heads, hidden_size: size } = data.config;
  const width = size / heads;
  const changed = reads.map(({ changes }) => describe(changes));
  const results = reads.map((read, n): Result => {
    const tokens = read.ids.length;
    const numbers = Array.from({ length: heads }, (_, head) => head);
    const rule = ruleOf(read.changes, width);
    const layers = read.layers.map(({ query, key, value, output }, layer) => {
      const of = (all: Float32Array, head: number) => add(headOf(all, head, width, size), tokens);
      const exact = numbers.map((head) => ({ query: of(query, head), key: of(key, head), value: of(value, head), rule, error: agreement.exact }));
      return { layer, heads: numbers, pooled: null, exact, output: add(output, tokens) };
    });
    const name = reads.length > 1 && reads[0].text === reads[1].text ? (changed[n] ? "changed model" : "model as it is") : read.text;
    return {
      name, model: data.model, source: `“${read.text}”, computed in this page${changed[n] ? ` by a changed model: ${changed[n]}` : ""}`,
      ...verdictOf(read, agreement), image: null, waveform: null, notes: [], axes: [read.axis],
      stacks: [{ name: STACK, title: "Encoder", signed: false, queries: 0, keys: 0, layers }],
    };
  });
  const { layer, head, view, words } = data.start;
  const start = { stack: STACK, layer, head, view, words } as Source["payload"]["start"];
  const aligned = reads.length > 1 ? alignedOf(reads) : null;
  return { payload: { results, start, notes: notesOf(agreement), scale: data.scale, ...(aligned && { aligned: { [STACK]: aligned } }) }, blocks };
}

function isTrusted({ weights, output, misread }: Agreement): boolean {
  return weights <= TOLERANCE && output <= 10 * TOLERANCE && !misread.length;
}

function verdictOf({ changes, formula }: Read, agreement: Agreement): Pick<Result, "verdict" | "summary"> {
  const { weights, exact, misread } = agreement;
  if (misread.length) return { verdict: "failed", summary: `not verified: this browser splits “${misread[0]}” into other tokens than the tokenizer. Use another browser.` };
  if (!isTrusted(agreement)) return { verdict: "failed", summary: `not verified: on two sentences the weights of this page differ from PyTorch's by ${small(weights)}, and more than ${small(TOLERANCE)} is wrong. Use another browser.` };
  const follows = `Of this text, rows sum to 1 within ${small(formula.sums)}, and W V equals the mixed values within ${small(formula.mixed)}.`;
  if (Math.max(formula.sums, formula.mixed, formula.weights) > TOLERANCE) return { verdict: "failed", summary: `not verified: the weights of this text do not follow from the formula. ${follows}` };
  const checked = `Checked on two sentences: weights are within ${small(weights)} of PyTorch's with the same rounded numbers, and within ${small(exact)} of the model's own.`;
  const how = describe(changes);
  if (how) return { verdict: "changed", summary: `Changed model: ${how}. No model has these weights. ${follows} Without the changes: ${checked}` };
  return { verdict: "computed", summary: `Computed here, checked on two sentences. ${checked} ${follows}` };
}

/** Return what is changed, in words; "" if nothing is. */
export function describe({ scale, mask, positions, off }: Changes): string {
  const hidden = mask.hidden.length ? `${mask.hidden.length} key${mask.hidden.length > 1 ? "s" : ""} hidden` : "";
  const parts = [
    scale === UNCHANGED.scale ? "" : `scores × ${Number(scale.toPrecision(3))}`,
    mask.after === 0 ? "later keys hidden" : mask.before === null ? "" : `keys more than ${mask.before} away hidden`, hidden,
    positions === "kept" ? "" : positions === "none" ? "no positions" : "positions shuffled",
    off.length ? `head${off.length > 1 ? "s" : ""} ${off.map((head) => head.join(".")).join(", ")} off` : "",
  ];
  return parts.filter(Boolean).join(", ");
}

function notesOf({ exact }: Agreement): string[] {
  return [
    `Matrices of the model are rounded to 16 bits a number, with a scale for each row. On two sentences this moves weights by at most ${small(exact)}.`,
    "The numbers of your own text are not compared with PyTorch's: the page computes them with the code that it has checked.",
  ];
}

/** Format a difference, rounded up: 1.9e-6. */
export function small(value: number): string {
  if (!Number.isFinite(value)) return "infinity";
  if (value === 0) return "0";
  const unit = 10 ** (Math.floor(Math.log10(value)) - 1);
  return (Math.ceil(value / unit - 1e-9) * unit).toExponential(1);
}

/** Return the words before and after those that differ, and these if they are as many; null if all are in the same place. */
function alignedOf([first, second]: Read[]): Aligned | null {
  if (String(first.ids) === String(second.ids) || String(first.axis.words) === String(second.axis.words)) return null;
  const starts = [first, second].map(({ axis }) => axis.labels.flatMap((_, n) => (n === 0 || axis.words[n] === null || axis.words[n] !== axis.words[n - 1] ? [n] : [])));
  const labels = [first, second].map(({ axis }, k) => starts[k].map((n) => (axis.words[n] === null ? axis.labels[n] : axis.wordLabels[axis.words[n]!])));
  const [m, n] = labels.map(({ length }) => length);
  let [before, after] = [0, 0];
  while (before < Math.min(m, n) && labels[0][before] === labels[1][before]) before++;
  while (after < Math.min(m, n) - before && labels[0][m - 1 - after] === labels[1][n - 1 - after]) after++;
  const pairs = Array.from({ length: m }, (_, at): [number, number] => [at, at < before || m === n ? at : at - m + n]);
  const kept = pairs.filter(([at]) => m === n || at < before || at >= m - after).map(([a, b]): [number, number] => [starts[0][a], starts[1][b]]);
  return [kept, kept];
}
