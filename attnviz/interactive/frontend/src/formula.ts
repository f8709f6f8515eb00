/** The attention weights of one query, by their formula: softmax(q Kᵀ / √d_k). */

import type { Rule } from "./data";

/** Return q·k of one query with every key. query: (d), keys: (n, d) row by row. */
export function products(query: Float32Array, keys: Float32Array): Float64Array {
  const d = query.length;
  const found = new Float64Array(keys.length / d);
  for (let j = 0; j < found.length; j++) {
    let sum = 0;
    for (let c = 0, at = j * d; c < d; c++, at++) sum += query[c] * keys[at];
    found[j] = sum;
  }
  return found;
}

/** Return the softmax input of query `i`: scaled and capped, −∞ for hidden keys. */
export function scores(query: Float32Array, keys: Float32Array, rule: Rule, i: number): Float64Array {
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
export function weights(query: Float32Array, keys: Float32Array, rule: Rule, i: number): Float64Array {
  return softmax(scores(query, keys, rule, i), sinkOf(rule, i));
}
