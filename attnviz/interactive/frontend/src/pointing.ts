/** Handle the pointer, the wheel and the keys of a view. */

import { enlarged } from "./dom";
import type { Scene, Spot } from "./scene";
import { inside } from "./scene";
import type { State } from "./state";
import { panned, zoomed, type Range } from "./zoom";

interface Pointed {
  root: HTMLElement;
  canvas: HTMLCanvasElement;
  sizes(): [number, number];
  change(changed: Partial<State>): void;
  point(at: Spot | null, x: number, y: number): void;
  state(): State;
  at(): Spot | null;
  scene(): Scene | null;
  /** Whether the view fills the whole page, including its keyboard shortcuts. */
  page: boolean;
}

const LONG = 64; // tokens; the wheel zooms longer maps
const ARROWS: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const VIEWS: State["view"][] = ["grid", "head", "token", "steps"];

/** Add the event listeners; return a function that removes the shortcuts. */
export function pointing({ root, canvas, sizes, change, point, state, at, scene, page }: Pointed): () => void {
  const fingers = new Map<number, [number, number]>();
  let dragged: { x: number; y: number; range: Range; moved: boolean } | null = null;
  let spread = 0;

  const place = (event: MouseEvent): [number, number] => {
    const { left, top } = canvas.getBoundingClientRect();
    return [(event.clientX - left) / enlarged(canvas), (event.clientY - top) / enlarged(canvas)];
  };
  const whole = (): Range => [0, sizes()[0], 0, sizes()[1]];
  const range = (): Range => state().range ?? whole();

  function zoom(x: number, y: number, factor: number): void {
    const map = scene()?.map;
    if (!map) return;
    const share = (value: number) => Math.max(0, Math.min(1, value));
    const about: [number, number] = [share((y - map.y) / map.h), share((x - map.x) / map.w)];
    change({ range: zoomed(range(), sizes(), about, factor) });
  }
  function drag(x: number, y: number): void {
    const map = scene()?.map;
    if (!dragged || !map || !state().range) return;
    dragged.moved ||= Math.hypot(x - dragged.x, y - dragged.y) > 4;
    if (!dragged.moved) return;
    const [a, b, c, d] = dragged.range;
    const down = ((dragged.y - y) / map.h) * (b - a);
    const right = ((dragged.x - x) / map.w) * (d - c);
    change({ range: panned(dragged.range, sizes(), down, right) });
  }
  function pinch(): void {
    const [[x1, y1], [x2, y2]] = [...fingers.values()];
    const now = Math.hypot(x1 - x2, y1 - y2);
    if (spread && Math.abs(now / spread - 1) > 0.1) zoom((x1 + x2) / 2, (y1 + y2) / 2, spread / now);
    if (!spread || Math.abs(now / spread - 1) > 0.1) spread = now;
  }

  const on: Partial<{ [K in keyof HTMLElementEventMap]: (event: HTMLElementEventMap[K]) => void }> = {
    pointerdown(event) {
      const [x, y] = place(event);
      fingers.set(event.pointerId, [x, y]);
      const map = scene()?.map;
      dragged = { x, y, range: range(), moved: false };
      if (state().range && map && inside(map, x, y)) canvas.setPointerCapture(event.pointerId);
      point(scene()?.hit(x, y) ?? null, x, y); // a finger does not hover
    },
    pointermove(event) {
      const [x, y] = place(event);
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, [x, y]);
      if (fingers.size === 2) return pinch();
      if (fingers.size === 1) drag(x, y);
      if (!dragged?.moved) point(scene()?.hit(x, y) ?? null, x, y);
    },
    pointerup(event) {
      const several = fingers.size > 1;
      fingers.delete(event.pointerId);
      if (fingers.size < 2) spread = 0;
      const [x, y] = place(event);
      const spot = scene()?.hit(x, y);
      const pressed = dragged && !dragged.moved && !several;
      dragged = null;
      if (pressed && event.button === 0 && spot) change(scene()!.press(spot));
    },
    pointercancel(event) {
      fingers.delete(event.pointerId);
      dragged = null;
      spread = 0;
    },
    pointerleave() {
      point(null, 0, 0);
    },
    dblclick(event) {
      const [x, y] = place(event);
      const map = scene()?.map;
      if (map && inside(map, x, y)) change({ range: null });
    },
    wheel(event) {
      const [x, y] = place(event);
      const map = scene()?.map;
      const wanted = event.ctrlKey || Math.max(...sizes()) > LONG;
      if (!map || !inside(map, x, y) || !wanted) return;
      event.preventDefault();
      zoom(x, y, Math.exp(Math.max(-0.5, Math.min(0.5, event.deltaY * (event.ctrlKey ? 0.01 : 0.002)))));
    },
    keydown(event) {
      const [shown, spot] = [scene(), at()];
      const arrow = ARROWS[event.key];
      if (!shown || event.ctrlKey || event.metaKey || event.altKey) return;
      const [x, y] = (spot && shown.place(spot)) ?? [0, 0];
      if (arrow) step(shown, spot, arrow);
      else if ((event.key === "Enter" || event.key === " ") && spot) change(shown.press(spot));
      else if (event.key === "+" || event.key === "=") zoom(x, y, 0.7);
      else if (event.key === "-") zoom(x, y, 1 / 0.7);
      else if (event.key === "0") change({ range: null });
      else return;
      event.preventDefault();
    },
    blur() {
      point(null, 0, 0);
    },
  };
  /** Move the pointed place; at the edge of a zoomed map, shift the map. */
  function step(shown: Scene, spot: Spot | null, [right, down]: [number, number]): void {
    const next = shown.move(spot, right, down);
    if (spot && shown.map && state().range && JSON.stringify(next) === JSON.stringify(spot)) {
      change({ range: panned(range(), sizes(), down, right) });
    }
    const [x, y] = shown.place(next) ?? [0, 0];
    point(next, x, y);
    const to = canvas.getBoundingClientRect().top + y * enlarged(canvas);
    if (to < 0 || to > innerHeight) scrollTo({ top: scrollY + to - innerHeight / 2 });
  }
  function shortcut(event: KeyboardEvent): void {
    if (event.key === "Escape") return change({ lock: false, key: null });
    const typing = event.target instanceof Element && event.target.matches("input, select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const view = VIEWS[Number(event.key) - 1];
    if (view) change({ view });
    if (event.key !== "/") return;
    root.querySelector<HTMLInputElement>('[data-control="find"]')?.focus();
    event.preventDefault();
  }

  for (const [name, listen] of Object.entries(on)) canvas.addEventListener(name, listen as EventListener, { passive: false });
  const keys: EventTarget = page ? document : root;
  keys.addEventListener("keydown", shortcut as EventListener);
  return () => keys.removeEventListener("keydown", shortcut as EventListener);
}
