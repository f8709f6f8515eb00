/** The top of a page: the text with words to click, the model, the verdict, and one line of help. */

import { color, DARK, isDark, LIGHT, signedInk, type Theme } from "./colors";
import type { Axis, Payload, Waveform } from "./data";
import { el, reveal, step, stop } from "./dom";
import type { Units } from "./maps";
import { CHIPS } from "./footer";
import { CanvasPen, measure, type Pen } from "./pen";
import { startsOf } from "./paragraph";
import type { Look } from "./reader";
import type { Drawing } from "./save";
import { isPicture } from "./picture";
import type { Box, Spot } from "./scene";
import type { Sources } from "./sources";
import type { Spread, Word } from "./spread";
import type { State } from "./state";
import { literal, percent } from "./text";

const HELP: Record<State["view"], string> = {
  grid: "Each square is one head. Rows look at columns. Click one.",
  head: "Each line is a weight, from a query (left) to a key (right). Click a word to keep its lines.",
  token: "Each row is one head, and each column a word. Click a row to open its head, or a word above.",
  steps: "Query times key gives a score, and softmax turns scores into weights. Click a word above for its steps.",
};

const WRITTEN = "A dashed box looks at a solid one. Point at a word for all its lines, and click to keep them.";

const [LETTERS, FRAME, ROW] = [15, 12, 26]; // pixels, in a file: size of letters, most width of a frame (also on the page), height of a line
const WAVE = 40; // pixels of height of the outline of a sound
const MIXED = 85; // percent of color of the word with the largest weight
const MOST_FRAMES = 400; // of a sound, to be drawn as a strip
const SHORT = 120; // characters of a text in large letters
const NAME = 24; // most characters of a name in the line of help

export interface Headline {
  /** The headline, with the verdict in it or, if it is an alarm, below it. */
  nodes: HTMLElement[];
  follow(look: Look, found: (label: string) => boolean): void;
  /** Color the words by the weights of one of them, special tokens in gray; null removes the colors. */
  paint(spread: Spread | null, theme: Theme): void;
  /** Show what the model predicts after a word; null: after the whole text. */
  predict(look: Look, word: Word | null): void;
  /** Return the colored text as a drawing, for a file; null if it has no colors. */
  sentence(width: number): Drawing | null;
}

/** The words of the queries or of the keys; patches of a picture have none. */
interface Line {
  side: Word["side"];
  units: Units;
  words: (HTMLElement | null)[];
  node: HTMLElement;
  sound: Sound | null;
}
/** The outline of a sound, above its frames. */
interface Sound {
  waveform: Waveform;
  /** Seconds that the frames take. */
  seconds: number;
  canvas: HTMLCanvasElement;
}

