/** What moved a word: the text, with what each word brought and what is lost by changing it. */

import { el } from "./dom";
import { literal } from "./text";

export interface Shift {
  headline: string;
  details: string[];
  /** What the filled and the open bars are; without effects there are no open ones. */
  brought: string;
  lost: string | null;
  /** The unit of the numbers, to follow them. */
  unit: string;
  words: { text: string; special: boolean; explained: boolean; brought: number; lost: number | null }[];
}

const NUMBERED = 3; // words with a number at their bar,
const WORTH = 0.1; // of the longest bar, or more
const SEEN = 0.01; // of the largest bar: special tokens with less are left out

export function shift({ headline, details, brought, lost, unit, words }: Shift): HTMLElement {
  const largest = Math.max(...words.map((word) => Math.abs(word.brought)), 1e-9);
  const shown = words.filter(({ special, brought }) => !special || Math.abs(brought) > SEEN * largest);
  const ends = shown.flatMap((word) => [word.brought, word.lost ?? 0]);
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const place = (value: number) => `${(100 * (high - value)) / (high - low || 1)}%`;
  const order = [...shown].sort((a, b) => Math.abs(b.brought) - Math.abs(a.brought));
  const numbered = new Set(order.slice(0, NUMBERED).filter(({ brought }) => Math.abs(brought) >= WORTH * largest));
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
    const line = [
      `${literal(word.text)}: ${brought} ${number(word.brought)} ${unit}`,
      ...(word.lost === null || lost === null ? [] : [`${lost} ${number(word.lost)}`]),
    ].join(", ");
    const bars = el("span", { class: "bars-of-word", "aria-hidden": "true" }, bar("brought", word.brought));
    if (word.lost !== null) bars.append(bar("lost", word.lost));
    if (numbered.has(word)) bars.firstElementChild!.append(el("b", {}, number(word.brought)));
    const node = el("li", { tabindex: 0, title: line, "aria-label": line, class: [word.special && "special", word.explained && "explained"].filter(Boolean).join(" ") },
      el("bdi", {}, literal(word.text)), bars);
    for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => (said.textContent = line));
    for (const event of ["pointerleave", "blur"]) node.addEventListener(event, () => (said.textContent = plain));
    return node;
  });
  const list = el("ul", {}, ...nodes);
  list.style.setProperty("--zero", place(0));
  const key = [el("span", { class: "key brought up" }), brought, ...(lost === null ? [] : [el("span", { class: "key lost" }), lost])];
  return el("div", { class: "moved" }, el("h2", {}, headline), el("p", {}, details.join(" ")), el("p", { class: "legend" }, ...key), list, said);
}

function number(value: number): string {
  return `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(2)}`;
}
