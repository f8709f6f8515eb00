/** What moved a word: its two paths through the layers, and the gap between their ends as bricks of words. */

import { el } from "./dom";
import { fit, svg } from "./explorer/svg";
import { apart, area, fraction, layers, lead, line, paint, pointAt, polyline, readout, sizes, walk, word, type Point } from "./paths";
import { measure, wrap } from "./pen";
import { clip, literal } from "./text";

export interface Shift {
  headline: string;
  details: string[];
  notes: string[];
  /** The reference in short: the name of the other path. */
  without: string;
  /** The names of what is at 1 and at 0, or none. */
  regions: string[];
  /** Whether the shift is toward the first region, 1, or the second, -1. */
  sign: number;
  /** The length of the gap. */
  gap: number;
  /** The word that the headline names as the strongest, and the one with most credit. */
  claimed: number | null;
  credited: number | null;
  /** What was done to a word to measure what it takes: "masking", "masked". */
  changing: string;
  changed: string | null;
  /** The places of the word and of the reference by state, and those of the regions. */
  place: (number | null)[][];
  rails: (number | null)[][] | null;
  /** Parts of the way, positive along the shift. */
  words: { text: string; name: string; kind: "special" | "explained" | "other"; is_source: boolean; is_unread: boolean; adds: number | null; takes: number | null }[];
}

/** A part of the gap: a word, or several with little. */
interface Brick { words: number[]; label: string; adds: number; takes: number | null; top: number; tall: number; second: boolean }

const PLAIN = "Point at a brick or at a word. Arrow keys walk through the bricks.";
const STRONG: [ofWay: number, ofGap: number] = [0.04, 0.07]; // words of the text in color, or more
const [BEFORE, AFTER] = [".,;:!?)]}”’…%", "([{“‘"]; // without a blank before it, and after it
// Pixels.
const [LEAST, OTHERS, COLUMN] = [4.5, 1.2, 2.4]; // of a named brick, of others, and of a column
const [ROW, STEP, OVER] = [17, 6, 12]; // a row of the table, between columns, beyond the panel
const NAMED = 14; // bricks at most