export function headline({ results }: Payload, verdict: HTMLElement, why: HTMLElement, sources: Sources, on: { point(word: Word | null): void; press(word: Word): void }): Headline {
  const text = el("div", { class: "text" });
  const model = el("span", { class: "model" });
  const help = el("p", { class: "hint", "aria-live": "off" });
  const proof = el("div", { class: "proof" }, model);
  const next = el("p", { class: "next", "data-control": "next", title: "The most probable next tokens, by the run that is shown" });
  const node = el("header", { class: "headline" }, text, proof, sources.node, why, help, next);
  let lines: Line[] = [];
  let drawn: unknown[] = [];
  let base = "";
  let painted: { spread: Spread | null; theme: Theme } | null = null;
  let chosen: Word | null = null;

  const wordOf = (event: Event): Word | null => {
    const target = event.target instanceof Element ? event.target.closest<HTMLElement>(".word") : null;
    return target && { side: target.dataset.side as Word["side"], position: Number(target.dataset.position) };
  };
  text.addEventListener("mouseover", (event) => on.point(wordOf(event)));
  text.addEventListener("mouseleave", () => on.point(null));
  text.addEventListener("focusin", (event) => on.point(wordOf(event)));
  text.addEventListener("focusout", () => on.point(null));
  text.addEventListener("click", (event) => {
    const word = wordOf(event);
    if (word) on.press(word);
  });
  text.addEventListener("keydown", (event) => step(event, all()));
  const all = () => lines.flatMap(({ words }) => words.filter((word) => word !== null));
  function named(name: string): HTMLElement {
    return el("span", { class: "side" }, name);
  }
  function build(look: Look): void {
    const { result, stack } = look;
    const line = (side: Word["side"], units: Units, axis: Axis, name: string): Line => {
      const { patches, frames: seconds, labels } = axis;
      const isFirst = axis === results[0].axes[0];
      const frames = seconds !== null;
      const sound = seconds !== null && result.waveform ? { waveform: result.waveform, seconds: seconds * units.labels.length, canvas: el("canvas", { class: "wave", role: "img", "aria-label": "The sound" }) } : null;
      const words = units.labels.map((label, unit) =>
        patches?.[units.positions[unit][0]] || (frames && units.labels.length > MOST_FRAMES) ? null : el("button", {
          type: "button", tabindex: -1, "data-side": side, "data-position": units.positions[unit][0], title: frames && literal(label), "aria-label": frames && literal(label),
          class: `word${units.special[unit] ? " special" : ""}${units.unknown[unit] ? " unknown" : ""}${frames ? " frame" : ""}${/^[.,;:!?…)\]}»”’%]+$/.test(label) ? " tight" : ""}`,
        }, frames ? "" : literal(label)));
      const shown = (from: number, to?: number) => isFirst ? sources.wrap(words.slice(from, to), units.positions.slice(from, to).map(([first]) => first)) : words.slice(from, to).filter((word) => word !== null);
      const parts: Node[] = name ? [named(name)] : [];
      if (patches || frames) parts.push(named(result.name));
      if (units.generated === null) parts.push(...shown(0));
      else parts.push(...shown(0, units.generated), el("span", { class: "made" }, named("generated"), ...shown(units.generated)));
      if (sound) {
        const frame = (event: MouseEvent): Word | null => {
          const { left, width } = sound.canvas.getBoundingClientRect();
          const at = units.positions[Math.floor(((event.clientX - left) / width) * units.positions.length)];
          return at ? { side, position: at[0] } : null;
        };
        sound.canvas.addEventListener("mousemove", (event) => on.point(frame(event)));
        sound.canvas.addEventListener("click", (event) => {
          const word = frame(event);
          if (word) on.press(word);
        });
        const strip = el("span", { class: "strip" }, ...parts.splice(parts.findIndex((part) => words.some((word) => word === part)) >>> 0));
        const column = el("span", { class: "sound" }, sound.canvas, strip);
        column.style.setProperty("--wide", `${FRAME * labels.length}px`);
        parts.push(column);
      }
      return { side, units, words, sound, node: el("p", { class: frames && "frames", role: "group", "aria-label": name || "Text" }, ...parts) };
    };
    const [queries, keys] = [result.axes[stack.queries], result.axes[stack.keys]];
    lines = queries === keys ? [line("query", look.units[0], queries, "")]
      : [line("query", look.units[0], queries, "queries"), line("key", look.units[1], keys, "keys")];
    const letters = all().reduce((sum, word) => sum + word.textContent!.length + 1, 0);
    text.classList.toggle("short", letters <= SHORT);
    text.replaceChildren(...lines.map(({ node }) => node));
    if (all().length) stop(all()[0], all());
    sources.light();
  }
  return {
    nodes: [node, verdict],
    follow(look, found) {
      const isAlarm = !(verdict.dataset.verdict! in CHIPS);
      if (!isAlarm && verdict.parentElement !== proof) proof.append(verdict);
      if (isAlarm && verdict.parentElement === proof) node.after(verdict); // it stays in the window
      const now = [look.result, ...look.units];
      if (now.some((part, n) => part !== drawn[n] && JSON.stringify(part) !== JSON.stringify(drawn[n]))) build(look);
      drawn = now;
      model.textContent = [...new Set((look.differs ? results : [look.result]).map(({ model }) => model))].join(" and ");
      const usual = look.state.view === "head" && startsOf(look) ? WRITTEN : HELP[look.state.view];
      help.textContent = base = `${look.differs ? `${sidesOf(look, results)} ${usual.replace("a weight,", "a difference of weights,")}` : usual}${isPicture(look.result.axes[look.stack.queries]) ? " Point at the picture." : ""}`;
      chosen = chosenOf(look);
      for (const { side, units, words } of lines) {
        const unit = chosen === null || chosen.side !== side ? -1 : units.of[chosen.position];
        words.forEach((word, n) => {
          if (!word) return;
          word.classList.toggle("chosen", n === unit);
          word.classList.toggle("found", found(units.labels[n]));
        });
        if (words[unit]) reveal(words[unit], text);
      }
    },
    paint(spread, theme) {
      painted = { spread, theme };
      for (const line of lines) {
        if (line.sound) drawSound(line.sound, line, spread, theme);
        line.words.forEach((word, n) => {
          if (!word) return;
          const { ink, percent: part, text: letters } = tint(line, n, spread, theme);
          word.style.background = part ? `color-mix(in srgb, ${ink} ${Math.round(part)}%, transparent)` : "";
          word.style.color = letters;
          const token = line.side === "query" ? spread?.token : undefined;
          word.classList.toggle("explained", token !== undefined && line.units.of[token] === n);
          word.classList.toggle("unread", token !== undefined && line.units.positions[n][0] > token);
        });
      }
      help.textContent = spread && !spread.scale ? spread.said : base;
    },
    sentence(width) {
      const { spread, theme } = painted ?? {};
      const seen = lines.filter(({ words, sound }) => sound || words.some((word) => word));
      if (!spread || !theme || !seen.length) return null;
      const rows = seen.map((line) => laidOut(line, width));
      const heights = rows.map((places, k) => (Math.max(-1, ...places.map(({ row }) => row)) + 1) * ROW + (seen[k].sound ? WAVE : 0));
      const height = heights.reduce((a, b) => a + b, 0) + ROW;
      return {
        width, height,
        draw(pen, left, top) {
          let start = top;
          seen.forEach((line, k) => {
            const over = line.sound ? WAVE : 0;
            if (line.sound) outline(pen, line.sound, { x: left, y: start, w: Math.min(width, FRAME * line.units.labels.length), h: WAVE - 4 }, line, spread, theme);
            for (const { n, x, w, row, size } of rows[k]) {
              const { ink, percent: part, text: letters } = tint(line, n, spread, theme);
              const y = start + over + row * ROW;
              if (part) pen.rect(left + x, y + 2, w, ROW - 4, ink, part / 100);
              if (line.words[n]!.classList.contains("frame")) pen.frame(left + x, y + 2, w, ROW - 4, theme.faint, 0.5);
              else pen.text(literal(line.units.labels[n]), left + x + w / 2, y + ROW / 2, { size, fill: letters || (line.units.special[n] ? theme.muted : theme.ink), align: "center" });
              const marked = spread.token ?? (chosen?.side === line.side ? chosen.position : -1);
              if (line.units.of[marked] === n) pen.frame(left + x, y + 2, w, ROW - 4, theme.ink, 1.5);
            }
            start += heights[k];
          });
          pen.text(spread.said, left, start + 9, { size: 12, fill: theme.muted });
        },
      };
    },
    predict(look, word) {
      const { result, stack } = look;
      const side = word?.side ?? "query";
      const axis = result.axes[side === "query" ? stack.queries : stack.keys];
      next.hidden = axis.next === null || look.differs;
      if (axis.next === null || next.hidden) return;
      const units = look.units[side === "query" ? 0 : 1];
      const unit = word ? units.of[word.position] : -1;
      const position = unit < 0 ? axis.next.length - 1 : units.positions[unit][units.positions[unit].length - 1];
      const after = unit < 0 ? "the text" : `“${literal(units.labels[unit])}”`;
      next.replaceChildren(el("span", { class: "side" }, `next after ${after}`), ...axis.next[position].map(([label, probability]) => {
        const token = el("span", { class: "token" }, el("bdi", {}, literal(label)), ` ${percent(probability)}`);
        token.style.setProperty("--share", `${100 * probability}%`);
        return token;
      }));
    },
  };
}

