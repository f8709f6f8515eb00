/** A view mounted in an element of any page: state, controls, pointer and keys. */

import { DARK, LIGHT, type Theme } from "./colors";
import { controls } from "./controls";
import type { Source } from "./data";
import { el, enlarged } from "./dom";
import { explanations } from "./explanation";
import { footer, offer } from "./footer";
import { chosenOf, headline, pressed, wordOf } from "./headline";
import { CanvasPen } from "./pen";
import { Reader, type Look } from "./reader";
import { save } from "./save";
import type { Scene, Setting, Spot } from "./scene";
import { sources } from "./sources";
import { spread, type Spread, type Word } from "./spread";
import { read, selection, sizesOf, sound, startOf, write, type Selection, type State } from "./state";
import { tooltip } from "./tooltip";
import { picture } from "./picture";
import { pointing } from "./pointing";
import { grid } from "./views/grid";
import { head } from "./views/head";
import { steps } from "./views/steps";
import { token } from "./views/token";
import { including } from "./zoom";

const VIEWS: Record<State["view"], (setting: Setting) => Scene | null> = { grid, head, token, steps };

const USUAL = 660; // pixels of height for a view inside a larger page
const BELOW = 32; // pixels of margin around the footer, below a view

export interface Options {
  /** Store the state in the page's address; the view fills the page. */
  hash?: boolean;
  /** Fit the view into the rest of the window. */
  fill?: boolean;
  onselect?: (selection: Selection) => void;
  state?: Partial<State>;
}
/** A position by number: layer, head, and piece positions. */
export type Place = { layer?: number; head?: number; query?: number; key?: number; dimension?: number; part?: string };
export interface View {
  show(state: Partial<State>): void;
  readonly state: State;
  /** Resolves once the drawing matches the state. */
  readonly ready: Promise<void>;
  /** Return the position of a place in window pixels, or null if it is not drawn. */
  locate(place: Place): { x: number; y: number } | null;
  destroy(): void;
}

const headOf = ({ stack, layer, heads }: State) => `${stack} ${layer}.${heads}`;

