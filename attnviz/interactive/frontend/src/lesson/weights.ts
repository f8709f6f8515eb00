/** The numbers of the model, as Python writes them: matrices as int16 with a scale for each row, vectors as float32. */

import type { Weights } from "./bert";

/** Of each tensor: its first byte, and its shape. */
export type Places = Record<string, [start: number, rows: number, columns?: number]>;

export function weightsOf(bytes: ArrayBuffer, places: Places): Weights {
  const part = (name: string, from: number, to: number) => {
    const [start, rows, columns] = places[name];
    if (columns === undefined) return new Float32Array(bytes, start, rows).slice();
    const codes = new Int16Array(bytes, start, rows * columns);
    const scales = new Float32Array(bytes, start + 2 * rows * columns, rows);
    const numbers = new Float32Array((to - from) * columns);
    for (let r = from, n = 0; r < to; r++) for (let c = 0; c < columns; c++, n++) numbers[n] = codes[r * columns + c] * scales[r];
    return numbers;
  };
  return { get: (name) => part(name, 0, places[name][1]), row: (name, index) => part(name, index, index + 1) };
}

/** Return the Adler-32 of bytes, as zlib of Python does. */
export function adler(bytes: Uint8Array): number {
  let [a, b] = [1, 0];
  for (let n = 0; n < bytes.length; ) {
    for (const end = Math.min(bytes.length, n + 2048); n < end; n++) b += a += bytes[n]; // below 2³¹
    [a, b] = [a % 65521, b % 65521];
  }
  return b * 65536 + a;
}

/** Return the numbers of a text in base64. */
export function floatsOf(text: string): Float32Array {
  return new Float32Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}
