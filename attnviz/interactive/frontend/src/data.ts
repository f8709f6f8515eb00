/** The data of a page, written by Python and unpacked on demand. */

export interface Payload {
  results: Result[];
  start: { stack: string; layer: number; head: number; view: ViewName; words: boolean };
  notes: string[];
  /** The rule of attnviz.figures.cells: from how many keys on a scale is logarithmic, and where it begins then: even weights divided by this. */
  scale: { logarithmicFrom: number; belowEven: number };
  /** Of two results whose words differ in pieces or in number: the words that are compared. */
  aligned?: Record<string, Aligned>;
  /** Why tokens of a generation were generated. */
  explanations?: Explanation[];
  /** Which part of the text raised each word of an answer. */
  sources?: {
    parts: "passage" | "sentence" | "part";
    /** The positions of each part, in the first axis of the result. */
    places: number[][];
    words: string[];
    headline: string;
    /** Of the whole answer, then of each word: the part that is lit, its share of the largest number, and what is lost without each part. */
    rows: { said: string; lit: number | null; share?: number; lost: string[] }[];
    details: string;
    /** Why the numbers are not verified; empty if they are. */
    alarm: string;
  };
}
/** Why a token was generated rather than the most probable other one. */
export interface Explanation {
  position: number;
  /** What each token before it contributed; null where that is not measured. */
  credit: (number | null)[];
  /** The largest contribution of a word, where the colors end. */
  top: number;
  headline: string;
  /** What a negative contribution does, in words. */
  lowers: string;
  unit: string;
  details: string;
  verdict: Result["verdict"];
}
/** For the queries and the keys of a stack: the first positions of each pair of words. */
export type Aligned = [queries: [number, number][], keys: [number, number][]];
export type ViewName = "grid" | "head" | "token" | "steps";
export interface Result {
  name: string;
  model: string;
  source: string;
  /** "computed" and "changed": by the page itself, as the model is or otherwise (`lesson.ts`). */
  verdict: "verified" | "computed" | "changed" | "failed" | "not proven";
  summary: string;
  /** The picture that the model read, as a data address. */
  image: string | null;
  /** The outline of the sound that the model read. */
  waveform: Waveform | null;
  notes: string[];
  axes: Axis[];
  stacks: Stack[];
}
/** The least and the largest sample of equal parts of a sound, in percent of the largest of all. */
export interface Waveform {
  seconds: number;
  low: number[];
  high: number[];
}
export interface Axis {
  labels: string[];
  words: (number | null)[];
  wordLabels: string[];
  special: number[];
  /** The positions of tokens that stand for what the vocabulary lacks ([UNK]). */
  unknown?: number[];
  second: number | null;
  /** The first position that the model generated. */
  generated: number | null;
  /** The first positions of the sentences of a text that the view of a head writes out. */
  sentences?: number[];
  /** The row and the column of each position that is a patch of the picture. */
  patches: ([row: number, column: number] | null)[] | null;
  /** How many seconds a position is, if positions are frames of a sound. */
  frames: number | null;
  /** The most probable tokens after each position, with their probabilities, if the model predicts them. */
  next: [label: string, probability: number][][] | null;
  /** The first position with content: the default selection. */
  word: number;
}
export interface Stack {
  name: string;
  title: string;
  /** Whether weights may be negative, and rows sum to anything: linear attention. */
  signed: boolean;
  queries: number;
  keys: number;
  layers: Layer[];
}
export interface Layer {
  layer: number;
  heads: number[];
  pooled: Pooled | null;
  exact: (Exact | null)[];
  /** The output of the attention, if the page has it. */
  output?: Codes;
  /** What each head shows in a short text, as its figure says. */
  found?: Found[];
}
/** What a head shows: the sentence of its figure, the words that it is about, and the rule that it follows with the weight of such keys. */
export interface Found {
  title: string | null;
  cell: [query: number, key: number] | null;
  family?: string;
  share?: number;
}
export interface Pooled {
  cell: number;
  rows: number;
  columns: number;
  maps: Codes;
}
export interface Exact {
  map?: Codes;
  query?: Codes;
  key?: Codes;
  value?: Codes;
  rule?: Rule;
  error: number;
}
/** The data besides q and k that weights follow from; see `formula.ts`. */
export interface Rule {
  scale: number;
  softCap: number | null;
  sink: number | number[] | null;
  before: number | null;
  after: number | null;
  offset: number;
  hidden: number[];
  /** The model adds a custom table to the scores, so the weights come from the map. */
  added: boolean;
}
/** Numbers of one or two bytes, in a block: all low bytes, then all high bytes, if any. Maps ("root", and "signed" ones)
 * are written column by column. "float": numbers of four bytes, of which a page makes its own. */
export interface Codes {
  /** The index of the block. */
  block: number;
  shape: number[];
  kind: "root" | "linear" | "signed" | "float";
  levels: number;
  scale: number[] | number;
}

export interface Source {
  payload: Payload;
  /** Deflated bytes in base64, or the bytes. */
  blocks: (string | Uint8Array)[];
  /** Compute the explanation of a generated token, and report the progress meanwhile; in the page of a server. */
  explain?(position: number, signal: AbortSignal, say: (line: string) => void): Promise<Explanation>;
}

/** Return the inflated bytes of a block. */
export async function inflate(block: string | Uint8Array): Promise<Uint8Array> {
  if (typeof block !== "string") return block;
  const text = atob(block);
  const packed = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n++) packed[n] = text.charCodeAt(n);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return `count` decoded numbers, from `start` on: those that follow it, or every `step`-th. */
export function decode(codes: Codes, bytes: Uint8Array, start: number, count: number, step = 1): Float32Array {
  const { shape, levels, scale } = codes;
  const size = shape.reduce((product, side) => product * side, 1);
  const stride = size / shape[0];
  const wide = levels > 255;
  const values = new Float32Array(count);
  const floats = codes.kind === "float" && new Float32Array(bytes.buffer, bytes.byteOffset, size);
  for (let n = 0, at = start; n < count; n++, at += step) {
    if (floats) {
      values[n] = floats[at];
      continue;
    }
    const code = bytes[at] + (wide ? bytes[size + at] << 8 : 0);
    const unit = typeof scale === "number" ? scale : scale[Math.floor((start + n * step) / stride)];
    values[n] = codes.kind === "root" ? unit * (code / levels) ** 2 : unit * (code - (levels + 1) / 2);
  }
  return values;
}
