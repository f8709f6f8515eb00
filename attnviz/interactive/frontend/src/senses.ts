/** The occurrences of a word as dots, each with its sentence. */

import { el } from "./dom";
import { svg } from "./explorer/svg";

export interface Senses {
  senses: string[];
  occurrences: { sentence: string; sense: number; start: number; end: number }[];
  /** For each state of the model, from the input of the first layer to the output; right is null for those in no score. */
  states: { name: string; places: [number, number][]; right: (number | null)[]; accuracy: number }[];
  best: number;
}

const [WIDE, HIGH, EDGE, DOT] = [420, 300, 16, 6];

export function senses({ senses, occurrences, states, best }: Senses): HTMLElement {
  const dots = occurrences.map(({ sense }) => svg("circle", { r: DOT, class: `sense-${sense}` }));
  const plot = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img" }, ...dots);
  const rows = occurrences.map(({ sentence, sense, start, end }) => {
    const part = (from: number, to?: number) => [...sentence].slice(from, to).join(""); // Python counts characters
    return el("li", { tabindex: 0, class: `sense-${sense}` }, el("span", {}, part(0, start), el("strong", {}, part(start, end)), part(end)));
  });
  const lists = senses.map((name, sense) =>
    el("div", {}, el("h3", { class: `sense-${sense}` }, name), el("ul", {}, ...rows.filter((_, n) => occurrences[n].sense === sense))));
  const title = el("output", {});
  const slider = el("input", { type: "range", min: 0, max: states.length - 1, step: 1, value: best, "aria-label": "Layer", "data-control": "state", input: () => draw(Number(slider.value)) });

  [dots, rows].forEach((some) => some.forEach((node, n) => {
    for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => mark(n, some === dots));
    for (const event of ["pointerleave", "blur"]) node.addEventListener(event, () => mark(null, false));
  }));
  /** Mark a dot and its sentence; bring the sentence into sight. */
  function mark(at: number | null, reveal: boolean): void {
    dots.forEach((dot, n) => dot.classList.toggle("marked", n === at));
    rows.forEach((row, n) => row.classList.toggle("marked", n === at));
    if (at !== null && reveal) rows[at].scrollIntoView({ block: "nearest" });
  }
  function draw(at: number): void {
    const { name, places, right, accuracy } = states[at];
    const side = (axis: 0 | 1) => places.map((place) => place[axis]);
    const [low, high] = [([0, 1] as const).map((axis) => Math.min(...side(axis))), ([0, 1] as const).map((axis) => Math.max(...side(axis)))];
    const scale = Math.min((WIDE - 2 * EDGE) / (high[0] - low[0] || 1), (HIGH - 2 * EDGE) / (high[1] - low[1] || 1));
    dots.forEach((dot, n) => {
      dot.setAttribute("cx", String(WIDE / 2 + scale * (places[n][0] - (low[0] + high[0]) / 2)));
      dot.setAttribute("cy", String(HIGH / 2 - scale * (places[n][1] - (low[1] + high[1]) / 2)));
      const share = right[n];
      dot.classList.toggle("wrong", share !== null && share < 0.5);
      dot.classList.toggle("alike", share === null);
    });
    title.textContent = `${name}: ${Math.round(100 * accuracy)} % nearest to their own sense`;
    plot.setAttribute("aria-label", `${title.textContent}. The sentences follow.`);
  }
  draw(best);
  return el("div", { class: "senses" },
    el("div", { class: "plane" }, el("label", {}, slider, title), plot, el("small", {}, "A dot is one sentence; hollow: nearer to another sense; gray: in no score. Point at one to read it.")),
    el("div", { class: "sentences" }, ...lists));
}
