/** BERT, written from its formulas. Numbers are float32, and sums float64. */

import { dot, isHidden } from "../formula";
import type { Rule } from "../data";

/** The model's config, with the names of transformers. */
export interface Config {
  num_hidden_layers: number;
  num_attention_heads: number;
  hidden_size: number;
  layer_norm_eps: number;
}
/** What a reader changes in the model; `UNCHANGED` changes nothing. */
export interface Changes {
  /** The scores are multiplied by this / √d_k. */
  scale: number;
  /** The keys that no query reads, as in the rule of a head. */
  mask: Pick<Rule, "before" | "after" | "hidden">;
  /** The position whose vector each token gets; "none" adds none. */
  positions: "kept" | "none" | number[];
  /** Heads whose values are 0, so that they add nothing. */
  off: [layer: number, head: number][];
}
export const UNCHANGED: Changes = { scale: 1, mask: { before: null, after: null, hidden: [] }, positions: "kept", off: [] };

/** Matrices (rows, columns) and vectors of the model by their names in PyTorch. */
export interface Weights {
  get(name: string): Float32Array;
  row(name: string, index: number): Float32Array;
}
/** The attention of a layer. Vectors are (tokens, size), with the heads side by side, and weights (heads, tokens, tokens). */
export interface Attention {
  input: Float32Array;
  query: Float32Array;
  key: Float32Array;
  value: Float32Array;
  weights: Float32Array;
  /** W V of every head. */
  mixed: Float32Array;
  /** After the projection of all heads. */
  output: Float32Array;
}
export interface Run {
  /** What is read before positions are added, and the vectors of the positions. */
  words: Float32Array;
  positions: Float32Array;
  layers: Attention[];
  output: Float32Array;
}
export type Multiply = (x: Float32Array, weight: Float32Array, bias: Float32Array) => Float32Array;

export function bert(weights: Weights, { num_hidden_layers: layers, num_attention_heads: heads, hidden_size: size, layer_norm_eps: epsilon }: Config, multiply: Multiply = linear): (ids: number[], changes?: Changes) => Run {
  const width = size / heads;
  const named = (name: string) => [weights.get(`${name}.weight`), weights.get(`${name}.bias`)] as const;
  const read = Array.from({ length: layers }, (_, n) => {
    const of = (name: string) => named(`encoder.layer.${n}.${name}`);
    return {
      query: of("attention.self.query"), key: of("attention.self.key"), value: of("attention.self.value"), mix: of("attention.output.dense"),
      after: of("attention.output.LayerNorm"), inner: of("intermediate.dense"), outer: of("output.dense"), last: of("output.LayerNorm"),
    };
  });
  const places = weights.get("embeddings.position_embeddings.weight");
  const type = weights.row("embeddings.token_type_embeddings.weight", 0);
  const first = named("embeddings.LayerNorm");

  return (ids, changes = UNCHANGED) => {
    const tokens = ids.length;
    const words = new Float32Array(tokens * size);
    const positions = new Float32Array(tokens * size);
    ids.forEach((id, t) => {
      words.set(weights.row("embeddings.word_embeddings.weight", id), t * size);
      for (let c = 0; c < size; c++) words[t * size + c] += type[c];
      if (changes.positions === "none") return;
      const place = changes.positions === "kept" ? t : changes.positions[t];
      positions.set(places.subarray(place * size, (place + 1) * size), t * size);
    });
    let x = normalized(sum(words, positions), first, epsilon);
    const found = read.map((layer, n): Attention => {
      const input = x;
      const [query, key, value] = [layer.query, layer.key, layer.value].map((matrix) => multiply(x, ...matrix));
      for (const [, head] of changes.off.filter(([at]) => at === n)) {
        for (let t = 0; t < tokens; t++) value.fill(0, t * size + head * width, t * size + (head + 1) * width);
      }
      const { weights, mixed } = attention(query, key, value, { tokens, size, heads }, changes);
      const output = multiply(mixed, ...layer.mix);
      x = normalized(sum(output, x), layer.after, epsilon);
      x = normalized(sum(multiply(gelu(multiply(x, ...layer.inner)), ...layer.outer), x), layer.last, epsilon);
      return { input, query, key, value, weights, mixed, output };
    });
    return { words, positions, layers: found, output: x };
  };
}

/** softmax(Q Kᵀ / √d_k) V of every head. */
function attention(query: Float32Array, key: Float32Array, value: Float32Array, of: { tokens: number; size: number; heads: number }, changes: Changes): Pick<Attention, "weights" | "mixed"> {
  const { tokens, size } = of;
  const width = size / of.heads;
  const weights = new Float32Array(of.heads * tokens * tokens);
  const mixed = new Float32Array(tokens * size);
  const rule = ruleOf(changes, width);
  const hidden = Uint8Array.from({ length: tokens * tokens }, (_, at) => Number(isHidden(rule, Math.floor(at / tokens), at % tokens)));
  const row = new Float64Array(tokens);
  for (let head = 0; head < of.heads; head++) {
    const start = head * width;
    const [queries, keys, values] = [query, key, value].map((all) => new Float64Array(headOf(all, head, width, size)));
    const columns = transposed(values, width);
    for (let i = 0; i < tokens; i++) {
      let [largest, total] = [-Infinity, 0];
      for (let j = 0; j < tokens; j++) {
        row[j] = hidden[i * tokens + j] ? -Infinity : dot(queries, i * width, keys, j * width, width) * rule.scale;
        largest = Math.max(largest, row[j]);
      }
      for (let j = 0; j < tokens; j++) total += row[j] = largest === -Infinity ? 0 : Math.exp(row[j] - largest);
      for (let j = 0; j < tokens; j++) weights[(head * tokens + i) * tokens + j] = row[j] = total && row[j] / total;
      for (let c = 0; c < width; c++) mixed[i * size + start + c] = dot(row, 0, columns, c * tokens, tokens);
    }
  }
  return { weights, mixed };
}

