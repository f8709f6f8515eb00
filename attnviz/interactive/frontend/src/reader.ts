/** From a state to the numbers to draw: maps, rows, columns and scale. */

import { decode, inflate, type Aligned, type Codes, type Exact, type Found, type Layer, type Payload, type Result, type Rule, type Source, type Stack } from "./data";
import { weights } from "./formula";
import { cellsOf, chosenUnits, isAlike, merge, paired, part, unitAt, unitsOf, type Side, type Table, type Units } from "./maps";
import type { State } from "./state";

/** Cells per side above which the pooled map is shown, if there is one. */
const WIDE = 128;
export const ONLY_POOLED = "this page stores only these pooled weights for some of the heads";
const MOST_KEPT = 2 ** 24; // maximum number of cached recomputed weights

/** The data to draw for a state. */
export interface Look {
  state: State;
  result: Result;
  stack: Stack;
  layers: { layer: Layer; heads: number[] }[];
  rows: Side;
  columns: Side;
  /** All queries and all keys, even where the map pools them. */
  units: [Units, Units];
  /** Tokens per cell and side; 1 for single cells. */
  cell: number;
  /** Whether the numbers may be negative: differences, or weights of linear attention. */
  signed: boolean;
  /** Whether the numbers are differences. */
  differs: boolean;
  notes: string[];
  /** The rule of the color scale. */
  scale: Payload["scale"];
  /** The weights of one head, or the mean of several. */
  table(layer: number, ...heads: number[]): Table;
  /** The mean of all heads of these layers. */
  mean(): Table;
  vectors(layer: number, head: number): Vectors | null;
  /** What the figure of a head says, if the page shows the same weights. */
  found(layer: number, head: number): Found | null;
  /** Null if the page has no values. */
  mix(layer: number, head: number, i: number): Mix | null;
}
/** The inputs to the weights of a head. query: (m, d), key: (n, d); weights: of one query, within the error. */
export interface Vectors {
  query: Float32Array;
  key: Float32Array;
  d: number;
  rule: Rule;
  weights(i: number): Float64Array;
  error: number;
}
/** What follows from the weights of one query. value: (n, d) of one head; heads: αV of all heads, side by side. */
export interface Mix {
  value: Float32Array;
  d: number;
  heads: Float32Array;
  output: Float32Array | null;
  /** Of the values (and so of the heads), and of the output. */
  errors: [number, number];
}
/** The weights of one position over all positions, and their maximum error. */
type Rows = [(position: number) => ArrayLike<number>, number];
interface Place {
  layer: Layer;
  head: number;
  exact: Exact | null;
}

export class Reader {
  private bytes = new Map<number, Uint8Array>();
  private known = new Map<Exact, Map<number, Float32Array>>();

  constructor(private source: Source) {}

