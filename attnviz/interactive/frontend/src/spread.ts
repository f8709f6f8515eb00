/** The weights of one word, as a mean over the heads that are shown. */

import type { Scale } from "./colors";
import type { Units } from "./maps";
import type { Reader } from "./reader";
import { quantile } from "./scene";
import type { State } from "./state";
import { literal, number } from "./text";

const NAMED = 3; // words with the largest weights that are named

/** A word of the text: the position of its first piece, among the queries or the keys. */
export interface Word {
  side: "query" | "key";
  position: number;
}
/** The weights from a query to all keys, or from all queries to a key. */
export interface Spread {
  /** Which of the two the weights belong to: the other side than that of the word. */
  side: Word["side"];
  /** Whether queries and keys are the same text. */
  alone: boolean;
  of(position: number): number;
  /** The largest weight of a word; special tokens may have larger ones. */
  top: number;
  signed: boolean;
  /** The largest weights, in words. */
  said: string;
  /** Of contributions to a generated token: their colors, and the position of the token. */
  scale?: Scale;
  token?: number;
}

export async function spread(reader: Reader, state: State, { side, position }: Word): Promise<Spread> {
  const one = state.view === "steps" || (state.view === "head" && !state.mean);
  const heads = state.view === "steps" ? state.heads.slice(0, 1) : state.heads;
  const some = { ...(one && { layers: [state.layer], only: heads }), ...(state.view === "steps" && { words: false, special: "keep" as const, show: state.show === "second" ? "second" as const : "first" as const }) };
  const look = await reader.look({ ...state, ...some, view: "token", by: side, [side]: position, range: null }, true);
  const gives = side === "query";
  const others = (gives ? look.columns : look.rows).units;
  const { values } = look.mean();
  const count = look.layers.reduce((sum, { heads }) => sum + heads.length, 0);
  const words = values.filter((_, n) => !others.special[n]);
  const of = (at: number) => (others.of[at] < 0 ? 0 : values[others.of[at]]);
  const [mine, theirs] = gives ? look.units : [look.units[1], look.units[0]];
  const name = literal(mine.labels[mine.of[position]] ?? "");
  const who = count > 1 ? `mean of ${count} heads` : `layer ${look.layers[0].layer.layer}, head ${look.layers[0].heads[0]}`;
  const most = largest(theirs, of);
  return {
    of, side: gives ? "key" : "query", alone: look.stack.queries === look.stack.keys, signed: look.signed,
    top: Math.max(quantile(words.length ? words : values, 1), 1e-9),
    said: `${gives ? `${name} → ${most}` : `${most} → ${name}`} (${who})`,
  };
}

/** Name the words with the largest weights: station 0.41, left 0.12. */
function largest(units: Units, of: (position: number) => number): string {
  const order = units.positions.map(([first], n) => [of(first), n]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
  return order.slice(0, NAMED).map(([value, n]) => `${literal(units.labels[n])} ${number(value, 0.005)}`).join(", ");
}