/** Return the columns of a matrix one after the other. */
export function transposed(rows: Float64Array, width: number): Float64Array {
  const count = rows.length / width;
  const columns = new Float64Array(rows.length);
  for (let i = 0, at = 0; i < count; i++) for (let c = 0; c < width; c++, at++) columns[c * count + i] = rows[at];
  return columns;
}

/** Return X Wᵀ + b. X: (rows, inputs), W: (outputs, inputs). Blocks of 4 rows and 2 outputs share the numbers that they read. */
export function linear(x: Float32Array, weight: Float32Array, bias: Float32Array): Float32Array {
  const outputs = bias.length;
  const inputs = weight.length / outputs;
  const rows = x.length / inputs;
  const y = new Float32Array(rows * outputs);
  const wide = new Float64Array(4 * Math.ceil(rows / 4) * inputs);
  wide.set(x);
  for (let o = 0; o < outputs; o += 2) {
    const [p, q] = [o * inputs, (o + 1) * inputs];
    for (let t = 0; t < rows; t += 4) {
      let a0 = bias[o], a1 = a0, a2 = a0, a3 = a0;
      let b0 = bias[o + 1], b1 = b0, b2 = b0, b3 = b0;
      const r0 = t * inputs, r1 = r0 + inputs, r2 = r1 + inputs, r3 = r2 + inputs;
      for (let i = 0; i < inputs; i++) {
        const v = weight[p + i], w = weight[q + i];
        const x0 = wide[r0 + i], x1 = wide[r1 + i], x2 = wide[r2 + i], x3 = wide[r3 + i];
        a0 += v * x0; a1 += v * x1; a2 += v * x2; a3 += v * x3;
        b0 += w * x0; b1 += w * x1; b2 += w * x2; b3 += w * x3;
      }
      const at = t * outputs + o;
      for (const [n, a, b] of [[0, a0, b0], [1, a1, b1], [2, a2, b2], [3, a3, b3]]) {
        if (t + n < rows) [y[at + n * outputs], y[at + n * outputs + 1]] = [a, b];
      }
    }
  }
  return y;
}

function sum(x: Float32Array, y: Float32Array): Float32Array {
  const z = new Float32Array(x.length);
  for (let n = 0; n < z.length; n++) z[n] = x[n] + y[n];
  return z;
}

/** Return each row with mean 0 and variance 1, times the gain, plus the bias. */
function normalized(x: Float32Array, [gain, bias]: readonly Float32Array[], epsilon: number): Float32Array {
  const size = gain.length;
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += size) {
    let total = 0, square = 0;
    for (let c = 0; c < size; c++) total += x[start + c];
    const mean = total / size;
    for (let c = 0; c < size; c++) square += (x[start + c] - mean) * (x[start + c] - mean);
    const factor = 1 / Math.sqrt(square / size + epsilon);
    for (let c = 0; c < size; c++) y[start + c] = (x[start + c] - mean) * factor * gain[c] + bias[c];
  }
  return y;
}

/** Return x Φ(x). Φ is the cubic between places of a table that has its values and slopes: within 2e-9. */
function gelu(x: Float32Array): Float32Array {
  const y = new Float32Array(x.length);
  for (let n = 0; n < y.length; n++) {
    const at = (x[n] + END) * STEPS;
    if (at >= 0 && at < LAST) {
      const k = Math.floor(at);
      const t = at - k;
      const [low, high, from, to] = [PHI[k], PHI[k + 1], SLOPE[k], SLOPE[k + 1]];
      y[n] = x[n] * (low + t * (from + t * (3 * (high - low) - 2 * from - to + t * (2 * (low - high) + from + to))));
    } else y[n] = at > 0 ? x[n] : 0;
  }
  return y;
}
const [END, STEPS] = [7, 32]; // the table is from −7 to 7, with steps of 1/32
const LAST = 2 * END * STEPS;
const PHI = Float64Array.from({ length: LAST + 1 }, (_, n) => phi(n / STEPS - END));
const SLOPE = Float64Array.from(PHI, (_, n) => Math.exp(-((n / STEPS - END) ** 2) / 2) / Math.sqrt(2 * Math.PI) / STEPS);

/** Return Φ(x) to 1e-7 (W. H. Press et al., Numerical Recipes, 3rd edition, 6.2.2). */
function phi(x: number): number {
  const z = Math.abs(x) / Math.SQRT2;
  const t = 1 / (1 + z / 2);
  const series = (((((((0.17087277 * t - 0.82215223) * t + 1.48851587) * t - 1.13520398) * t + 0.27886807) * t - 0.18628806) * t + 0.09678418) * t + 0.37409196) * t;
  const power = (series + 1.00002368) * t - 1.26551223;
  const tail = (t * Math.exp(power - z * z)) / 2;
  return x < 0 ? tail : 1 - tail;
}

/** Return the rule by which the weights of every head follow from its queries and keys. */
export function ruleOf({ scale, mask }: Changes, width: number): Rule {
  return { scale: scale / Math.sqrt(width), softCap: null, sink: null, ...mask, offset: 0, added: false };
}

/** Return the vectors of one head, (tokens, width). */
export function headOf(all: Float32Array, head: number, width: number, size: number): Float32Array {
  const some = new Float32Array((all.length / size) * width);
  for (let t = 0; t * size < all.length; t++) some.set(all.subarray(t * size + head * width, t * size + (head + 1) * width), t * width);
  return some;
}
