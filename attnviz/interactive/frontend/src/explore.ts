/** The page of `attnviz explore`: all heads of a model, and what each one does. */

import "./page.css";
import "./explore.css";
import { el } from "./dom";
import { figure, type Payload, type State } from "./explorer/data";
import { grid } from "./explorer/grid";
import { headOf } from "./explorer/head";
import { roles } from "./explorer/roles";
import { scatter, type Acts } from "./explorer/scatter";
import { tooltip } from "./tooltip";

const HELP = "Each dot is a head. Click one to see what it reads and writes; arrow keys move in the grid.";
const PASSED = 1000; // milliseconds
const [ACROSS, UP] = ["previous", "induction"]; // statistics on the axes at first

export function explore(root: HTMLElement, payload: Payload): void {
  const { heads, statistics, model, verdict, verified, caption } = payload;
  const night = matchMedia("(prefers-color-scheme: dark)");
  const change = (changed: Partial<State>) => follow({ ...state, ...changed });
  const known = roles(heads, change);
  const tip = tooltip();
  const left = el("div", { class: "left" });
  const acts: Acts = {
    change,
    point(n, x, y) {
      if (n === null) return tip.hide();
      const { name, looks, values, low, high } = heads[n];
      const { left: from, top } = left.getBoundingClientRect();
      const lines = [...new Set([state.y, state.x])].map((column) => {
        const [value, least, most] = [values[column], low?.[column], high?.[column]];
        const between = least != null && most != null ? ` (${figure(least)} to ${figure(most)})` : "";
        return [`${statistics[column].name} ${value == null ? "not measured" : figure(value) + between}`];
      });
      tip.show([[name, looks ? `: ${looks}` : ""], ...lines], x - from, y - top, left.clientWidth);
    },
  };
  const [plot, squares] = [scatter(payload, known, acts), grid(payload, known, acts)];
  const shown = headOf(payload, known, (head) => change({ head }));
  const jump = el("a", { class: "jump", href: "#head", click: (event) => {
    event.preventDefault();
    shown.node.scrollIntoView();
    shown.node.focus({ preventScroll: true });
  } });

  let state: State = { ...start(payload), role: null };
  const begun = state.head;
  let changed = -Infinity;
  const read = () => {
    const wanted = named(location.hash);
    return heads.findIndex(({ name }) => name === wanted);
  };
  function follow(next: State): void {
    const isNew = next.head !== state.head;
    state = next;
    for (const part of [known, plot, squares, shown]) part.follow(state);
    const { name, looks } = heads[state.head];
    jump.textContent = `Head ${name}${looks ? `: ${looks}` : ""} ↓`;
    if (isNew && read() !== state.head) remember(name);
  }
  /** Make a head an entry of the browser's history, unless the one before was only passed on the way. */
  function remember(name: string): void {
    const how = performance.now() - changed > PASSED ? "pushState" : "replaceState";
    changed = performance.now();
    try {
      history[how](null, "", `#${encodeURIComponent(name)}`);
    } catch {
      // a sandboxed frame cannot change its address
    }
  }
  function paint(): void {
    root.dataset.theme = night.matches ? "dark" : "light";
    known.paint(root, night.matches);
  }

  const chip = el("div", { class: "verdict", "data-verdict": verified ? "verified" : "failed", "data-control": "verdict", tabindex: 0 },
    el("span", { class: "brief" }, "✓ verified"), el("span", { class: "whole", role: "note" }, verified ? verdict : `✗ ${verdict}`));
  const count = heads.filter(({ role }) => role).length;
  left.append(plot.node, known.node, squares.node, jump, ...tip.nodes);
  root.classList.add("attnviz", "explore");
  root.replaceChildren(
    el("div", { class: "top" }, el("h1", {}, "What the heads of ", el("bdi", {}, model), " do"),
      el("p", { class: "count" }, `${heads.length.toLocaleString("en-US")} heads, ${count.toLocaleString("en-US")} with a role`),
      ...(verified ? [chip] : [])),
    ...(verified ? [] : [chip]),
    el("p", { class: "hint" }, HELP),
    el("div", { class: "columns-of-page" }, left, shown.node),
    el("footer", {}, ...caption.map((sentence) => el("p", {}, sentence))));
  paint();
  const first = read();
  follow(first < 0 ? state : { ...state, head: first });
  night.addEventListener("change", paint);
  addEventListener("hashchange", () => {
    const head = location.hash ? read() : begun;
    if (head >= 0) follow({ ...state, head });
  });
}

/** Return the name in an address; broken escapes are none. */
function named(hash: string): string {
  try {
    return decodeURIComponent(hash.slice(1));
  } catch {
    return "";
  }
}

/** Return the statistics at first, and the head with a role that exceeds even weights by most in one of them. */
function start({ heads, statistics, axes }: Payload): Omit<State, "role"> {
  const find = (name: string) => statistics.findIndex((statistic) => statistic.name === name);
  const found = [find(ACROSS), find(UP)];
  const complete = statistics.flatMap((_, n) => (heads.every(({ values }) => values[n] != null) ? [n] : []));
  const [x, y] = !found.includes(-1) && !axes?.length ? found : [complete[0] ?? 0, complete[1] ?? Math.min(1, statistics.length - 1)];
  const worth = heads.map(({ values, even, looks, role, examples }) =>
    Math.max(...[x, y].map((column) => (values[column] ?? 0) - (even?.[column] ?? 0))) + (examples.length ? 1e6 : 0) + (role && role === looks && !role.startsWith("rests ") ? 1e3 : 0));
  return { x, y, head: worth.indexOf(Math.max(...worth)) };
}

const data = document.getElementById("attnviz-data");
const root = document.getElementById("attnviz");
if (data && root) explore(root, JSON.parse(data.textContent ?? "") as Payload);
