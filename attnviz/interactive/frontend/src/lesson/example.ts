/** A worked example with the reader's own numbers: X and the three matrices are fields, and all that follows is computed. */

import type { Theme } from "../colors";
import { el } from "../dom";
import { softmax } from "../formula";
import { brief } from "../text";
import { largest, product, rowsOf, scaleOf, table } from "./table";

interface Numbers {
  words: string[];
  /** The vectors, (T, d), and the matrices, (d, d_k). */
  x: number[][];
  q: number[][];
  k: number[][];
  v: number[][];
}
const PHONES: Numbers = {
  words: ["I", "love", "apple", "phones"],
  x: [[1, 0.5, 0.2, 0.1], [0.9, 1.1, 0.1, 0], [0.1, 0.2, 1, 0.5], [0, 0.1, 0.4, 1.2]],
  q: [[1, 0], [0, 1], [1, 0], [0, 1]], k: [[1, 0], [0, 1], [0, 1], [1, 0]], v: [[1, 0], [0, 1], [1, 1], [0, 1]],
};
const identity = (d: number) => Array.from({ length: d }, (_, i) => Array.from({ length: d }, (_, j) => Number(i === j)));
const MOST = 8; // words

/** Return all that follows from the numbers, in order: its formula, and its rows. */
export function follow({ x, q, k, v }: Numbers, scaled: boolean): Record<"Q" | "K" | "V" | "scores" | "weights" | "output", number[][]> {
  const times = (a: number[][], b: number[][]) => rowsOf(product(a.flat(), b[0].flatMap((_, c) => b.map((row) => row[c])), b.length), b[0].length);
  const [Q, K, V] = [q, k, v].map((matrix) => times(x, matrix));
  const scores = rowsOf(product(Q.flat(), K.flat(), K[0].length).map((value) => (scaled ? value / Math.sqrt(K[0].length) : value)), K.length);
  const weights = scores.map((row) => [...softmax(Float64Array.from(row))]);
  return { Q, K, V, scores, weights, output: times(weights, V) };
}

/** Return the example, with a last control beside its own. */
export function example(theme: () => Theme, last: HTMLElement): { node: HTMLElement; draw(): void } {
  let numbers = structuredClone(PHONES);
  let scaled = true;
  const [given, derived] = [el("div", { class: "stages given" }), el("div", { class: "stages", role: "status", "aria-live": "off" })];
  const finding = el("p", { class: "finding" });
  const scale = el("input", { type: "checkbox", checked: true, "data-control": "scaled", change: () => {
    scaled = scale.checked;
    answer();
  } });
  const button = (name: string, control: string, act: () => void) => el("button", { type: "button", "data-control": control, click: () => {
    act();
    draw();
  } }, name);
  const wide = () => numbers.x[0].length;
  const node = el("div", {},
    el("p", { class: "hint" }, "Change a number, and all that follows changes: Q = X W_q, K = X W_k, V = X W_v, and softmax(Q Kᵀ / √dₖ) V."),
    el("div", { class: "bar" },
      button("I love apple phones", "phones", () => (numbers = structuredClone(PHONES))),
      button("No matrices: W = I", "identity", () => Object.assign(numbers, { q: identity(wide()), k: identity(wide()), v: identity(wide()) })),
      button("Add a word", "add", () => numbers.words.length < MOST && (numbers.words.push(`word ${numbers.words.length + 1}`), numbers.x.push(Array(wide()).fill(0)))),
      button("Remove a word", "remove", () => numbers.words.length > 1 && (numbers.words.pop(), numbers.x.pop())),
      el("label", {}, scale, el("span", {}, "divide by √dₖ")), last),
    given, finding, derived);

  const axis = (name: string, count: number) => Array.from({ length: count }, (_, n) => `${name}${n + 1}`);
  function draw(): void {
    const field = (title: string, rows: string[], matrix: number[][]) => {
      const columns = axis("", matrix[0].length);
      return table({ rows, columns, values: matrix.flat() }, { title: `${title} (${rows.length}, ${columns.length})`, edit: (at, value) => {
        matrix[Math.floor(at / columns.length)][at % columns.length] = value;
        answer();
      } });
    };
    const inner = axis("x", wide());
    given.replaceChildren(field("X", numbers.words, numbers.x), field("W_q", inner, numbers.q), field("W_k", inner, numbers.k), field("W_v", inner, numbers.v));
    answer();
  }
  function answer(): void {
    const { words } = numbers;
    const found = follow(numbers, scaled);
    const shown = (title: string, rows: number[][], columns = axis("", rows[0].length), colored: "plain" | "weights" | "signed" = "plain") =>
      table({ rows: words, columns, values: rows.flat() }, { title: `${title} (${rows.length}, ${rows[0].length})`, ...(colored !== "plain" && { scale: scaleOf(theme(), colored === "signed" ? rows.flat() : [1], colored === "signed") }) });
    const sums = found.weights.map((row) => row.reduce((a, b) => a + b, 0));
    const best = found.weights.map(largest);
    const i = largest(found.weights.map((row, n) => row[best[n]]));
    finding.textContent = `“${words[i]}” attends most to “${words[best[i]]}”, with ${brief(found.weights[i][best[i]])} of its weight.`;
    derived.replaceChildren(
      shown("Q = X W_q", found.Q), shown("K = X W_k", found.K), shown("V = X W_v", found.V),
      shown(scaled ? "Q Kᵀ / √dₖ" : "Q Kᵀ", found.scores, words, "signed"), shown("softmax of each row", found.weights, words, "weights"), shown("weights V", found.output),
      el("p", { class: "sums" }, `✓ Rows of weights sum to ${[...new Set(sums.map((sum) => brief(sum)))].join(", ")}.`));
  }
  return { node, draw };
}
