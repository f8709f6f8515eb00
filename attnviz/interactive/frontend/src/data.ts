/** The data of a page: what Python wrote, unpacked when it is looked at. */

export interface Payload {
  format: 1;
  results: Result[];
  /** Where each block lies in the base64 text: first character, number of characters. */
  blocks: [start: number, length: number][];
  start: { stack: string; layer: number; head: number; view: ViewName; words: boolean };
  notes: string[];
}
export type ViewName = "grid" | "head" | "token" | "steps";
export interface Result {
  name: string;
  source: string;
  verdict: "verified" | "failed" | "not proven";
  summary: string;
  notes: string[];
  axes: Axis[];
  stacks: Stack[];
}
export interface Axis {
  labels: string[];
  words: (number | null)[];
  wordLabels: string[];
  special: number[];
  second: number | null;
  /** The first position that carries content: what is looked at where nothing was chosen. */
  word: number;
}
export interface Stack {
  name: string;
  title: string;
  queries: number;
  keys: number;
  layers: Layer[];
}
export interface Layer {
  layer: number;
  heads: number[];
  pooled: Pooled | null;
  exact: (Exact | null)[];
}
export interface Pooled {
  cell: number;
  rows: number;
  columns: number;
  maps: Codes;
}
export interface Exact {
  map: Codes | null;
  query: Codes | null;
  key: Codes | null;
  rule: Rule | null;
  error: number;
}
/** What weights follow from beside q and k; `formula.ts` says how. */
export interface Rule {
  scale: number;
  softCap: number | null;
  sink: number | number[] | null;
  before: number | null;
  after: number | null;
  offset: number;
  hidden: number[];
  /** The model adds a table of its own to the scores: weights are those of the map. */
  added: boolean;
}
/** Numbers in 16 bits, from a byte of a block on: all low bytes, then all high bytes where there are any. */
export interface Codes {
  block: number;
  at: number;
  shape: number[];
  kind: "root" | "linear";
  levels: number;
  scale: number[] | number;
}

export interface Source {
  payload: Payload;
  block(index: number): Promise<Uint8Array>;
}

/** Return the inflated bytes of a block, each inflated once, when it is first asked for. */
export function unpack(base64: string, blocks: Payload["blocks"]): Source["block"] {
  const known = new Map<number, Promise<Uint8Array>>();
  return (index) => {
    const [start, length] = blocks[index];
    const found = known.get(index) ?? inflate(base64.slice(start, start + length));
    known.set(index, found);
    return found;
  };
}

async function inflate(base64: string): Promise<Uint8Array> {
  const text = atob(base64);
  const packed = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n++) packed[n] = text.charCodeAt(n);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return `count` numbers of some codes, from the one at `start`. */
export function decode(codes: Codes, bytes: Uint8Array, start: number, count: number): Float32Array {
  const { shape, levels, scale } = codes;
  const size = shape.reduce((product, side) => product * side, 1);
  const stride = size / shape[0];
  const wide = levels > 255;
  const values = new Float32Array(count);
  for (let n = 0, at = codes.at + start; n < count; n++, at++) {
    const code = bytes[at] + (wide ? bytes[size + at] << 8 : 0);
    const unit = typeof scale === "number" ? scale : scale[Math.floor((start + n) / stride)];
    values[n] = codes.kind === "root" ? unit * (code / levels) ** 2 : unit * (code - 32768);
  }
  return values;
}
