/** The thread that computes: it gets the model in parts, checks itself, and reads texts. */

import { bert, UNCHANGED, type Changes, type Config, type Run } from "./bert";
import { difference, follows, type Formula } from "./check";
import { fast, LONGEST } from "./kernel";
import { reader, type Tokens } from "./tokens";
import { adler, floatsOf, weightsOf, type Places } from "./weights";

/** What Python writes into the folder beside the numbers of the model. */
export interface Data {
  model: string;
  config: Config;
  bytes: number;
  /** The bytes of each part, but for the last, and the Adler-32 of each. */
  part: number;
  sums: number[];
  places: Places;
  vocabulary: string[];
  checked: Checked[];
  start: { text: string; layer: number; head: number; view: string; words: boolean };
  scale: { logarithmicFrom: number; belowEven: number };
}
/** A sentence as PyTorch reads it: with the rounded numbers of this page, and with the model's own. Floats in base64. */
export interface Checked {
  text: string;
  ids: number[];
  weights: string;
  output: string;
  exact: string;
}
/** The largest differences of this page from PyTorch: with the same rounded numbers, of weights and vectors; and from the model. */
export interface Agreement {
  weights: number;
  output: number;
  exact: number;
  /** The texts that this page splits into other tokens. */
  misread: string[];
}
/** A text as it was computed, and how far that follows the formula. */
export interface Read extends Tokens, Run {
  text: string;
  changes: Changes;
  milliseconds: number;
  formula: Formula;
}
export type Question =
  | { kind: "data"; data: Data }
  | { kind: "part"; part: number; bytes: Uint8Array }
  | { kind: "check" }
  | { kind: "split"; texts: string[] }
  | { kind: "read"; text: string; changes: Changes; ids?: number[]; plain?: boolean };

let data: Data;
let bytes: Uint8Array;
let run: ReturnType<typeof bert>;
let reference: ReturnType<typeof bert>; // the same without WebAssembly
let tokens: ReturnType<typeof reader>;

const answers: { [kind in Question["kind"]]: (question: Extract<Question, { kind: kind }>) => unknown } = {
  data(question) {
    data = question.data;
    bytes = new Uint8Array(data.bytes);
    tokens = reader(data.vocabulary);
  },
  part({ part, bytes: some }) {
    if (adler(some) !== data.sums[part]) throw new Error(`model.${part}.js has other bytes than were written. Copy the folder again.`);
    bytes.set(some, part * data.part);
  },
  check(): Agreement {
    const { weights: read, multiply } = fast(weightsOf(bytes.buffer as ArrayBuffer, data.places), ...sizesOf(data.places));
    [run, reference] = [bert(read, data.config, multiply), bert(read, data.config)];
    const found: Agreement = { weights: 0, output: 0, exact: 0, misread: [] };
    for (const { text, ids, weights, output, exact } of data.checked) {
      if (String(tokens(text).ids) !== String(ids)) found.misread.push(text);
      const ours = run(ids, UNCHANGED);
      const all = joined(ours.layers.map((layer) => layer.weights));
      found.weights = Math.max(found.weights, difference(all, floatsOf(weights)));
      found.exact = Math.max(found.exact, difference(all, floatsOf(exact)));
      found.output = Math.max(found.output, difference(ours.output, floatsOf(output)));
    }
    return found;
  },
  split: ({ texts }): Tokens[] => texts.map(tokens),
  read({ text, changes, ids, plain }): Read {
    const started = performance.now();
    const read = tokens(text);
    const count = (ids ?? read.ids).length;
    if (count > LONGEST) throw new Error(`The text has ${count} tokens, and this page reads at most ${LONGEST}. Shorten it.`);
    const found = (plain ? reference : run)(ids ?? read.ids, changes);
    return { ...read, ...found, text, changes, milliseconds: performance.now() - started, formula: follows(found.layers, data.config, changes) };
  },
};

/** Return the bytes of the layers in float32, and the longest vector. */
function sizesOf(places: Places): [bytes: number, widest: number] {
  const layers = Object.entries(places).filter(([name]) => name.startsWith("encoder")).map(([, [, rows, columns]]) => [rows, columns ?? 1]);
  return [layers.reduce((sum, [rows, columns]) => sum + 4 * rows * columns + 16, 0), Math.max(...layers.flat())];
}

function joined(parts: Float32Array[]): Float32Array {
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  parts.reduce((at, part) => (all.set(part, at), at + part.length), 0);
  return all;
}

/** Return the memory of all numbers of a text, which goes to the page without a copy. */
function buffersOf({ words, positions, output, layers }: Read): ArrayBuffer[] {
  const all = [words, positions, output, ...layers.flatMap((layer) => Object.values(layer) as Float32Array[])];
  return [...new Set(all.map(({ buffer }) => buffer as ArrayBuffer))];
}

onmessage = ({ data: question }: MessageEvent<Question & { number: number }>) => {
  const { number } = question;
  try {
    const answer = answers[question.kind](question as never);
    postMessage({ number, answer }, { transfer: question.kind === "read" ? buffersOf(answer as Read) : [] });
  } catch (error) {
    postMessage({ number, error: error instanceof Error ? error.message : String(error) });
  }
};
