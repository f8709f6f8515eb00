/** `linear` once more, as a module of WebAssembly that multiplies four numbers at once. The page assembles its bytes itself. */

import { linear, type Multiply, type Weights } from "./bert";

/** The most tokens of a text: the most rows of X. */
export const LONGEST = 128;
const PAGE = 65536; // bytes of a page of memory

type Code = number[];
const whole = (value: number): Code => (value < 128 ? [value] : [(value & 127) | 128, ...whole(value >> 7)]);
const list = (parts: Code[]): Code => [...whole(parts.length), ...parts.flat()];
const sized = (code: Code): Code => [...whole(code.length), ...code];
const get = (local: number): Code => [0x20, local];
const set = (local: number, ...code: Code[]): Code => [...code.flat(), 0x21, local];
const constant = (value: number): Code => [0x41, value]; // below 64
const add = (a: Code, b: Code): Code => [...a, ...b, 0x6a];
const times = (a: Code, b: Code): Code => [...a, ...b, 0x6c];
/** Repeat while a local is below another, which is checked after each turn. */
const loop = (local: number, end: number, ...code: Code[]): Code => [0x03, 0x40, ...code.flat(), ...get(local), ...get(end), 0x49, 0x0d, 0, 0x0b];
const four = { load: (at: Code): Code => [...at, 0xfd, 0, 4, 0], zero: [0xfd, 0x0c, ...Array<number>(16).fill(0)], add: [0xfd, 0xe4, 1], times: [0xfd, 0xe6, 1], lane: (n: number): Code => [0xfd, 0x1f, n] };

/** Return the bytes of a module with linear(x, w, b, y, rows, bytes of a row of x and of w, bytes of a row of y). */
export function assemble(pages: number): Uint8Array<ArrayBuffer> {
  const [x, w, b, y, rows, row, out, o, t, i, p, s] = Array.from({ length: 12 }, (_, n) => n);
  const r = [12, 13, 14, 15]; // where four rows of x begin
  const [a, v, z] = [16, 24, 26]; // 4 × 2 sums, two parts of w, four parts of x
  const each = r.flatMap((_, k) => [[k, 0], [k, 1]] as const);
  const total = (local: number): Code => [0, 1, 2, 3].flatMap((n) => [...get(local), ...four.lane(n), ...(n ? [0x92] : [])]);
  const bias = (n: number): Code => [...add(get(b), get(o)), 0x2a, 2, 4 * n];
  const inner = loop(i, row,
    set(v, four.load(add(get(p), get(i)))), set(v + 1, four.load(add(add(get(p), get(row)), get(i)))),
    ...r.map((start, k) => set(z + k, four.load(add(get(start), get(i))))),
    ...each.map(([k, n]) => set(a + 2 * k + n, get(a + 2 * k + n), get(z + k), get(v + n), four.times, four.add)),
    set(i, add(get(i), constant(16))));
  const body = [
    set(o, constant(0)), set(p, get(w)),
    loop(o, out,
      set(t, constant(0)), set(r[0], get(x)), set(s, add(get(y), get(o))),
      loop(t, rows,
        ...[1, 2, 3].map((k) => set(r[k], add(get(r[k - 1]), get(row)))),
        ...each.map(([k, n]) => set(a + 2 * k + n, four.zero)),
        set(i, constant(0)), inner,
        ...each.map(([k, n]) => [...add(get(s), times(constant(k), get(out))), ...total(a + 2 * k + n), ...bias(n), 0x92, 0x38, 2, 4 * n]),
        set(r[0], add(get(r[3]), get(row))), set(s, add(get(s), times(constant(4), get(out)))), set(t, add(get(t), constant(4)))),
      set(o, add(get(o), constant(8))), set(p, add(get(p), times(constant(2), get(row))))),
    [0x0b],
  ].flat();
  const [number, vector, name] = [0x7f, 0x7b, (text: string): Code => sized([...text].map((letter) => letter.charCodeAt(0)))];
  const sections: [number, Code][] = [
    [1, list([[0x60, ...list(Array(7).fill([number])), 0]])],
    [2, list([[...name("e"), ...name("m"), 2, 0, ...whole(pages)]])],
    [3, list([[0]])],
    [7, list([[...name("linear"), 0, 0]])],
    [10, list([sized([...list([[9, number], [14, vector]]), ...body])])],
  ];
  return new Uint8Array([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, ...sections.flatMap(([id, code]) => [id, ...sized(code)])]);
}

/** Keep the matrices of the layers in the memory of the module, and multiply there; as in `linear` where a browser has no such module. */
export function fast(weights: Weights, bytes: number, widest: number): { weights: Weights; multiply: Multiply } {
  const pages = Math.ceil((bytes + 8 * LONGEST * widest) / PAGE) + 1;
  const code = assemble(pages);
  if (!WebAssembly.validate(code)) return { weights, multiply: linear };
  const memory = new WebAssembly.Memory({ initial: pages });
  const instance = new WebAssembly.Instance(new WebAssembly.Module(code), { e: { m: memory } });
  const run = instance.exports.linear as (...numbers: number[]) => void;
  let free = 0;
  const room = (count: number) => new Float32Array(memory.buffer, (free += 16 * Math.ceil(count / 4)) - 16 * Math.ceil(count / 4), count);
  const [input, output] = [room(LONGEST * widest), room(LONGEST * widest)];
  const kept = new Map<string, Float32Array>();
  const place = (name: string) => {
    const numbers = weights.get(name);
    const placed = room(numbers.length);
    placed.set(numbers);
    kept.set(name, placed);
    return placed;
  };
  return {
    weights: { row: weights.row, get: (name) => (name.startsWith("encoder") ? (kept.get(name) ?? place(name)) : weights.get(name)) },
    multiply(x, weight, bias) {
      const [outputs, inputs] = [bias.length, weight.length / bias.length];
      const rows = x.length / inputs;
      const padded = 4 * Math.ceil(rows / 4);
      input.set(x);
      input.fill(0, x.length, padded * inputs);
      run(input.byteOffset, weight.byteOffset, bias.byteOffset, output.byteOffset, padded, 4 * inputs, 4 * outputs);
      return output.slice(0, rows * outputs);
    },
  };
}
