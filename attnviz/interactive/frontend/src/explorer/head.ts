/** One head: its numbers, its examples, what it writes, and heads like it. */

import { el } from "../dom";
import { figure, isOpen, share, titleOf, visible, type Example, type Head, type Payload, type State, type Written } from "./data";
import { nameOf, outlineOf, pictureOf } from "./media";
import type { Roles } from "./roles";

const MIXED = 85; // percent of color of a key with all the weight
const [LONG, BEFORE, AFTER] = [56, 14, 8]; // tokens: of a text that is shortened, and what is shown around a query and a key

export interface Shown {
  node: HTMLElement;
  follow(state: State): void;
}

export function headOf(payload: Payload, roles: Roles, select: (head: number) => void): Shown {
  const { heads, statistics, texts, media = {}, axes = [] } = payload;
  // Tokens with blanks of their own are joined as they are; others are words.
  const hasBlanks = Object.values(texts).some((tokens) => tokens.some((token) => /^\s\S/u.test(token)));
  const name = el("h2");
  const looks = el("span", { class: "looks" });
  const effect = el("p", { class: "effect" });
  const values = el("div", { class: "values" });
  const like = el("nav", { class: "like", "aria-label": "Similar heads" });
  const examples = el("div", { class: "examples" });
  const beside = el("div", { class: "beside" });
  let shown = -1;

  function build(head: Head): void {
    name.textContent = `Head ${head.name}`;
    const mark = el("i", { class: !head.role ? "mark none" : isOpen(head) ? "mark open" : "mark" });
    mark.style.setProperty("--role", roles.color(head.role));
    looks.replaceChildren(mark, head.looks || head.role || "no role");
    const loss = head.effect ?? 0;
    effect.hidden = head.effect == null;
    effect.textContent = `Without it, the log-probability of next tokens ${Math.abs(loss) < 0.00005 ? "stays the same" : `${loss > 0 ? "falls" : "rises"} by ${Number(Math.abs(loss).toPrecision(2))} nats`}.`;
    const others = (head.similar ?? []).filter((n) => heads[n]);
    like.hidden = !others.length;
    like.replaceChildren(el("h3", {}, "Similar heads"), ...others.map((n) => {
      const dot = el("i", { class: !heads[n].role ? "mark none" : isOpen(heads[n]) ? "mark open" : "mark" });
      dot.style.setProperty("--role", roles.color(heads[n].role));
      return el("a", { href: `#${encodeURIComponent(heads[n].name)}`, title: heads[n].looks || "no role", click: (event) => {
        event.preventDefault();
        select(n);
      } }, dot, heads[n].name);
    }));
    examples.replaceChildren(
      ...list(head, "Strongest examples", noteOn(head), "strongest", head.examples, () => ""),
      ...list(head, "Typical examples", "Random queries, with the share of them that is weaker.", "typical", head.deciles, ({ decile }) => `${decile} %`));
    const { writes } = head;
    beside.replaceChildren(...(writes && writes.raises.length + writes.lowers.length ? [writesOf(writes)] : []));
    examples.hidden = !examples.childNodes.length;
    beside.hidden = !beside.childNodes.length;
  }

  const sidesOf = (head: Head) => (head.axes ? [axes[head.axes[0]], axes[head.axes[1]]] : null);
  function noteOn(head: Head): string {
    const [queries, keys] = sidesOf(head)?.map(({ kind }) => kind) ?? ["tokens", "tokens"];
    if (keys === "patches") return "Outlined: the query. Shaded: its keys, from 0 to the largest weight.";
    if (keys === "frames") return queries === "frames" ? "Line: the query. Shaded: its keys, from 0 to the largest weight." : "Outlined: the query. Shaded: its frames, from 0 to the largest weight.";
    return "Outlined: the query. Shaded: its keys. Bold: the key with the weight.";
  }

  function list<E extends Example>(head: Head, title: string, note: string, kind: string, all: E[] | null, label: (example: E) => string): HTMLElement[] {
    const known = (all ?? []).filter((each) => texts[each.text] || media[each.text]);
    if (!known.length) return [];
    return [el("section", { class: kind }, el("h3", {}, title, ...(note ? [el("small", {}, note)] : [])),
      el("ol", { class: sidesOf(head)?.[1].kind ?? "tokens" }, ...known.map((each) => line(head, each, label(each)))))];
  }

  function line(head: Head, example: Example, label: string): HTMLElement {
    const { text, weight } = example;
    const sides = sidesOf(head);
    const medium = media[text];
    const [queries, keys] = sides?.map(({ kind }) => kind) ?? ["tokens", "tokens"];
    const parts = sides && medium && keys !== "tokens"
      ? [...(queries === "tokens" ? [sentence(example, false)] : []), (keys === "patches" ? pictureOf : outlineOf)(example, medium, sides[0], sides[1])]
      : [sentence(example, true)];
    const pair = sides && keys !== "tokens" ? `weight from ${nameOf(sides[0], example.row)} to ${nameOf(sides[1], example.key)}` : "weight of the key in bold";
    return el("li", {}, ...(label ? [el("span", { class: "decile" }, label)] : []), el("b", { title: pair }, share(weight)),
      ...(parts.length > 1 ? [el("div", { class: "both" }, ...parts)] : parts));
  }

  /** Show a text, with the query outlined, and its keys unless they are elsewhere. */
  function sentence(example: Example, hasKeys: boolean): HTMLElement {
    const { text, row, key } = example;
    const tokens = texts[text];
    const unit = payload.axes?.length ? 1000 : 1;
    const weights = hasKeys ? example.weights : [];
    const isNear = (n: number) => [row, key].some((at) => n >= at - BEFORE && n <= at + AFTER);
    const parts: (Node | string)[] = [];
    let skipped = false;
    tokens.forEach((token, n) => {
      if (tokens.length > LONG && !isNear(n)) {
        if (!skipped) parts.push(parts.length ? " … " : "… ");
        skipped = true;
        return;
      }
      if (parts.length && !skipped && (!hasBlanks || /^\s\S/u.test(token) || /\S\s$|\n/u.test(tokens[n - 1]))) parts.push(" ");
      skipped = false;
      const of = (weights[n] ?? 0) / unit;
      const word = el("bdi", hasKeys ? { title: share(of) } : {}, visible(token));
      if (of >= 0.005) {
        word.style.background = `color-mix(in srgb, var(--key) ${Math.round(MIXED * Math.min(1, of))}%, transparent)`;
        if (of > 0.6) word.style.color = "var(--ground)";
      }
      word.classList.toggle("query", n === row);
      word.classList.toggle("key", hasKeys && n === key);
      parts.push(word);
    });
    return el("p", {}, ...parts);
  }

  return {
    node: el("article", { class: "head", id: "head", tabindex: -1 },
      el("header", {}, el("div", {}, el("div", { class: "name" }, name, looks), values), el("div", {}, like, effect)), examples, beside),
    follow({ head, x, y }) {
      if (shown !== head) build(heads[(shown = head)]);
      const one = heads[head];
      values.replaceChildren(...[...new Set([y, x])].map((column) => {
        const [value, low, high, even] = [one.values[column], one.low?.[column], one.high?.[column], one.even?.[column]];
        const most = Math.max(...heads.map(({ values }) => values[column] ?? 0), high ?? 0, even ?? 0, 1); // a share of the weight is at most 1
        const at = (number: number) => `${Math.min(100, Math.max(0, (100 * number) / most)).toFixed(2)}%`;
        const bar = el("span", { class: "range", "aria-hidden": "true" });
        const add = (kind: string, start: number, end?: number) => {
          const part = el("i", { class: kind });
          part.style.left = at(start);
          if (end !== undefined) part.style.right = `calc(100% - ${at(end)})`;
          bar.append(part);
        };
        if (value != null) add("value", 0, value);
        if (low != null && high != null) add("interval", low, high);
        if (even != null) add("even", even);
        return el("div", { title: titleOf(statistics[column]) },
          el("span", {}, statistics[column].name), el("b", {}, value == null ? "not measured" : figure(value)),
          bar, el("small", {}, low != null && high != null ? `${figure(low)} to ${figure(high)}${even != null ? ", " : ""}` : "",
            ...(even != null ? [el("span", { class: "if-even", title: "with even weights" }, `even ${figure(even)}`)] : [])));
      }));
    },
  };
}

/** Show the words whose logits a head raises and lowers. */
function writesOf({ raises, lowers }: { raises: Written[]; lowers: Written[] }): HTMLElement {
  const most = Math.max(1e-9, ...[...raises, ...lowers].map(([, change]) => Math.abs(change)));
  const column = (title: string, kind: string, words: Written[]) => (words.length ? [el("div", { class: kind }, el("h4", {}, title),
    el("ul", {}, ...words.map(([word, change, count]) => {
      const row = el("li", { title: `in ${count} ${count === 1 ? "text" : "texts"}` }, el("bdi", {}, visible(word)), el("b", {}, `${change > 0 ? "+" : ""}${figure(change)}`));
      row.style.setProperty("--size", `${((100 * Math.abs(change)) / most).toFixed(1)}%`);
      return row;
    })))] : []);
  return el("section", { class: "writes" }, el("h3", {}, "What it writes"),
    el("div", { class: "columns" }, ...column("Raised", "up", raises), ...column("Lowered", "down", lowers)),
    el("p", { class: "note" }, "Mean change of a word's logit where the head attends most."));
}