  /** Load and compute the data of a state, unpooled where `exact` and possible; long computations yield, so that the page stays responsive. */
  async look(state: State, exact = false): Promise<Look> {
    const { results } = this.source.payload;
    const both = state.show === "difference" && state.view !== "steps";
    const shown = both ? results.slice(0, 2) : [results[state.show === "second" ? 1 : 0]];
    const stacks = shown.map((result) => result.stacks.find(({ name }) => name === state.stack)!);
    const layers = layersOf(state, stacks[0]);
    const places = stacks.map((stack) => (layer: number, head: number) => placeOf(stack, layer, head));
    const wanted = layers.flatMap(({ layer, heads }) => heads.map((head) => [layer.layer, head] as const));
    const aligned = both ? this.source.payload.aligned?.[stacks[0].name] : undefined;
    const { rows, columns, own, units, pooled, cell, notes } = sidesOf(state, shown, stacks, layers, exact, aligned);

    for (const [n, place] of places.entries()) {
      const found = wanted.map(([layer, head]) => place(layer, head));
      await this.load(found.flatMap(({ layer, exact }) => (pooled ? [layer.pooled!.maps] : codesOf(exact, state.view))));
      if (state.view === "steps") await this.load(found.flatMap(({ layer }) => [...layer.exact.flatMap((exact) => codesOf(exact, "steps")), layer.output]));
      else if (!pooled) await this.compute(found, own[n][0]);
    }
    const renormalize = state.special === "remove" && cell === 1 && !stacks[0].signed;
    const joined = (heads: (readonly [number, number])[]): Table => {
      const [first, second] = places.map((place, n) => {
        const found = heads.map(([layer, head]) => place(layer, head));
        const [row, error] = mean(found.map((each) => (pooled ? this.pooledRow(each) : this.exactRow(each.exact!))));
        return merge(row, error, ...(cell > 1 && pooled ? [single(rows), single(columns)] as const : own[n]), renormalize);
      });
      return second ? subtract(first, second) : first;
    };
    const vectors = (layer: number, head: number) => this.vectors(places[0](layer, head).exact);
    const table = (layer: number, ...heads: number[]) => joined(heads.map((head) => [layer, head] as const));
    const mix = (layer: number, head: number, i: number) => this.mix(places[0](layer, head), i);
    const differs = shown.length > 1;
    const found = (number: number, head: number) => {
      const { layer } = places[0](number, head);
      return differs || state.special === "remove" ? null : (layer.found?.[layer.heads.indexOf(head)] ?? null);
    };
    const signed = differs || stacks[0].signed;
    return { mean: () => joined(wanted), state, result: shown[0], stack: stacks[0], layers, rows, columns, units, cell, signed, differs, notes, scale: this.source.payload.scale, table, vectors, found, mix };
  }

  private async load(codes: (Codes | undefined)[]): Promise<void> {
    const blocks = new Set(codes.flatMap((each) => each?.block ?? []));
    const missing = [...blocks].filter((block) => !this.bytes.has(block));
    const found = await Promise.all(missing.map((block) => inflate(this.source.blocks[block])));
    missing.forEach((block, n) => this.bytes.set(block, found[n]));
  }

  private part(codes: Codes, start: number, count: number, step = 1): Float32Array {
    return decode(codes, this.bytes.get(codes.block)!, start, count, step);
  }

  private exactRow(exact: Exact): Rows {
    if (!exact.map) return [(i) => this.known.get(exact)!.get(i)!, exact.error];
    const { map } = exact;
    return [(i) => this.part(map, i, map.shape[1], map.shape[0]), exact.error];
  }

  private pooledRow({ layer, head }: Place): Rows {
    const { maps, rows, columns } = layer.pooled!;
    const at = layer.heads.indexOf(head);
    const scale = typeof maps.scale === "number" ? maps.scale : maps.scale[at];
    return [(r) => this.part(maps, at * rows * columns + r, columns, rows), maps.kind === "signed" ? scale / 2 : scale / maps.levels];
  }

  private vectors(exact: Exact | null): Vectors | null {
    if (!exact?.query || !exact.key || !exact.rule) return null;
    const [query, key] = [exact.query, exact.key].map((codes) => this.part(codes, 0, codes.shape[0] * codes.shape[1]));
    const { rule, map } = exact;
    const d = exact.key.shape[1];
    const computed = (i: number) => weights(query.subarray(i * d, (i + 1) * d), key, rule, i);
    const given = (i: number) => Float64Array.from(this.part(map!, i, map!.shape[1], map!.shape[0]));
    return { query, key, d, rule, weights: map ? given : computed, error: exact.error };
  }

  private mix({ layer, exact }: Place, i: number): Mix | null {
    if (!exact?.value) return null;
    const whole = (codes: Codes) => this.part(codes, 0, codes.shape[0] * codes.shape[1]);
    const d = exact.value.shape[1];
    const heads = new Float32Array(layer.exact.length * d);
    for (const [h, each] of layer.exact.entries()) {
      if (!each?.value) return null;
      const [weights, value] = [this.vectors(each)!.weights(i), whole(each.value)];
      weights.forEach((weight, j) => {
        for (let c = 0; weight && c < d; c++) heads[h * d + c] += weight * value[j * d + c];
      });
    }
    const output = layer.output ? this.part(layer.output, i * layer.output.shape[1], layer.output.shape[1]) : null;
    const error = (codes: Codes | undefined) => (codes ? Number(codes.scale) / 2 : 0);
    const worst = Math.max(...layer.exact.map((each) => error(each!.value!)));
    return { value: whole(exact.value), d, heads, output, errors: [worst, error(layer.output)] };
  }

