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

/** Return the bytes of a text in base64. */
export function bytesOf(text: string): Uint8Array {
  const native = (Uint8Array as { fromBase64?: (text: string) => Uint8Array }).fromBase64;
  if (native) return native(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let n = 0; n < letters.length; n++) bytes[n] = letters.charCodeAt(n);
  return bytes;
}

export function floatsOf(text: string): Float32Array {
  return new Float32Array(bytesOf(text).slice().buffer);
}
