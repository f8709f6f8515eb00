/** The attention weights of one query, by their formula: softmax(q Kᵀ / √d_k). */

import type { Rule } from "./data";

/** Return q·k of one query with every key. query: (d), keys: (n, d) row by row. */
export function products(query: Float32Array, keys: Float32Array): Float64Array {
  const d = query.length;
  return Float64Array.from({ length: keys.length / d }, (_, j) => {
    let sum = 0;
    for (let c = 0, at = j * d; c < d; c++, at++) sum += query[c] * keys[at];
    return sum;
  });
}

/** Return the softmax input of query `i`: scaled and capped, −∞ for hidden keys. */
export function scores(query: Float32Array, keys: Float32Array, rule: Rule, i: number): Float64Array {
  const cap = rule.softCap;
  return products(query, keys).map((product, j) => {
    if (isHidden(rule, i, j)) return -Infinity;
    const scaled = product * rule.scale;
    return cap === null ? scaled : cap * Math.tanh(scaled / cap);
  });
}

export function isHidden({ before, after, offset, hidden }: Rule, i: number, j: number): boolean {
  const far = before !== null && j < i + offset - before;
  return far || (after !== null && j > i + offset + after) || hidden.includes(j);
}

/** Return e^s / Σ e^s; a sink adds one more score to the sum, without a key. */
export function softmax(scores: Float64Array, sink: number | null = null): Float64Array {
  const largest = scores.reduce((a, b) => Math.max(a, b), sink ?? -Infinity);
  if (largest === -Infinity) return new Float64Array(scores.length); // all keys are hidden
  const powers = scores.map((score) => Math.exp(score - largest));
  const drained = sink === null ? 0 : Math.exp(sink - largest);
  const sum = powers.reduce((a, b) => a + b, drained);
  return powers.map((power) => power / sum);
}

/** Return the sink of query `i`, or null. */
export function sinkOf(rule: Rule, i: number): number | null {
  return Array.isArray(rule.sink) ? rule.sink[i] : rule.sink;
}

/** Return the weights of query `i` over all keys. */
export function weights(query: Float32Array, keys: Float32Array, rule: Rule, i: number): Float64Array {
  return softmax(scores(query, keys, rule, i), sinkOf(rule, i));
}
