/** The senses of a word as threads: each sentence is one, from the static vector to the output, and ends in its text. */

import { el, enlarged } from "./dom";
import { fit, svg } from "./explorer/svg";
import { apart, area, fraction, layers, lead, line, paint, pointAt, polyline, readout, sizes, stateName, walk, word, type Point, type Sizes } from "./paths";
import { measure } from "./pen";
import { clip, literal, plain, share } from "./text";

export interface Senses {
  word: string;
  senses: string[];
  headline: string;
  details: string[];
  notes: string[];
  chance: number;
  /** The state from which on the headline claims something. */
  claimed: number | null;
  /** Whether the model read no further than the word. */
  is_causal: boolean;
  /** Threads that hesitate, those in no score, and those that are written out. */
  hesitating: number[];
  alike: number[];
  told: number[];
  /** The threads of each strip: of two senses together, of more those of each. */
  strips: number[][];
  occurrences: { sentence: string; sense: number; start: number; end: number; attends_to: [number, number] }[];
  /** By state and occurrence: how much nearer to its sense; of two senses, to the first. */
  heights: (number | null)[][];
  nearest: number[][];
  /** At the output: 1 on its own side, 0 on another. */
  right: (number | null)[];
  scores: { accuracy: number; low: number; high: number }[];
}

const COLORED = 4; // senses at most; more have the color of ink
const PLAIN = "Point at a thread or a sentence. Arrow keys walk through sentences and layers.";
const [REACH, BETWEEN, SMALLEST, LISTED] = [16, 18, 44, 8]; // pixels around a thread, between strips, and of a strip; sentences in no score