export function shift(shown: Shift): HTMLElement {
  const { words, regions, sign, claimed, credited, changed, rails } = shown;
  const said = readout(PLAIN);
  const box = el("div", { class: "drawn" });
  const side = (adds: number) => `side-${adds * sign < 0 ? 1 : 0}`;
  let bricks: Brick[] = [];
  let nodes: SVGElement[] = [];

  function told(label: string, adds: number | null, takes: number | null): string {
    if (adds === null) return `${label}: not measured`;
    return `${label}: adds ${fraction(adds)}${takes === null ? "" : `, ${changed} ${fraction(takes)}`}`;
  }
  function choose(at: number | null, n: number | null = null): void {
    const brick = at === null ? undefined : bricks[at];
    nodes.forEach((node, k) => node.classList.toggle("marked", k === at));
    spans.forEach((span, k) => span?.classList.toggle("marked", k === n || (n === null && brick !== undefined && brick.words.includes(k))));
    if (brick && n === null) reveal(spans[brick.words[0]]);
    if (n !== null && words[n].is_unread) said.say(`${words[n].name}: comes later, not read`);
    else if (n !== null) said.say(told(literal(words[n].name), words[n].adds, words[n].takes));
    else if (brick) said.say(told(brick.label, brick.adds, brick.takes), brick.words.length > 1 ? brick.words.map((k) => literal(words[k].name)).join(" ") : "");
    else said.say();
  }

  const least = Math.max(STRONG[0], STRONG[1] * shown.gap);
  const spans = words.map(({ text, kind, is_source, is_unread, adds }, n) => {
    if (kind === "special") return null;
    const strong = is_source && Math.abs(adds ?? 0) >= least && `strong ${side(adds!)}`;
    const name = ["part", kind === "explained" && kind, is_unread && "unread", strong, n === claimed && "claimed"].filter(Boolean).join(" ");
    const span = el("bdi", { class: name }, literal(text));
    pointAt(span, () => choose(holding(n), n), () => choose(null));
    return span;
  });
  /** Bring a word into sight in a text that scrolls; the page stays. */
  function reveal(span: HTMLElement | null): void {
    if (!span) return;
    const { offsetTop, offsetHeight } = span;
    if (offsetTop < text.scrollTop || offsetTop + offsetHeight > text.scrollTop + text.clientHeight) text.scrollTop = offsetTop - text.clientHeight / 2;
  }
  /** Return the brick that a word is part of. */
  function holding(n: number): number | null {
    const at = bricks.findIndex(({ words }) => words.includes(n));
    return at < 0 ? null : at;
  }
  const text = el("p", { class: "read-text", dir: "auto" });
  let blank = "";
  words.forEach(({ text: each }, n) => {
    if (!spans[n]) return;
    text.append(BEFORE.includes(each) ? "" : blank, spans[n]);
    blank = AFTER.includes(each) ? "" : " ";
  });

  function draw(): void {
    const size = sizes(box);
    if (!size.width) return;
    const { small } = size;
    said.fit(size.width, []);
    const wide = (name: string, isBold = false, points = small) => measure(name, points, isBold);
    const tall = size.wide ? 270 : 225;
    const [top, bottom] = [1.5 * ROW, 1.5 * ROW + tall];
    const known = [...shown.place, ...(rails ?? []), [0, 1]].flat().filter((place) => place !== null);
    const [here, other] = shown.place.map((path) => path[path.length - 1]!);
    const rim = 0.035 * (Math.max(...known) - Math.min(...known));
    const [low, high] = [Math.min(...known, Math.min(here, other) - 2 * rim) - rim, Math.max(...known, Math.max(here, other) + 2 * rim) + rim];
    const unit = tall / (high - low); // the length of the way
    const y = (place: number) => bottom - (place - low) * unit;

    // The bricks are as long as the gap, enlarged if it is small, and within the panel.
    const pushed = words.reduce((sum, { adds }) => sum + Math.max(adds ?? 0, 0), 0) * unit;
    const isSmall = Math.abs(y(here) - y(other)) < 0.38 * tall || pushed > tall;
    const wanted = isSmall ? (0.72 * tall) / Math.max(pushed, 1e-6) : 1;
    const zoom = Math.abs(wanted - 1) > 0.15 ? wanted : 1;
    const stacks = stack(shown, zoom * unit);
    const lengths = stacks.map((bricks) => sign * zoom * unit * bricks.reduce((sum, { adds }) => sum + adds, 0));
    let start = zoom === 1 ? y(other) : (y(here) + y(other) + lengths[0] + lengths[1]) / 2;
    start += Math.max(top - Math.min(start, start - lengths[0]), 0);
    start -= Math.max(Math.max(start, start - lengths[0]) - bottom, 0);
    const corners = [start, start - lengths[0], start - lengths[0] - lengths[1]];
    const isBack = stacks[1].length > 0;
    bricks = stacks.flatMap((bricks, number) => {
      let edge = Math.min(corners[number], corners[number + 1]);
      return bricks.map((brick): Brick => {
        const tall = Math.abs(brick.adds) * zoom * unit;
        edge += tall;
        return { ...brick, top: edge - tall, tall, second: number > 0 };
      });
    });
    // A bar for what changing each word takes, over one for what it adds.
    const ends = bricks.flatMap(({ adds, takes }) => (takes === null ? [] : [adds, takes]));
    const [lowest, highest] = [Math.min(0, ...ends), Math.max(0, ...ends)];
    const bars = ends.length ? (size.wide ? 96 : 40) : 0;
    const scale = Math.min((bars - STEP) / Math.max(highest - lowest, 1e-9), zoom * unit);

    // Across: the sides, the panel, the bricks, and the table of words.
    const [apart_, brick, guide] = size.wide ? [34, 28, 18] : [14, 16, 9];
    const room = size.wide ? 120 : 58;
    const fitted = (part: string) => clip(part, room, (text) => wide(text, true, size.text));
    const tallest = Math.max(1, Math.min(3, Math.floor(unit / (1.25 * size.text)))); // lines of a name
    const names = regions.map((name) => {
      const lines = wrap(literal(name), room, size.text, true);
      return (lines.length > tallest ? [...lines.slice(0, tallest - 1), `${lines[tallest - 1]} …`] : lines).map(fitted);
    });
    const left = Math.ceil(Math.max(0, ...names.flat().map((name) => wide(name, true, size.text))) + (regions.length ? 22 : 30));
    const beside = brick + STEP;
    const takes = changed ? wide(changed) + 10 : 0;
    const numbers = takes + wide("adds") + 12;
    const longest = Math.max(...bricks.map(({ label }) => wide(label, true)), wide("gap", true));
    const free = size.width - left - apart_ - beside - (brick + STEP) * Number(isBack) - guide - numbers - bars - 5;
    const whole = Math.max(44, ...bricks.filter(({ words }) => words.length > 1).map(({ label }) => wide(label))); // a name that is not cut
    const panel = Math.min(520, Math.max(free - longest, Math.min(90, free - whole)));
    const right = left + panel;
    const first = right + apart_;
    const second = first + beside;
    const column = second + (brick + STEP) * Number(isBack) + guide;
    const nameRoom = Math.min(longest, free - panel);
    const adds = column + nameRoom + numbers - takes;
    const far = adds + takes;
    const zero = far + STEP - lowest * scale;
    const rows = apart(bricks.map(({ top, tall }) => top + tall / 2), ROW, top - 0.5 * ROW, bottom + OVER);
    const xs = shown.place[0].map((_, n) => left + (panel * n) / (shown.place[0].length - 1));
    const path = (places: (number | null)[]) => places.flatMap((place, n) => (place === null ? [] : [[xs[n], y(place)] as Point]));
    const root = svg("svg", { role: "list", "aria-label": shown.headline, width: size.width });

    if (rails) {
      const middle = y(0.5);
      root.append(area("half side-0", left, top, panel, middle - top), area("half side-1", left, middle, panel, bottom - middle));
    } else root.append(area("half other", left, top, panel, tall));
    const [ours, theirs] = shown.place.map(path);
    root.append(svg("path", { class: `gap ${side(1)}`, d: `${polyline([...ours, ...[...theirs].reverse()])}Z` }));
    rails?.forEach((rail, n) => root.append(svg("path", { class: `rail side-${n}`, d: polyline(path(rail)) })));
    for (const [points, name, label, up] of [[theirs, "alone", shown.without, -sign], [ours, "here", "here", sign]] as const) {
      root.append(svg("path", { class: `path ${name}`, d: polyline(points) }));
      points.forEach(([x, y], n) => (xs.length <= 12 || n === points.length - 1) && root.append(svg("circle", { class: name, cx: x, cy: y, r: n === points.length - 1 ? 4.5 : 2.8 })));
      const [x, height] = points[points.length - 1];
      root.append(word(clip(label, panel - 4, (text) => wide(text, name === "here", size.text)), x, height - up * 14, size.text, `label ${name}`, "end"));
    }

    [1, 0].forEach((place) => root.append(line("axis", [left - 4, y(place)], [left, y(place)]), word(String(place), left - 7, y(place), small, "muted", "end")));
    const quantity = `share of the ${regions.length ? "way" : "gap"}`;
    const taken = names.reduce((sum, lines) => sum + (lines.length * 1.25 * size.text) / 2, 0); // by the names
    if (wide(quantity) < unit - taken) {
      const name = word(quantity, left - 22, y(0.5), small, "muted", "middle");
      name.setAttribute("transform", `rotate(-90 ${left - 22} ${y(0.5)})`);
      root.append(name);
    }
    names.forEach((lines, n) => lines.forEach((text, k) => root.append(word(text, left - 19, y(1 - n) + (k - (lines.length - 1) / 2) * 1.25 * size.text, size.text, `name side-${n}`, "end"))));
    root.append(...layers(xs, bottom + 3, small));

    const end = (isBack ? second : first) + brick;
    root.append(svg("path", { class: `fan ${side(1)}`, d: `${polyline([[right, y(other)], [first, corners[0]], [first, corners[2]], [right, y(here)]])}Z` }));
    root.append(line("guide", [right, y(other)], [first, corners[0]]), line("guide", [right, y(here)], [first, corners[2]]), line("guide", [first, corners[2]], [end, corners[2]]));
    if (isBack) root.append(line("guide", [first, corners[1]], [end, corners[1]]));
    if (zoom !== 1) root.append(word(`× ${zoom.toFixed(1)}`, first + brick / 2, Math.min(corners[0], corners[1]) - 10, small, "muted", "middle"));

    nodes = bricks.map((each, n) => {
      const isClaim = each.words[0] === claimed && each.words.length === 1;
      const isCredited = each.words[0] === credited && each.words.length === 1;
      const x = each.second ? second : first;
      const middle = each.top + each.tall / 2;
      const name = ["brick", side(each.adds), each.takes === null && !words[each.words[0]].is_source && "rest", isCredited && "credited", isClaim && "claimed"].filter(Boolean).join(" ");
      const node = svg("g", { class: name, role: "listitem", "aria-label": told(each.label, each.adds, each.takes) });
      node.append(area("hit", column - 4, rows[n] - ROW / 2 + 0.5, far + bars - column + 8, ROW - 1), area("body", x, each.top, brick, Math.max(each.tall - 1, 1)));
      node.append(svg("path", { class: "lead", d: lead([x + brick + (each.second ? 0 : beside - brick), middle], [column - 4, rows[n]]) }));
      for (const [kind, part, high] of each.takes === null ? [] : ([["again", each.adds, 10], ["takes", each.takes, 4]] as const)) node.append(area(kind, zero + Math.min(0, part * scale), rows[n] - high / 2, Math.abs(part * scale), high));
      node.append(word(squeeze(each.label, nameRoom, (text) => wide(text, isClaim)), column, rows[n], small, "name"), word(fraction(each.adds), adds, rows[n], small, "adds", "end"));
      if (each.takes !== null) node.append(word(fraction(each.takes), far, rows[n], small, "taken", "end"));
      return node;
    });
    root.append(...nodes);
    const [over, under] = [Math.min(...rows) - ROW, Math.max(...rows) + ROW];
    if (bars) root.append(line("axis", [zero, over + ROW / 2], [zero, under - ROW / 2]));
    root.append(word("adds", adds, over, small, "muted", "end"), word(changed ?? "", far, over, small, "muted", "end"));
    root.append(line("axis", [adds - 26, under - ROW / 2], [adds, under - ROW / 2]), word("gap", column, under, small, "sum"), word(fraction(shown.gap), adds, under, small, "sum", "end"));
    const height = Math.max(bottom + 22, under + ROW / 2 + 2);
    root.setAttribute("height", String(height));
    root.setAttribute("viewBox", `0 0 ${size.width} ${height}`);
    nodes.forEach((node, n) => pointAt(node, () => choose(n), () => choose(null)));
    walk(nodes, choose);
    box.querySelector("svg")?.remove();
    box.append(root);
    key.textContent = [
      `The bricks sum to the gap between both ends${zoom === 1 ? "" : `, ${zoom.toFixed(1)} times as large`}.`,
      ...(bars ? [`Thin bars: what ${shown.changing} a word takes; wide, pale: what it adds.`] : []),
      ...(rails ? ["Dotted: the regions, as far apart as each layer has them."] : []),
      ...(words.some(({ is_unread }) => is_unread) ? ["Gray words come later: they are not read."] : []),
    ].join(" ");
  }
  const key = el("p");
  const node = el("div", { class: "moved figure" }, el("h2", {}, shown.headline), el("p", {}, shown.details.join(" ")), text, said.node, box, key);
  paint(node);
  fit(box, draw);
  return node;
}