  /** Recompute rows of heads whose q and k are stored instead of their maps. */
  private async compute(places: Place[], rows: Side): Promise<void> {
    let [since, kept] = [performance.now(), 0];
    for (const found of this.known.values()) for (const row of found.values()) kept += row.length;
    if (kept > MOST_KEPT) this.known.clear();
    for (const { exact } of places) {
      if (!exact || exact.map) continue;
      const found = this.known.get(exact) ?? new Map<number, Float32Array>();
      this.known.set(exact, found);
      // the first query shows whether heads may rest on the first word
      const missing = [0, ...rows.units.positions.slice(rows.from, rows.to).flat()].filter((i) => !found.has(i));
      if (!missing.length) continue;
      const { weights } = this.vectors(exact)!;
      for (const i of missing) {
        found.set(i, Float32Array.from(weights(i)));
        if (performance.now() - since < 25) continue;
        await new Promise((resume) => setTimeout(resume));
        since = performance.now();
      }
    }
  }
}

function layersOf(state: State, stack: Stack): Look["layers"] {
  const one = state.view === "steps" || (state.view === "head" && !state.mean);
  const seen = (layer: Layer) => (one ? layer.layer === state.layer : !state.layers || state.layers.includes(layer.layer));
  const heads = (layer: Layer) =>
    one ? state.heads : layer.heads.filter((head) => !state.only || state.only.includes(head));
  return stack.layers.filter(seen).map((layer) => ({ layer, heads: heads(layer) }));
}

function placeOf(stack: Stack, layer: number, head: number): Place {
  const found = stack.layers.find((each) => each.layer === layer)!;
  return { layer: found, head, exact: found.exact[found.heads.indexOf(head)] };
}

function codesOf(exact: Exact | null, view: State["view"]): (Codes | undefined)[] {
  if (!exact) return [];
  if (view === "steps") return [exact.query, exact.key, exact.value, exact.map];
  return exact.map ? [exact.map] : [exact.query, exact.key];
}