export function senses(shown: Senses): HTMLElement {
  const { senses, occurrences, heights, right, claimed, hesitating, strips, scores } = shown;
  const last = scores.length - 1;
  const isPair = strips.length === 1;
  const side = (n: number) => `side-${senses.length > COLORED ? "ink" : n}`;
  const isScored = (n: number) => right[n] !== null;
  const isWrong = (n: number) => right[n]! <= 0.5;
  const said = readout(PLAIN);
  const box = el("div", { class: "drawn" });
  /** The thread that is pointed at, and the state. */
  let at: number | null = null;
  let state = last;
  let mark = (): void => undefined;

  function told(n: number, when: number): string {
    const [height, sense] = [heights[when][n]!, occurrences[n].sense];
    const toward = isPair ? senses[height > 0 ? 0 : 1] : senses[height > 0 ? sense : shown.nearest[when][n]];
    const much = fraction(Math.abs(height));
    return `${stateName(when, last)}: ${much === "0" ? "undecided" : `${much} nearer to ${literal(toward)}`}`;
  }
  function choose(n: number | null, when = state): void {
    [at, state] = [n, when];
    if (n === null) said.say();
    else said.say(told(n, state), plain(occurrences[n].sentence));
    mark();
  }

  function draw(): void {
    const size = sizes(box);
    if (!size.width) return;
    said.fit(size.width, occurrences.map(({ sentence }, n) => `${isScored(n) ? told(n, 0) : ""} ${sentence}`));
    const written = new Set(shown.told);
    const crowd = [24, 44].filter((most) => written.size > most).length;
    const pitch = (size.wide ? [19, 17, 16] : [16, 15, 14.5])[crowd];
    const names = senses.map((name) => clip(literal(name), size.wide ? 120 : 72, (text) => measure(text, size.text, true)));
    const hasShares = size.wide && last <= 12;
    const muted = isPair ? ["nearer to", "undecided"] : ["nearer to", "another ↓", "10 of 10"];
    const aside = hasShares ? measure("100%", size.small, true) / 2 + 2 : 0; // of the name of the rows below
    const left = Math.ceil(8 + Math.max(...names.map((name) => measure(name, size.text, true)), ...muted.map((text) => measure(text, size.small)), aside && aside + measure("own side", size.small)));
    const end = left + (size.wide ? 0.42 : 0.36) * (size.width - left);
    const text = end + (size.wide ? 34 : 20);
    const xs = scores.map((_, n) => left + ((end - left) * n) / last);
    const top = claimed === null ? 8 : 24;
    const parts = strips.map((strip) => strip.filter((n) => written.has(n)).length || 1);
    const all = parts.reduce((sum, count) => sum + count, 0);
    const whole = Math.max(pitch * (all + 1), size.wide ? 250 : 210);
    const root = svg("svg", { class: `crowd-${crowd}`, role: "list", "aria-label": shown.headline, width: size.width });
    const threads = new Map<number, { node: SVGElement; places: Point[]; row: number }>();
    const [panels, labels, ends] = [[], [], []] as SVGElement[][];

    let y = top;
    strips.forEach((strip, number) => {
      const tall = Math.max((whole * parts[number]) / all, SMALLEST);
      drawStrip(strip, number, y, tall);
      y += tall + BETWEEN;
    });
    const bottom = y - BETWEEN;

    function drawStrip(strip: number[], number: number, top: number, tall: number): void {
      const later = strip.flatMap((n) => heights.slice(1).map((row) => row[n]!)); // static heights are clipped
      let [low, high] = [Math.min(0, ...later), Math.max(0, ...later)];
      const rim = 0.04 * Math.max(high - low, 1e-6);
      [low, high] = [low - rim * (low ? 1 : 2.5), high + rim * (high ? 1 : 2.5)];
      const place = (height: number) => top + (tall * (high - Math.min(high, Math.max(low, height)))) / (high - low);
      const [zero, bottom] = [place(0), top + tall];
      panels.push(area(`half ${side(number)}`, left, top, end - left, zero - top), area(`half ${isPair ? side(1) : "other"}`, left, zero, end - left, bottom - zero), line("zero", [left, zero], [end, zero]));
      nameSides(strip, number, top, zero, bottom);
      const told = strip.filter((n) => written.has(n));
      const rows = apart(told.map((n) => place(heights[last][n]!)), pitch, top - 6, bottom + 6);
      for (const n of [...strip].sort((a, b) => rank(a) - rank(b))) {
        const places = heights.map((row, n_) => [xs[n_], place(row[n]!)] as Point);
        const row = rows[told.indexOf(n)];
        threads.set(n, { places, row: row ?? NaN, node: drawThread(n, places, row) });
      }
    }
    function rank(n: number): number {
      return Number(isWrong(n)) + 2 * Number(hesitating.includes(n));
    }
    function drawThread(n: number, places: Point[], row: number | undefined): SVGElement {
      const { sense, sentence } = occurrences[n];
      const name = ["thread", side(sense), isWrong(n) && "wrong", hesitating.includes(n) && "thick", row === undefined && "untold"].filter(Boolean).join(" ");
      const node = svg("g", { class: name, role: "listitem", "aria-label": `${plain(sentence)} Sense ${literal(senses[sense])}. ${told(n, last)}${isWrong(n) ? ", the wrong side" : ""}` });
      node.append(svg("path", { class: "path", d: polyline(places) }));
      if (!isPair && senses.length <= COLORED) places.slice(0, last).forEach(([x, y], when) => heights[when][n]! < 0 && node.append(svg("circle", { class: `near ${side(shown.nearest[when][n])}`, cx: x, cy: y, r: 2 })));
      node.append(svg("circle", { class: "end", cx: places[last][0], cy: places[last][1], r: 3 }));
      if (row !== undefined) node.append(svg("path", { class: "lead", d: lead([end + 4, places[last][1]], [text - 5, row]) }), write(n, row));
      return node;
    }
    function write(n: number, row: number): SVGElement {
      const node = word("", text, row, size.text, "sentence");
      const { sentence, start } = occurrences[n];
      const isBack = /^[^\p{L}]*[\p{sc=Hebr}\p{sc=Arab}\p{sc=Syrc}\p{sc=Thaa}]/u.test(sentence);
      if (isBack) for (const [name, value] of [["direction", "rtl"], ["text-anchor", "end"]]) node.setAttribute(name, value);
      for (const [from, part, kind] of cut(shown, n, size.width - text - 2, size)) node.append(svg("tspan", { class: shown.is_causal && from > start ? `${kind} unread` : kind }, part));
      return node;
    }
    function nameSides(strip: number[], number: number, top: number, zero: number, bottom: number): void {
      const edge = left - 8;
      const high = 1.3 * size.small;
      const mute = (text: string, y: number) => labels.push(word(text, edge, y, size.small, "muted", "end"));
      const name = (n: number, y: number) => labels.push(word(names[n], edge, y, size.text, `name ${side(n)}`, "end"));
      if (isPair) {
        mute("nearer to", top + 0.5 * high);
        name(0, top + 1.6 * high);
        mute("nearer to", bottom - 1.6 * high);
        name(1, bottom - 0.5 * high);
        if (zero - top > 2.8 * high && bottom - zero > 2.8 * high) mute("undecided", zero);
        return;
      }
      name(number, top + 0.5 * high);
      mute(`${Number(strip.reduce((sum, n) => sum + right[n]!, 0).toFixed(1))} of ${strip.length}`, top + 1.6 * high);
      const hasRoom = bottom - top > 5 * high;
      if (hasRoom) ["nearer to", "its own ↑"].forEach((text, n) => mute(text, top + (n + 2.6) * high));
      const below = Math.max(zero, top + (hasRoom ? 4.2 : 2.2) * high);
      if (below + 2 * high <= bottom + 4) ["nearer to", "another ↓"].forEach((text, n) => mute(text, below + (n + 0.6) * high));
    }

    let foot = bottom + 4;
    labels.push(...layers(xs, foot, size.small, claimed, hasShares ? [scores.map(({ accuracy }) => share(accuracy))] : []));
    if (claimed !== null) {
      const wanted = claimed === last ? "here" : "from here on";
      const half = measure(wanted, size.small, true) / 2;
      panels.push(line("since", [xs[claimed], top - 4], [xs[claimed], foot]));
      labels.push(word(wanted, Math.min(Math.max(xs[claimed], half), size.width - half), top - 13, size.small, "claim", "middle"));
    }
    foot += 14 + size.small;
    if (hasShares) {
      ["layer", "own side"].forEach((text, n) => labels.push(word(text, left - aside - 8, bottom + 16 + 1.3 * size.small * n, size.small, "muted", "end")));
      foot += 1.3 * size.small;
    } else foot = drawAccuracy(foot);

    /** Draw the share on their own side by state, with its interval and that of guessing; return the lower edge. */
    function drawAccuracy(top: number): number {
      const tall = 40;
      const place = (share: number) => top + tall * (1 - share);
      const path = (of: "accuracy" | "low" | "high") => scores.map((score, n) => [xs[n], place(score[of])] as Point);
      panels.push(area("half other", left, top, end - left, tall), svg("path", { class: "band", d: `${polyline([...path("high"), ...path("low").reverse()])}Z` }),
        line("guess", [left, place(shown.chance)], [end, place(shown.chance)]), svg("path", { class: "accuracy", d: polyline(path("accuracy")) }));
      const marks: [number, string][] = [[shown.chance, "guess"], [1, "100%"], [0, "0"]];
      for (const [share, text] of marks.filter(([share], n) => !n || Math.abs(share - shown.chance) > 0.3)) labels.push(word(text, left - 8, place(share), size.small, "muted", "end"));
      labels.push(word(`${share(scores[last].accuracy)} on their own side`, end, top + tall + 13, size.small, "", "end"));
      return top + tall + 22;
    }

    const { alike } = shown;
    if (alike.length) {
      const more = alike.length > LISTED ? `; ${LISTED} of ${alike.length}` : "";
      const lines = [`alike up to “${literal(shown.word)}”, not read further: in no score${more}`, `alike, in no score${more}`];
      const heading = lines.find((line) => measure(line, size.small) <= size.width - text) ?? lines[1];
      let row = Math.max(bottom, ...[...threads.values()].flatMap(({ row }) => (row > 0 ? [row] : []))) + 1.8 * pitch;
      labels.push(word(heading, text, row, size.small, "muted"));
      for (const n of alike.slice(0, LISTED)) {
        const line = write(n, (row += pitch));
        line.classList.add("alike");
        labels.push(line);
      }
      foot = Math.max(foot, row);
    }

    const order = [...threads.keys()].sort((a, b) => threads.get(a)!.places[last][1] - threads.get(b)!.places[last][1]);
    const [ring, chip] = [svg("circle", { class: "ring", r: 5 }), word("", 0, 0, size.small, "chip", "middle")];
    ends.push(...order.map((n) => threads.get(n)!.node));
    root.replaceChildren(...panels, ...labels, ...ends, ring, chip);
    const height = Math.max(foot, ...[...threads.values()].map(({ row }) => (row > 0 ? row : 0))) + 12;
    root.setAttribute("height", String(height));
    root.setAttribute("viewBox", `0 0 ${size.width} ${height}`);

    mark = () => {
      const thread = at === null ? undefined : threads.get(at);
      root.classList.toggle("some", thread !== undefined);
      for (const [n, { node }] of threads) node.classList.toggle("marked", n === at);
      for (const node of [ring, chip]) node.setAttribute("visibility", thread ? "visible" : "hidden");
      if (!thread) return;
      const [x, y] = thread.places[state];
      ring.setAttribute("class", `ring ${side(occurrences[at!].sense)}`);
      [ring.cx.baseVal.value, ring.cy.baseVal.value] = [x, y];
      chip.textContent = `${stateName(state, last)}: ${fraction(Math.abs(heights[state][at!]!))}`;
      const half = measure(chip.textContent, size.small, true) / 2 + 3;
      chip.setAttribute("x", String(Math.min(Math.max(x, left + half), end - half)));
      chip.setAttribute("y", String(y < top + 26 ? y + 20 : y - 11));
    };
    walk(order.map((n) => threads.get(n)!.node), (n) => choose(n === null ? null : order[n], n === null ? last : state),
      (step) => choose(at, Math.min(last, Math.max(0, state + step))));
    const point = (event: PointerEvent) => {
      const { left: x0, top: y0 } = root.getBoundingClientRect();
      const [x, y] = [event.clientX - x0, event.clientY - y0].map((distance) => distance / enlarged(root));
      const [found, when] = near(x, y);
      if (found !== at || when !== state) choose(found, when);
    };
    /** Return the thread near a place, or that of the sentence there, and the state. */
    function near(x: number, y: number): [number | null, number] {
      let [found, least]: [number | null, number] = [null, x > end + 6 ? pitch / 2 : REACH];
      const along = Math.min(last, Math.max(0, ((x - left) / (end - left)) * last));
      const from = Math.min(last - 1, Math.floor(along));
      if (x < left - REACH) return [null, last];
      for (const [n, { places, row }] of threads) {
        const height = places[from][1] + (along - from) * (places[from + 1][1] - places[from][1]);
        const far = Math.abs(y - (x > end + 6 ? row : height));
        if (far < least) [found, least] = [n, far];
      }
      return [found, x > end + 6 ? last : Math.round(along)];
    }
    pointAt(root, point, () => choose(null, last));
    box.querySelector("svg")?.remove();
    box.append(root);
    mark();
  }

  const dashed = shown.right.some((share) => share !== null && share <= 0.5);
  const keys = [
    "Up and down: how much nearer a sentence is to its own sense than to another, by cosine to their centroids.",
    ...(dashed ? ["Dashed: ends on the wrong side."] : []),
    ...(hesitating.length ? [`Thick: ${hesitating.length > 1 ? "the two that hesitate longest" : "the one that hesitates"}.`] : []),
    ...(shown.told.length + shown.alike.length < occurrences.length ? [`Written out are ${shown.told.length} of ${occurrences.length - shown.alike.length}.`] : []),
    "Underlined: the content word with most attention.",
    ...(shown.is_causal ? ["Gray words come later: they are not read."] : []),
  ];
  const node = el("div", { class: "senses figure" }, el("h2", {}, shown.headline), el("p", {}, shown.details.join(" ")), said.node, box, el("p", {}, keys.join(" ")));
  paint(node);
  fit(box, draw);
  return node;
}