/** Return the words along the shift, and those back, in the order of the text; those with little are one brick. */
function stack({ words }: Shift, unit: number): Omit<Brick, "top" | "tall" | "second">[][] {
  const size = (n: number) => Math.abs(words[n].adds ?? 0);
  const largest = [...words.keys()].filter((n) => words[n].is_source).sort((a, b) => size(b) - size(a)).slice(0, NAMED);
  const named = new Set(largest.filter((n) => size(n) * unit >= LEAST));
  let sides = [1, -1].map((along) => [...words.keys()].filter((n) => along * (words[n].adds ?? 0) > 1e-4));
  if (sides[1].reduce((sum, n) => sum + size(n), 0) * unit < COLUMN) sides = [sides.flat(), []];
  return sides.map((some) => {
    const bricks = some.filter((n) => named.has(n)).map((n) => ({ words: [n], label: literal(words[n].name), adds: words[n].adds!, takes: words[n].takes }));
    const rest = some.filter((n) => !named.has(n));
    const adds = rest.reduce((sum, n) => sum + words[n].adds!, 0);
    const label = rest.length === 1 && words[rest[0]].kind === "explained" ? "itself" : `${rest.length} other${rest.length === 1 ? "" : "s"}`;
    return Math.abs(adds) * unit >= OTHERS ? [...bricks, { words: rest, label, adds, takes: null }] : bricks;
  });
}

/** Return a word without its middle, as long as fits. */
function squeeze(text: string, room: number, wide: (text: string) => number): string {
  const letters = [...text];
  for (let kept = letters.length - 1; wide(text) > room && kept > 1; kept--) text = `${letters.slice(0, Math.ceil(kept / 2)).join("")}…${letters.slice(letters.length - Math.floor(kept / 2)).join("")}`;
  return text;
}
