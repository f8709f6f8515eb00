/** Why a token was generated: the words before it in the colors of their contributions, with a line that says so. */

import { color, palette, type Scale, type Theme } from "./colors";
import type { Explanation, Source } from "./data";
import { el } from "./dom";
import type { Look } from "./reader";
import type { Spread, Word } from "./spread";
import { tick } from "./text";

const WAIT = 250; // milliseconds that the pointer rests on a token before a server is asked
const INVITE = "Point at a generated token: the words before it are colored by what they contributed to it.";

export interface Explanations {
  node: HTMLElement;
  /** Return the position of the token that is explained for a word; null if it has no explanation. */
  find(look: Look, word: Word | null): number | null;
  /** Show the explanation of a token, and return its colors once it is known; null without one. */
  show(look: Look, position: number | null, theme: Theme, isChosen: boolean): Promise<Spread | null>;
  /** Cancel what was asked of a server. */
  stop(): void;
}

export function explanations({ payload, explain }: Source): Explanations {
  const known = new Map((payload.explanations ?? []).map((one) => [one.position, one]));
  const headline = el("p", { class: "found", role: "status", "aria-live": "polite" });
  const bar = el("span", { class: "scale" });
  const [low, high] = [el("span"), el("span")];
  const key = el("p", { class: "key" }, low, bar, high);
  const details = el("p", { class: "details" });
  const node = el("div", { class: "why", "data-control": "why", hidden: !known.size && !explain }, headline, key, details);
  let asking: { position: number; control: AbortController; answer: Promise<Explanation | null> } | null = null;

  const first = ({ result, stack }: Look) => result.axes[stack.queries].generated;
  function tell(line: string): void {
    headline.textContent = line;
    key.hidden = details.hidden = true;
  }
  /** Return the explanation of a token, which a server is asked for once; null if it is not known. */
  async function get(position: number, isChosen: boolean): Promise<Explanation | null> {
    const found = known.get(position);
    if (asking?.position !== position) cancel();
    if (found || !explain) return found ?? null;
    if (!asking) {
      const control = new AbortController();
      asking = { position, control, answer: request(position, isChosen, control.signal) };
    }
    return asking.answer;
  }
  /** Ask the server: at once for a chosen token, else when the pointer rests on it. */
  async function request(position: number, isChosen: boolean, signal: AbortSignal): Promise<Explanation | null> {
    try {
      if (!isChosen) await new Promise((done) => setTimeout(done, WAIT));
      if (signal.aborted) return null;
      tell("Explaining this token …");
      const answer = await explain!(position, signal, (line) => signal.aborted || tell(line));
      known.set(position, answer);
      return answer;
    } catch (error) {
      if (!signal.aborted) tell(error instanceof Error ? error.message : String(error));
      return null;
    } finally {
      if (!signal.aborted) asking = null;
    }
  }
  function cancel(): void {
    asking?.control.abort();
    asking = null;
  }
  return {
    node,
    stop: cancel,
    find(look, word) {
      const start = first(look);
      if (node.hidden || look.differs || !look.state.explain || start === null) return null;
      if (!word) return known.size && !explain ? Math.min(...known.keys()) : null;
      if (word.side !== "query") return null;
      const unit = look.units[0].of[word.position];
      const position = look.units[0].positions[unit]?.find((piece) => piece >= start);
      return position !== undefined && (explain || known.has(position)) ? position : null;
    },
    async show(look, position, theme, isChosen) {
      if (position === null) {
        cancel();
        tell(look.state.explain ? INVITE : "Pointing at a token shows its attention.");
        return null;
      }
      const found = await get(position, isChosen);
      if (!found) return null;
      const scale: Scale = { map: theme.signed, low: -found.top, high: found.top, log: false, label: found.unit };
      headline.textContent = found.headline;
      low.textContent = `${found.lowers}, ${tick(-found.top)}`;
      high.textContent = `raises it, ${tick(found.top)} ${found.unit}`;
      bar.style.background = `linear-gradient(90deg, ${stops(scale)})`;
      details.textContent = found.details;
      details.classList.toggle("wrong", found.verdict !== "verified");
      key.hidden = details.hidden = false;
      const { positions, of } = look.units[0];
      /** The sum over the pieces of a word; NaN if it is not measured, or not read. */
      const sum = (at: number) => positions[of[at]].reduce((total, piece) => total + (found.credit[piece] ?? NaN), 0);
      return { side: "query", alone: true, of: sum, top: found.top, signed: true, said: `${found.headline} (colors from ${tick(-found.top)} to ${tick(found.top)})`, scale, token: position };
    },
  };
}

function stops(scale: Scale): string {
  const count = palette(scale.map).length / 3 >> 4;
  return Array.from({ length: count + 1 }, (_, n) => color(scale, scale.low + (n / count) * (scale.high - scale.low))).join(", ");
}