/** Say what the colors of a difference mean, and name its sides: by the word that was replaced, or by short names. */
function sidesOf({ units }: Look, results: Payload["results"]): string {
  const replaced = units[0].labels.map((label) => label.split(" | ")).filter(({ length }) => length === 2);
  const names = replaced.length === 1 ? replaced[0].map((word) => `“${literal(word)}”`) : results.map(({ name }) => (name.length <= NAME ? name : ""));
  const [first, second] = names.map((name) => name && ` (${name})`);
  return `Orange: more weight in 1${first}. Blue: more in 2${second}.`;
}

/** Draw the outline of a sound for the screen, as wide as its frames. */
function drawSound(sound: Sound, line: Line, spread: Spread | null, theme: Theme): void {
  const { canvas } = sound;
  const [w, h, fine] = [canvas.clientWidth, canvas.clientHeight, Math.max(1, devicePixelRatio)];
  [canvas.width, canvas.height] = [Math.round(w * fine), Math.round(h * fine)];
  const context = canvas.getContext("2d")!;
  context.scale(fine, fine);
  outline(new CanvasPen(context), sound, { x: 0, y: 0, w, h }, line, spread, theme);
}

/** Draw the outline of a sound; over colors, where its frames are too many for a strip. */
function outline(pen: Pen, { waveform: { seconds, low, high }, seconds: span }: Sound, { x, y, w, h }: Box, line: Line, spread: Spread | null, theme: Theme): void {
  const each = w / line.words.length;
  if (line.words.includes(null)) line.words.forEach((_, n) => {
    const { ink, percent: part } = tint(line, n, spread, theme);
    if (part) pen.rect(x + n * each, y, each, h, ink, part / 100);
  });
  const step = (seconds / low.length / span) * w;
  const drawn = Math.min(low.length, Math.ceil(w / step));
  const edge = (values: number[], thick: number) => Array.from({ length: drawn }, (_, b): [number, number] =>
    [x + Math.min(w, (b + 0.5) * step), y + h / 2 - (values[b] / 100) * (h / 2 - 1) - thick]);
  pen.area([...edge(high, 0.4), ...edge(low, -0.4).reverse()], theme.muted);
}

