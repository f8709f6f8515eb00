/** The attention weights of one query, by their formula: softmax(q Kᵀ / √d_k). */

import type { Rule } from "./data";

/** Numbers of one kind, as a loop over several kinds takes more time. */
type Floats = Float32Array | Float64Array;

/** Return q·k of one query with every key. query: (d), keys: (n, d) row by row. */
export function products(query: Floats, keys: Floats): Float64Array {
  const d = query.length;
  const found = new Float64Array(keys.length / d);
  for (let j = 0; j < found.length; j++) found[j] = dot(query, 0, keys, j * d, d);
  return found;
}

/** Return the dot product of `count` numbers from `i` and from `j`. Four sums side by side take less time than one. */
export function dot(a: Floats, i: number, b: Floats, j: number, count: number): number {
  let s = 0, t = 0, u = 0, v = 0;
  const [end, whole] = [i + count, i + count - 3];
  for (; i < whole; i += 4, j += 4) {
    s += a[i] * b[j];
    t += a[i + 1] * b[j + 1];
    u += a[i + 2] * b[j + 2];
    v += a[i + 3] * b[j + 3];
  }
  for (; i < end; i++, j++) s += a[i] * b[j];
  return s + t + (u + v);
}

/** Return the softmax input of query `i`: scaled and capped, −∞ for hidden keys. */
export function scores(query: Floats, keys: Floats, rule: Rule, i: number): Float64Array {
  const cap = rule.softCap;
  const found = products(query, keys);
  const isOpen = rule.before === null && rule.after === null && !rule.hidden.length;
  for (let j = 0; j < found.length; j++) {
    const scaled = found[j] * rule.scale;
    found[j] = !isOpen && isHidden(rule, i, j) ? -Infinity : cap === null ? scaled : cap * Math.tanh(scaled / cap);
  }
  return found;
}

export function isHidden({ before, after, offset, hidden }: Rule, i: number, j: number): boolean {
  const far = before !== null && j < i + offset - before;
  return far || (after !== null && j > i + offset + after) || hidden.includes(j);
}

/** Return e^s / Σ e^s; a sink adds one more score to the sum, without a key. */
export function softmax(scores: Float64Array, sink: number | null = null): Float64Array {
  const found = new Float64Array(scores.length);
  let largest = sink ?? -Infinity;
  for (const score of scores) largest = Math.max(largest, score);
  if (largest === -Infinity) return found; // all keys are hidden
  let sum = sink === null ? 0 : Math.exp(sink - largest);
  for (let j = 0; j < found.length; j++) sum += found[j] = Math.exp(scores[j] - largest);
  for (let j = 0; j < found.length; j++) found[j] /= sum;
  return found;
}

/** Return the sink of query `i`, or null. */
export function sinkOf(rule: Rule, i: number): number | null {
  return Array.isArray(rule.sink) ? rule.sink[i] : rule.sink;
}

/** Return the weights of query `i` over all keys. */
export function weights(query: Floats, keys: Floats, rule: Rule, i: number): Float64Array {
  return softmax(scores(query, keys, rule, i), sinkOf(rule, i));
}