/** Select rows and columns: the visible words or pieces, or cells that pool them. */
function sidesOf(
  state: State,
  shown: Result[],
  stacks: Stack[],
  layers: Look["layers"],
  exact: boolean,
  aligned?: Aligned,
): { rows: Side; columns: Side; own: [Side, Side][]; units: [Units, Units]; pooled: boolean; cell: number; notes: string[] } {
  const steps = state.view === "steps";
  const axes = stacks.map(({ queries, keys }, n) => [shown[n].axes[queries], shown[n].axes[keys]]);
  const split = (words: boolean) =>
    axes.map((pair) => pair.map((axis) => unitsOf(axis, words && !steps, state.special === "keep" || steps)));
  const notes = steps && state.show === "difference" ? ["The step-by-step view shows the first text"] : [];
  let units = split(state.words || aligned !== undefined);
  if (aligned) {
    const all = units.map(([queries]) => queries.labels.length);
    const isThere = (side: number) => (pair: [number, number]) => pair.every((position, n) => units[n][side].of[position] >= 0);
    units = units.map((pair, n) => pair.map((axis, side) => chosenUnits(axis, aligned[side].filter(isThere(side)).map((both) => both[n]))));
    const count = units[0][0].labels.length;
    notes.push(`Only words that stand in both texts are compared: ${count} of ${all[0]} in text 1 and of ${all[1]} in text 2`);
  } else if (units.length > 1 && !(isAlike(units[0][0], units[1][0]) && isAlike(units[0][1], units[1][1]))) {
    notes.push("The words of the two texts have different pieces, so pieces are compared");
    units = split(false);
  }
  const join = (side: number, pairs: Units[][]) => (pairs.length > 1 ? paired(pairs[0][side], pairs[1][side]) : pairs[0][side]);
  const cut = (left: Units, across: Units): [Side, Side] => {
    const [m, n] = axes[0].map(({ labels }) => labels.length);
    const range = state.view === "grid" ? null : state.range;
    const [a, b, c, d] = range ?? [0, m, 0, n];
    const rows = part(left, a, b);
    const columns = part(across, c, d);
    const one = (side: Side, position: number): Side => {
      const at = unitAt(side.units, position);
      return { units: side.units, from: at, to: at + 1 };
    };
    if (state.view === "token" && state.by === "key") return [rows, one(columns, state.key ?? axes[0][1].word)];
    return state.view === "token" || steps ? [one(rows, state.query ?? axes[0][0].word), columns] : [rows, columns];
  };
  const joined: [Units, Units] = [join(0, units), join(1, units)];
  const [rows, columns] = cut(...joined);
  const own = units.map((pair) => [{ ...rows, units: pair[0] }, { ...columns, units: pair[1] }] as [Side, Side]);
  const size = Math.max(rows.to - rows.from, columns.to - columns.from);
  const isWritten = state.view === "head" && axes[0][0].sentences !== undefined;
  const poolable = !steps && !aligned && layers.every(({ layer }) => layer.pooled);
  const isExact = layers.every(({ layer, heads }) => heads.every((head) => layer.exact[layer.heads.indexOf(head)]));
  if (!poolable || ((exact || isWritten || size <= WIDE) && isExact)) return { rows, columns, own, units: joined, pooled: false, cell: 1, notes };
  const { cell, rows: down, columns: across } = layers[0].layer.pooled!;
  if (cell === 1) return { rows, columns, own, units: joined, pooled: true, cell, notes }; // a short text: nothing is pooled
  const cells = axes.map(([left, right]) => [cellsOf(left, cell, down), cellsOf(right, cell, across)]);
  const [left, right] = cut(join(0, cells), join(1, cells));
  const keptSpecial = state.special === "keep" ? [] : ["special tokens are included"];
  if (isExact && state.view === "token" && state.by === "query") {
    notes.push(`Each cell joins ${cell} keys, whose weights are summed`, ...keptSpecial);
    const cellular = cells.map((pair, n) => [own[n][0], { ...right, units: pair[1] }] as [Side, Side]);
    return { rows, columns: right, own: cellular, units: joined, pooled: false, cell, notes };
  }
  notes.push(`Each cell joins ${cell} × ${cell} tokens: weights summed over keys, averaged over queries`, ...keptSpecial);
  if (!isExact) notes.push(ONLY_POOLED);
  else if (state.view === "head") notes.push("zoom in for single tokens: wheel, pinch, or + on the map");
  return { rows: left, columns: right, own: axes.map(() => [left, right]), units: joined, pooled: true, cell, notes };
}

/** Treat a side of cells as single positions, for the numbers of a pooled map. */
function single({ units, from, to }: Side): Side {
  const positions = units.positions.map((_, at) => [at]);
  return { units: { ...units, positions, of: Int32Array.from(positions, ([at]) => at) }, from, to };
}

function mean(heads: Rows[]): Rows {
  if (heads.length === 1) return heads[0];
  const row = (position: number) => {
    const rows = heads.map(([row]) => row(position));
    return Float64Array.from(rows[0], (_, j) => rows.reduce((sum, row) => sum + row[j], 0) / rows.length);
  };
  return [row, Math.max(...heads.map(([, error]) => error))];
}

function subtract(first: Table, second: Table): Table {
  return {
    values: first.values.map((value, n) => value - second.values[n]),
    errors: first.errors.map((error, n) => error + second.errors[n]),
    masked: first.masked.map((masked, n) => masked & second.masked[n]),
    uninformative: first.uninformative,
    kept: first.kept.map((kept, n) => (kept + second.kept[n]) / 2),
  };
}
