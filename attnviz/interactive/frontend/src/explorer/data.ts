/** The data of the page of heads, written by Python, and how its words and numbers are written. */

import { literal } from "../text";

export interface Payload {
  model: string;
  caption: string[];
  verdict: string;
  verified: boolean;
  statistics: { name: string; title: string }[];
  /** The tokens of the texts of examples, by number. */
  texts: Record<string, string[]>;
  /** The images or sounds of examples, by number; none for texts. */
  media?: Record<string, Medium>;
  /** What queries and keys are; none for texts, where all are tokens. */
  axes?: Axis[];
  heads: Head[];
}
export interface Medium {
  name: string;
  /** A JPEG as a data URI; empty for a sound. */
  image: string;
  seconds: number;
  /** The least and the largest sample of each part. */
  outline: [low: number, high: number][];
}
export interface Axis {
  kind: "patches" | "frames" | "tokens";
  patches: ([row: number, column: number] | null)[];
  /** The names of positions that are no patches, and "". */
  specials: string[];
  /** Seconds from one frame to the next. */
  step: number;
}
type Numbers = (number | null)[];
export interface Head {
  name: string;
  /** Empty where there is only one. */
  stack?: string;
  /** The indices of the axes of its queries and of its keys. */
  axes?: [queries: number, keys: number] | null;
  layer: number;
  head: number;
  /** Empty if it has none. */
  role: string;
  /** What to print: the role, that it is not confirmed, or nothing. */
  looks: string;
  values: Numbers;
  low: Numbers;
  high: Numbers;
  even: Numbers;
  /** Indices of heads with the most similar maps. */
  similar: number[];
  /** The strongest first. */
  examples: Example[];
  deciles: (Example & { decile: number })[];
  writes: { raises: Written[]; lowers: Written[] } | null;
  /** The loss of log-probability without the head. */
  effect: number | null;
}
export interface Example {
  text: number;
  row: number;
  key: number;
  weight: number;
  /** Of the query, for each token of the text; in thousandths for patches and frames. */
  weights: number[];
  /** The weight of frames after the sound. */
  rest?: number;
}
export type Written = [word: string, change: number, examples: number];

/** What the page shows. */
export interface State {
  head: number;
  /** Statistics on the axes. */
  x: number;
  y: number;
  /** The role that is not faded; null: all. */
  role: string | null;
}

/** Return a displayable token: blanks and ends of lines are visible if it has nothing else. */
export function visible(token: string): string {
  const lines = token.replace(/\r\n|[\r\n]/g, "↵");
  return literal(/^[\s↵]*$/u.test(lines) ? lines.replace(/[^\S↵]/gu, "␣") : lines.trim());
}

/** Format a value with about two decimals. */
export function figure(value: number): string {
  const size = Math.abs(value);
  const written = size >= 99.95 ? size.toFixed(0) : size >= 9.995 ? size.toFixed(1) : size.toFixed(2);
  return (value < 0 && Number(written) ? "−" : "") + written;
}

/** Format a weight: that of a key with little is not zero. */
export function share(value: number): string {
  return value > 0 && value < 0.005 ? "<0.01" : figure(value);
}

/** Return whether a head has a role only by its looks. */
export function isOpen({ role, looks }: Head): boolean {
  return role !== "" && looks !== role;
}

/** Return the title of a statistic as a phrase of its own. */
export function titleOf({ title }: Payload["statistics"][number]): string {
  return title.startsWith("for ") ? `weight ${title}` : title;
}