type Part = [from: number, text: string, kind: string];

/** Return what fits of a sentence around the word, cut between words at the end that is farther away. */
function cut({ occurrences }: Senses, n: number, room: number, { text: size }: Sizes): Part[] {
  const { sentence, start, end, attends_to } = occurrences[n];
  const letters = [...sentence]; // Python counts characters
  const attended = attends_to[1] ? attends_to : null;
  const wide = (from: number, to: number) => measure(`${from ? "…" : ""}${letters.slice(from, to).join("")}${to < letters.length ? "…" : ""}`, size) + 0.15 * measure(letters.slice(start, end).join(""), size);
  const isBlank = (k: number) => k < 0 || k >= letters.length || /\s/.test(letters[k]);
  const isBorder = (k: number) => isBlank(k - 1) !== isBlank(k) || /\p{sc=Han}/u.test(letters[k - 1]);
  const borders = [...letters.keys(), letters.length].filter(isBorder);
  const [starts, stops] = [borders.filter((k) => !isBlank(k)), borders.filter((k) => !isBlank(k - 1))];
  let [from, to] = [0, letters.length];
  const both: [number, number] = attended ? [Math.min(start, attended[0]), Math.max(end, attended[1])] : [start, end];
  for (const [a, b] of [both, [start, end]]) {
    const low = Math.max(0, ...starts.filter((k) => k <= a));
    const high = Math.min(letters.length, ...stops.filter((k) => k >= b));
    while (wide(from, to) > room && (from < low || to > high)) {
      if (low - from > to - high) from = starts.find((k) => k > from)!;
      else to = stops.filter((k) => k < to).pop()!;
    }
  }
  const marks = [...new Set([from, to, ...[start, end, ...(attended ?? [])].filter((k) => k > from && k < to)])].sort((a, b) => a - b);
  const parts = marks.slice(0, -1).map((k, n): Part => {
    const kind = k === start ? "word" : k === attended?.[0] ? "attended" : "";
    return [k, plain(letters.slice(k, marks[n + 1]).join("")), kind];
  });
  if (from) parts.unshift([from, "…", ""]);
  if (to < letters.length) parts.push([to, "…", ""]);
  return parts;
}