/** Return the color of a word, how much of it in percent, and the color of its letters, if it changes. */
function tint({ side, units }: Line, n: number, spread: Spread | null, theme: Theme): { ink: string; percent: number; text: string } {
  if (spread?.scale) {
    const value = side === "query" && !units.special[n] ? spread.of(units.positions[n][0]) : NaN;
    if (Number.isNaN(value)) return { ink: "", percent: 0, text: "" };
    return { ink: color(spread.scale, value), percent: 100, text: isDark(spread.scale, value) ? DARK.ink : LIGHT.ink };
  }
  const shown = spread && (side === spread.side || spread.alone) ? spread.of(units.positions[n][0]) : 0;
  const gray = (units.special[n] || units.unknown[n]) && !spread?.signed;
  const share = Math.min(1, Math.abs(shown) / (gray ? 1 : (spread?.top ?? 1)));
  const ink = gray ? theme.muted : spread?.signed ? signedInk(theme, shown < 0) : theme.lines[0];
  return { ink, percent: MIXED * share, text: share > 0.6 ? theme.ground : "" };
}

/** Return the place of each word in a file: its left edge and width, and its row. */
function laidOut({ words, units }: Line, width: number): { n: number; x: number; w: number; row: number; size: number }[] {
  let [x, row] = [0, 0];
  return words.flatMap((word, n) => {
    if (!word) return [];
    const isFrame = word.classList.contains("frame");
    const size = units.special[n] ? LETTERS - 3 : LETTERS;
    const w = isFrame ? Math.min(FRAME, width / words.length) : Math.min(width, measure(literal(units.labels[n]), size) + 8);
    if (word.classList.contains("tight")) x -= 4;
    if (!isFrame && x > 0 && x + w > width) [x, row] = [0, row + 1];
    const place = { n, x, w, row, size };
    x += w;
    return [place];
  });
}

/** Return the word that the view is about, if any. */
export function chosenOf({ state, rows, columns }: Look): Word | null {
  if (state.view === "token" && state.by === "key") return { side: "key", position: columns.units.positions[columns.from][0] };
  if (state.view === "token" || state.view === "steps") return { side: "query", position: rows.units.positions[rows.from][0] };
  if (state.view === "grid" || !state.lock) return null;
  if (state.query !== null) return { side: "query", position: state.query };
  return state.key === null ? null : { side: "key", position: state.key };
}

/** Return the word of a place in a view. */
export function wordOf({ rows, columns }: Look, at: Spot | null): Word | null {
  if (at?.row !== undefined) return { side: "query", position: rows.units.positions[at.row][0] };
  return at?.column === undefined ? null : { side: "key", position: columns.units.positions[at.column][0] };
}

/** Return the change of state of a click on a word. */
export function pressed({ side, position }: Word, state: State): Partial<State> {
  const by = side === "key" || (state.view === "token" && state.by === "key") ? "key" : "query";
  if (state.view === "steps") return by === "query" ? { query: position, key: null } : {};
  if (state.view === "head") {
    const again = state.lock && state[by] === position;
    return { query: null, key: null, [by]: position, lock: !again };
  }
  return { view: "token", by, ...(by === "query" ? { query: position } : { key: position }) };
}
