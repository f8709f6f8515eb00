/** Information below a view: the verdict, the source of the weights, and notes. */

import type { Payload, Result } from "./data";
import { el } from "./dom";
import { ONLY_POOLED, type Look } from "./reader";
import type { Caption } from "./save";
import type { State } from "./state";
import { ranges } from "./text";

const MOST_OFFERED = 12;
/** What the chip says; other verdicts are alarms. */
export const CHIPS: Partial<Record<Result["verdict"], string>> = { verified: "✓ verified", computed: "✓ computed here", changed: "≠ changed model" };

export interface Footer {
  node: HTMLElement;
  /** The verdict: a chip in the headline, or a red line that stays visible. */
  verdict: HTMLElement;
  follow(look: Look): void;
  caption(look: Look): Caption;
}

export function footer({ results, notes }: Payload): Footer {
  const [brief, whole] = [el("span", { class: "brief" }), el("span", { class: "whole", role: "note" })];
  const verdict = el("div", { class: "verdict", "data-control": "verdict", tabindex: 0 }, brief, whole);
  const source = el("p", { class: "source" });
  const list = el("ul");
  const about = el("details", {}, el("summary", {}, "About these numbers"), list);
  const shown = (look: Look) => (look.differs ? results : [look.result]);
  const worst = (look: Look) => shown(look).find(({ verdict }) => verdict !== "verified") ?? look.result;
  const said = (look: Look) => shown(look).map(({ source }, n) => (look.differs ? `${n + 1}: ${source}` : source)).join(". ");
  /** Describe what is shown, and how it was processed. */
  const parts = (look: Look) => {
    const { state, cell, rows, columns } = look;
    const treated = state.special === "remove" ? look.stack.signed ? "Special tokens removed, rows not renormalized" : "Special tokens removed, rows renormalized to 1" : "Special tokens hidden, rows not renormalized";
    const isMerged = rows.units.positions.concat(columns.units.positions).some(({ length }) => length > 1);
    return [
      said(look),
      ...(cell > 1 || state.special === "keep" || state.view === "steps" ? [] : [treated]),
      ...(cell === 1 && isMerged ? ["Word pieces merged (columns summed, rows averaged)"] : []),
      ...(state.threshold > 0 && state.view !== "steps" ? [`Weights below ${state.threshold} not drawn`] : []),
    ];
  };
  return {
    verdict,
    node: el("footer", {}, source, about),
    follow(look) {
      const result = worst(look);
      verdict.dataset.verdict = result.verdict;
      const chip = CHIPS[result.verdict];
      brief.textContent = chip ?? "";
      whole.textContent = chip ? result.summary : `✗ ${result.summary}`;
      source.textContent = parts(look).join(". ");
      const all = [...shown(look).flatMap(({ notes }) => notes), ...notes];
      list.replaceChildren(...all.map((note) => el("li", {}, note)));
      about.hidden = all.length === 0;
    },
    caption(look) {
      const { summary, verdict } = worst(look);
      return { verdict: summary, isProven: verdict in CHIPS, lines: [`${[...parts(look), ...look.notes].join(". ")}.`] };
    },
  };
}

/** Report what a view lacks, and offer heads that have it. */
export function offer(notice: HTMLElement, look: Look, state: State, isDrawn: boolean, change: (changed: Partial<State>) => void): void {
  const steps = state.view === "steps";
  const lacks = (steps && !isDrawn && !look.stack.signed) || (state.view === "head" && look.notes.includes(ONLY_POOLED));
  const why = look.stack.signed ? "Linear attention has no softmax, and so no steps" : `The queries and keys of layer ${state.layer}, head ${state.heads[0]} are not stored in this page`;
  const said = isDrawn ? look.notes.join("; ") : why;
  const parts: (Node | string)[] = said ? [`${said}. `] : [];
  if (lacks) {
    const heads = look.stack.layers.flatMap(({ layer, heads, exact }) =>
      heads.filter((_, n) => (steps ? exact[n]?.query : exact[n])).map((head) => ({ layer, head })));
    const near = heads.sort((a, b) => Math.abs(a.layer - state.layer) - Math.abs(b.layer - state.layer)).slice(0, MOST_OFFERED);
    const button = ({ layer, head }: { layer: number; head: number }) =>
      el("button", { type: "button", "data-control": `offer-${layer}-${head}`, click: () => change({ layer, heads: [head] }) }, `${layer}.${head}`);
    const layers = [...new Set(heads.map(({ layer }) => layer))].sort((a, b) => a - b);
    const what = steps ? "They are stored" : "Exact weights are stored";
    parts.push(heads.length ? `${what} for ${heads.length} heads of layers ${ranges(layers)}, such as ` : `${what} for no head.`, ...near.map(button));
  }
  notice.replaceChildren(...parts);
  notice.hidden = parts.length === 0;
}
