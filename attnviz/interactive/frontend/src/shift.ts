/** What moved a word: the text, with the effect of changing each word and its contribution. */

import { el } from "./dom";
import { literal } from "./text";

export interface Shift {
  headline: string;
  details: string[];
  /** What the filled and the open bars are; without effects the contributions are filled. */
  lost: string | null;
  credited: string;
  /** The unit of the numbers, to follow them. */
  unit: string;
  words: { text: string; special: boolean; explained: boolean; lost: number | null; credited: number | null }[];
}

const NUMBERED = 3; // words with a number at their bar,
const WORTH = 0.1; // of the longest bar, or more
const SEEN = 0.01; // of the largest bar: special tokens with less are left out

export function shift({ headline, details, lost, credited, unit, words }: Shift): HTMLElement {
  type Word = Shift["words"][number];
  const names = lost === null ? [credited] : [lost, credited];
  const numbers = (word: Word) => (lost === null ? [word.credited] : [word.lost, word.credited]);
  const size = (word: Word) => Math.abs(numbers(word)[0] ?? 0);
  const largest = Math.max(...words.map(size), 1e-9);
  const longest = (word: Word) => Math.max(...numbers(word).map((value) => Math.abs(value ?? 0)));
  const shown = words.filter((word) => !word.special || longest(word) > SEEN * largest);
  const ends = shown.flatMap((word) => numbers(word).map((value) => value ?? 0));
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const place = (value: number) => `${(100 * (high - value)) / (high - low || 1)}%`;
  const order = [...shown].sort((a, b) => size(b) - size(a));
  const numbered = new Set(order.slice(0, NUMBERED).filter((word) => size(word) >= WORTH * largest));
  const said = el("output", {});
  const plain = "Point at a word for its numbers.";
  said.textContent = plain;

  function bar(name: string, value: number): HTMLElement {
    const node = el("span", { class: `${name} ${value < 0 ? "down" : "up"}` });
    node.style.setProperty("--from", place(Math.max(value, 0)));
    node.style.setProperty("--to", `calc(100% - ${place(Math.min(value, 0))})`);
    return node;
  }
  const nodes = shown.map((word) => {
    const values = numbers(word);
    const known = names.flatMap((name, n) => (values[n] == null ? [] : [`${name} ${number(values[n])} ${unit}`]));
    const line = [`${literal(word.text)}: ${known[0] ?? "no number"}`, ...known.slice(1)].join(", ");
    const bars = el("span", { class: "bars-of-word", "aria-hidden": "true" });
    values.forEach((value, n) => value !== null && bars.append(bar(n === 0 ? "first" : "second", value)));
    if (numbered.has(word)) bars.firstElementChild!.append(el("b", {}, number(values[0]!)));
    const node = el("li", { tabindex: 0, title: line, "aria-label": line, class: [word.special && "special", word.explained && "explained"].filter(Boolean).join(" ") },
      el("bdi", {}, literal(word.text)), bars);
    for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => (said.textContent = line));
    for (const event of ["pointerleave", "blur"]) node.addEventListener(event, () => (said.textContent = plain));
    return node;
  });
  const list = el("ul", {}, ...nodes);
  list.style.setProperty("--zero", place(0));
  const key = names.flatMap((name, n) => [el("span", { class: `key ${n === 0 ? "first up" : "second"}` }), name]);
  return el("div", { class: "moved" }, el("h2", {}, headline), el("p", {}, details.join(" ")), el("p", { class: "legend" }, ...key), list, said);
}

function number(value: number): string {
  return `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(2)}`;
}