export function mount(root: HTMLElement, source: Source, options: Options = {}): View {
  const { payload } = source;
  const start = startOf(payload);
  const reader = new Reader(source);
  let state = sound({ ...(options.hash ? read(location.hash, payload) : start), ...options.state }, payload);
  let look: Look | null = null;
  let scene: Scene | null = null;
  let at: Spot | null = null;
  let pointer: [number, number] = [0, 0];
  let asked = 0;
  let frame = 0;
  let writing = 0;
  let hovered: Word | null = null;
  let colored = 0;
  let inner = 0;
  let written = -Infinity;
  let touched = ""; // the head that a reader has pointed at
  let ready: Promise<void> = Promise.resolve();

  const night = matchMedia("(prefers-color-scheme: dark)");
  const theme = (): Theme => (state.theme === "dark" || (state.theme === "auto" && night.matches) ? DARK : LIGHT);
  const canvas = el("canvas", { tabindex: 0, role: "application" });
  const context = canvas.getContext("2d")!;
  const tip = tooltip();
  const stage = el("div", { class: "stage" }, canvas, ...tip.nodes);
  const roomy = () => Math.max(240, Math.floor(stage.clientWidth));
  /** The height from the top of the stage to the end of the window, if the view fills the page; in large type, as if it were not enlarged. */
  const tall = () => (options.fill || options.hash ? innerHeight - (stage.getBoundingClientRect().top + scrollY) / enlarged(stage) - foot.node.offsetHeight - BELOW : USUAL);
  const fineness = () => Math.max(1, devicePixelRatio * enlarged(stage));
  const why = explanations(source);
  const explains = !why.node.hidden;
  const notice = el("div", { class: "notice", role: "status" });
  const bars = controls(payload, explains, () => theme().lines, { change, next, save: (kind) => keep(kind), tell: announce });
  const foot = footer(payload);
  const press = (word: Word) => change(pressed(word, state));
  const title = headline(payload, foot.verdict, why.node, sources(payload), { point: pointWord, press });
  const seen = picture(payload.results, { ready: () => look && build(look), point: hover, press });
  root.classList.add("attnviz");
  root.replaceChildren(...title.nodes, bars.node, el("div", { class: "body" }, seen.node, stage), notice, foot.node);

  function change(changed: Partial<State>): void {
    const before = state;
    const merged = { ...state, ...changed };
    if ("stack" in changed && changed.stack !== before.stack) merged.range = null;
    state = sound(merged, payload);
    if (options.hash && before.view !== state.view) open(before);
    else if (options.hash) remember();
    if (JSON.stringify(selection(before)) !== JSON.stringify(selection(state))) options.onselect?.(selection(state));
    if (before.view !== state.view) at = null;
    refresh();
  }
  /** Make the new view an entry of the browser's history, after the one that it follows. */
  function open(before: State): void {
    clearTimeout(writing);
    store("replaceState", before);
    store("pushState", state);
  }
  function store(how: "replaceState" | "pushState", some: State): void {
    try {
      history[how](null, "", `#${write(some, start)}`);
    } catch {
      // a sandboxed frame cannot change its address
    }
  }
  /** Write the state into the address; browsers limit the rate to a few times per second. */
  function remember(): void {
    clearTimeout(writing);
    const wait = written + 200 - performance.now();
    if (wait > 0) {
      writing = setTimeout(remember, wait);
      return;
    }
    written = performance.now();
    store("replaceState", state);
  }
  function refresh(): void {
    const dark = theme().dark;
    root.dataset.theme = dark ? "dark" : "light";
    root.dataset.view = state.view;
    root.toggleAttribute("data-large", state.large);
    bars.follow(state);
    const turn = ++asked;
    stage.setAttribute("aria-busy", "true");
    ready = reader.look(state).then(
      (found) => turn === asked && build(found),
      (error: unknown) => turn === asked && (notice.textContent = `This view could not be drawn: ${String(error)}. Create the page again.`),
    ).then(() => undefined);
  }
  function build(found: Look): void {
    look = found;
    const { view, find } = found.state; // the current state of the page may be newer
    const wanted = find.trim().toLocaleLowerCase();
    const isFound = (label: string) => wanted !== "" && label.toLocaleLowerCase().includes(wanted);
    foot.follow(look);
    title.follow(look, isFound);
    seen.follow(look, chosenOf(look));
    offer(notice, look, look.state, true, change);
    stage.hidden = false;
    const [width, height] = [roomy(), tall()];
    inner = innerHeight;
    const shown = headOf(look.state);
    scene = VIEWS[view]({ look, theme: theme(), width, height, found: isFound, touched: () => touched === shown });
    if (!scene) offer(notice, look, look.state, false, change);
    stage.hidden = scene === null;
    color();
    if (scene) {
      canvas.setAttribute("aria-label", scene.label);
      const fine = fineness();
      [canvas.width, canvas.height] = [Math.round(width * fine), Math.round(scene.height * fine)];
      [canvas.style.width, canvas.style.height] = [`${width}px`, `${scene.height}px`];
      if (at && !scene.place(at)) at = null;
      draw();
      tell(); // update the tooltip to match the drawing
    }
    stage.setAttribute("aria-busy", "false");
  }
  /** Color the text by the weights of the word under the pointer, or else of the chosen one. */
  function color(): void {
    if (!look) return;
    const [turn, word, colors] = [++colored, hovered ?? chosenOf(look), theme()];
    const done = (found: Spread | null) => {
      if (turn !== colored) return;
      title.paint(found, colors);
      seen.paint(found, hovered, colors);
    };
    const token = why.find(look, word);
    const explained = why.show(look, token, colors, !hovered);
    if (token !== null && !why.has(token)) done(null); // the colors of another token do not stay
    if (token !== null) void explained.then(done);
    else if (word) void spread(reader, look.state, word).then(done);
    else done(null);
    title.predict(look, token === null ? word : { side: "query", position: token - 1 });
  }
  function hover(word: Word | null): void {
    if (JSON.stringify(word) === JSON.stringify(hovered)) return;
    hovered = word;
    color();
  }
  /** Point at a word of the text; the view of a head shows its row or its column. */
  function pointWord(word: Word | null): void {
    hover(word);
    if (state.view !== "head" || !scene || !look) return;
    const unit = word && (word.side === "key" ? look.columns : look.rows).units.of[word.position];
    const spot: Spot | null = unit === null ? null : { part: "matrix", [word!.side === "key" ? "column" : "row"]: unit };
    at = spot && scene.place(spot) ? spot : null;
    if (at) touched = headOf(state);
    tip.hide();
    draw();
  }
  function draw(): void {
    if (!scene) return;
    const fine = canvas.width / parseFloat(canvas.style.width);
    context.setTransform(fine, 0, 0, fine, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    scene.draw(new CanvasPen(context), at, Math.max(0, -canvas.getBoundingClientRect().top / enlarged(canvas)));
  }
  function point(to: Spot | null, x: number, y: number): void {
    if (JSON.stringify(to) !== JSON.stringify(at)) {
      at = to;
      if (to && state.view === "head") touched = headOf(state);
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(draw);
    }
    pointer = [x, y];
    if (state.view === "head" && look) hover(wordOf(look, to));
    tell();
  }
  /** Show the tooltip of the pointed place. */
  function tell(): void {
    const lines = at && scene ? scene.say(at) : [];
    if (lines.length) tip.show(lines, ...pointer, stage.clientWidth);
    else tip.hide();
  }
  function announce(line: string): void {
    notice.textContent = line;
    notice.hidden = false;
  }
  /** Go to the next match of the search. */
  function next(): void {
    if (!look || !state.find.trim()) return;
    const wanted = state.find.trim().toLocaleLowerCase();
    const gets = state.view === "token" && state.by === "key";
    const { labels, positions } = (gets ? look.columns : look.rows).units;
    const now = gets ? state.key : state.query;
    const matches = labels.flatMap((label, unit) => (label.toLocaleLowerCase().includes(wanted) ? [positions[unit][0]] : []));
    if (!matches.length) return;
    const position = matches.find((match) => now !== null && match > now) ?? matches[0];
    if (gets) return change({ key: position });
    const range = including(state.range, sizes(), position, null);
    change({ query: position, key: null, range, lock: state.view === "head", view: state.view === "grid" ? "token" : state.view });
  }
  function sizes(): [number, number] {
    return sizesOf(state, payload);
  }
  function keep(kind: "svg" | "png"): void {
    if (!scene || !look) return;
    save(kind, `attnviz-${state.view}`, scene, parseFloat(canvas.style.width), theme(), foot.caption(look), {
      image: seen.drawing(),
      stacked: seen.node.offsetTop + seen.node.offsetHeight <= stage.offsetTop,
      sentence: title.sentence,
    });
  }

  const stop = pointing({ root, canvas, sizes, change, point, state: () => state, at: () => at, scene: () => scene, page: Boolean(options.hash) });
  const onhash = () => {
    clearTimeout(writing);
    at = null;
    state = read(location.hash, payload);
    refresh();
  };
  /** Redraw if the width or the pixel ratio has changed, for example after zooming the page. */
  const fit = () => look && (roomy() !== parseFloat(canvas.style.width) || canvas.width !== Math.round(roomy() * fineness()) || innerHeight !== inner) && build(look);
  const resized = new ResizeObserver(fit);
  resized.observe(stage);
  addEventListener("resize", fit);
  const scrolled = () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(draw);
  };
  addEventListener("scroll", scrolled, { passive: true });
  night.addEventListener("change", refresh);
  if (options.hash) addEventListener("hashchange", onhash);
  refresh();

  const view: View = {
    show: change,
    get state() {
      return state;
    },
    get ready() {
      return ready;
    },
    locate({ query, key, ...place }) {
      if (!scene || !look) return null;
      const unit = (of: Int32Array, position?: number) => (position === undefined ? undefined : (of[position] ?? -1));
      const [row, column] = [unit(look.rows.units.of, query), unit(look.columns.units.of, key)];
      const found = row === -1 || column === -1 ? null : scene.place({ ...place, row, column });
      const { left, top } = canvas.getBoundingClientRect();
      return found && { x: left + found[0] * enlarged(canvas), y: top + found[1] * enlarged(canvas) };
    },
    destroy() {
      stop();
      why.stop();
      clearTimeout(writing);
      resized.disconnect();
      removeEventListener("resize", fit);
      removeEventListener("scroll", scrolled);
      night.removeEventListener("change", refresh);
      removeEventListener("hashchange", onhash);
      root.replaceChildren();
    },
  };
  return Object.assign(root, { attnviz: view }).attnviz;
}
