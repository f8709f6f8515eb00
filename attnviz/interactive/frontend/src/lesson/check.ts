/** What a page compares: numbers with PyTorch's, and the weights of a text with the formula. */

import { dot, weights as weightsBy } from "../formula";
import { headOf, ruleOf, transposed, type Attention, type Changes, type Config } from "./bert";

/** The largest |Σ weights − 1|, and the largest |W V − mixed| and |softmax − weights| by the other code of the page. */
export interface Formula {
  sums: number;
  mixed: number;
  weights: number;
}

/** Return the largest difference; infinite if one number is none, or the lengths differ. */
export function difference(some: ArrayLike<number>, others: ArrayLike<number>): number {
  return some.length === others.length ? apart(some, 0, others, 0, some.length) : Infinity;
}

function apart(some: ArrayLike<number>, i: number, others: ArrayLike<number>, j: number, count: number): number {
  let largest = 0;
  for (let n = 0; n < count; n++) {
    const by = Math.abs(some[i + n] - others[j + n]);
    if (!(by <= largest)) largest = Number.isNaN(by) ? Infinity : by;
  }
  return largest;
}

/** Compute the weights and W V once more, with the code that draws them. */
export function follows(layers: Attention[], { num_attention_heads: heads, hidden_size: size }: Config, changes: Changes): Formula {
  const width = size / heads;
  const rule = ruleOf(changes, width);
  const found = { sums: 0, mixed: 0, weights: 0 };
  for (const { query, key, value, weights, mixed } of layers) {
    const tokens = query.length / size;
    const sums = new Float64Array(width);
    for (let head = 0; head < heads; head++) {
      const [queries, keys, values] = [query, key, value].map((all) => new Float64Array(headOf(all, head, width, size)));
      const columns = transposed(values, width);
      for (let i = 0; i < tokens; i++) {
        const row = weightsBy(queries.subarray(i * width, (i + 1) * width), keys, rule, i);
        const at = (head * tokens + i) * tokens;
        let total = 0;
        for (let j = 0; j < tokens; j++) total += weights[at + j];
        if (total) found.sums = Math.max(found.sums, Math.abs(total - 1)); // else all keys are hidden
        for (let c = 0; c < width; c++) sums[c] = dot(row, 0, columns, c * tokens, tokens);
        found.weights = Math.max(found.weights, apart(weights, at, row, 0, tokens));
        found.mixed = Math.max(found.mixed, apart(sums, 0, mixed, i * size + head * width, width));
      }
    }
  }
  return found;
}
