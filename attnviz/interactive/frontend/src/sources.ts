/** Which part of a text raised each word of an answer: the parts are marked in the text, and the answer stands below. */

import type { Payload } from "./data";
import { el, reveal, step } from "./dom";

const INVITE = "Point at a word of the answer for its own numbers.";
const DEEPEST = 38; // percent of color of the largest number
/** Return how much color stands for a share of the largest number. */
const deep = (share: number) => `${Math.round(DEEPEST * Math.min(1, Math.abs(share)))}%`;

export interface Sources {
  /** The answer, and what is said of the word that is pointed at. */
  node: HTMLElement;
  /** Put the words of a text, with the first position of each, into its marked parts. */
  wrap(words: (HTMLElement | null)[], firsts: number[]): Node[];
  /** Light the part of the word that is pointed at, once the parts are in the page. */
  light(): void;
}

export function sources({ sources: known }: Payload): Sources {
  const node = el("div", { class: "reply", "data-control": "answer", hidden: !known });
  const present = (words: (HTMLElement | null)[]) => words.filter((word) => word !== null);
  if (!known) return { node, wrap: present, light: () => undefined };

  const { parts: kind, places, rows, words } = known;
  const of = new Map(places.flatMap((place, part) => place.map((position) => [position, part] as const)));
  const isMeasured = (part: number) => rows[0].lost[part] !== "–";
  let marked: { part: number; node: HTMLElement; lost: HTMLElement }[] = [];
  let [hovered, focused] = [0, 0]; // rows; the first one is the whole answer

  const buttons = words.map((word, n) => {
    const { lit, share = 0 } = rows[n + 1];
    const button = el("button", { type: "button", class: "word", tabindex: n ? -1 : 0, "data-row": n + 1 }, word, ...(lit === null ? [] : [el("sup", {}, String(lit + 1))]));
    button.style.setProperty("--share", deep(share));
    return button;
  });
  const said = el("p", { class: "found", role: "status", "aria-live": "polite" });
  const line = el("p", { class: "line", role: "group", "aria-label": "The answer" }, el("span", { class: "side" }, "answer"), ...buttons);
  const details = el("p", { class: "details" }, known.details, " ", el("span", { class: "wrong" }, known.alarm));
  node.append(line, said, el("p", {}, `${rows[0].said} ${INVITE}`), details);
  const row = (event: Event) => Number((event.target instanceof Element ? event.target.closest<HTMLElement>(".word") : null)?.dataset.row ?? 0);
  const point = (event: Event) => {
    hovered = row(event);
    light();
  };
  line.addEventListener("mouseover", point);
  line.addEventListener("mouseleave", point);
  line.addEventListener("focusin", (event) => {
    focused = row(event);
    light();
  });
  line.addEventListener("focusout", () => {
    focused = 0;
    light();
  });
  line.addEventListener("click", (event) => buttons[row(event) - 1]?.focus());
  line.addEventListener("keydown", (event) => step(event, buttons));

  function wrap(some: (HTMLElement | null)[], firsts: number[]): Node[] {
    const found: Node[] = [];
    let [last, inner]: [number | undefined, HTMLElement | null] = [undefined, null];
    if (!firsts[0]) marked = [];
    some.forEach((word, n) => {
      if (!word) return;
      const part = of.get(firsts[n]);
      if (part === undefined) found.push(word);
      else if (part === last && inner) inner.append(word);
      else {
        const lost = el("span", { class: "lost" });
        inner = el("span", {}, word);
        const whole = el("span", { class: `group ${kind}${isMeasured(part) ? "" : " stays"}`, "data-part": part }, el("span", { class: "number" }, String(part + 1)), inner, lost);
        marked.push({ part, node: whole, lost });
        found.push(whole);
      }
      last = part;
    });
    return found;
  }
  function light(): void {
    const at = hovered || focused;
    const { said: text, lit, lost: numbers, share = 0 } = rows[at];
    said.textContent = at ? text : known!.headline;
    for (const [n, button] of buttons.entries()) button.classList.toggle("chosen", n + 1 === at);
    for (const { part, node, lost } of marked) {
      lost.textContent = numbers[part];
      node.classList.toggle("lit", part === lit);
      node.classList.toggle("asked", part === lit && at > 0);
      node.classList.toggle("dim", at > 0 && lit !== null && part !== lit);
      node.classList.toggle("lowers", part === lit && share < 0);
      node.style.setProperty("--share", deep(share));
    }
    const shown = marked.find(({ part }) => part === lit);
    if (at && shown) reveal(shown.node, shown.node.closest<HTMLElement>(".text"));
  }
  return { node, wrap, light };
}
