/** All heads of all layers, each as a small map: the longer of layers and heads runs across, as in attnviz.figures.cells. */

import type { Role } from "../colors";
import type { Found } from "../data";
import { measure, type Pen } from "../pen";
import { number, share, weight } from "../text";
import { clamp, fill, heading, headroom, inside, pair, removed, scaleOf, type Box, type Line, type Scene, type Setting, type Spot } from "../scene";

const LABELS = 34;
const MOST = 0.995; // quantile of the weights at which the colors end
const NUMBERS = 18; // pixels of height of the numbers of heads
const [NAME, MARK, FLATTEST] = [14, 7, 0.6]; // pixels above a tile and of the mark of a role; height of a tile over its width
const NOUNS: Record<string, string> = { same: "same word", first: "first word", special: "special tokens" };

interface Tile extends Box {
  layer: number;
  head: number;
  values: Float32Array;
  errors: Float32Array;
  /** The share of the weight that is left without special tokens. */
  left: number;
  found: Found | null;
  from: [number, number, number, number];
}

export function grid(setting: Setting): Scene {
  const { look, theme, width, height: tallest } = setting;
  const [R, C] = [look.rows.to - look.rows.from, look.columns.to - look.columns.from];
  const heads = [...new Set(look.layers.flatMap(({ heads }) => heads))].sort((a, b) => a - b);
  const one = look.layers.length === 1; // a single layer can be wrapped
  const wide = look.layers.length > heads.length; // layers run across
  const sides = [{ name: "layer", numbers: look.layers.map(({ layer }) => layer.layer) }, { name: "head", numbers: heads }];
  const [acrossSide, downSide] = wide ? sides : sides.reverse();
  const across = one ? Math.min(heads.length, Math.max(2, Math.floor((width - LABELS) / 150))) : acrossSide.numbers.length;
  const down = one ? Math.ceil(heads.length / across) : downSide.numbers.length;
  const tables = look.layers.map(({ layer, heads }) => heads.map((head) => look.table(layer.layer, head)));
  const maps = tables.flat();
  const shared = scaleOf(look, theme, maps, MOST);
  const atlas = document.createElement("canvas");
  [atlas.width, atlas.height] = [across * C, down * R];
  const context = atlas.getContext("2d")!;
  const pixels = context.createImageData(atlas.width, atlas.height);
  const own = look.state.colors === "head";
  const less = removed(look, maps.map(({ kept }) => kept));
  const title = `${maps.length} heads${less ? `; ${less}; heads that kept little are pale` : ""}`;
  const scale = own ? null : shared;
  const families = look.layers.flatMap(({ layer, heads }) => heads.map((head) => look.found(layer.layer, head)?.family));
  const counts = new Map([...families].map((family) => [family, families.filter((each) => each === family).length]));
  const key = [...counts].flatMap(([family, count]) => (family ? [{ family: family as Role, said: `${NOUNS[family] ?? family} (${count})`, count }] : [])).sort((a, b) => b.count - a.count);
  // Tiles fill the width; in a low window they are flatter than the map.
  const widest = (width - LABELS) / across;
  const isNamed = key.length > 0 && widest > 66;
  const top = headroom(setting, title, scale) + (one ? NAME : NUMBERS) + (key.length && !isNamed ? NAME + 4 : 0);
  const [ratio, name] = [clamp(R / C, 0.3, 1.7), one || isNamed ? NAME : 0];
  const step = clamp(Math.min(widest, ((tallest - top - 4) / down - name) / (0.9 * ratio * FLATTEST + 0.1)), Math.min(26, widest), 180);
  const side = step * 0.9;
  const tall = clamp((tallest - top - 4) / down - name - step * 0.1, side * ratio * FLATTEST, side * ratio);
  const rise = tall + step * 0.1 + name;
  const tiles: Tile[] = look.layers.flatMap(({ layer, heads: some }, y) =>
    some.map((head, n) => {
      const place = heads.indexOf(head);
      const [column, row] = one ? [n % across, Math.floor(n / across)] : wide ? [y, place] : [place, y];
      const { values, errors, kept } = tables[y][n];
      const colors = own ? scaleOf(look, theme, [tables[y][n]], MOST) : shared;
      fill(pixels, values, R, C, colors, look.state.threshold, column * C, row * R, tables[y][n]);
      const from: Tile["from"] = [column * C, row * R, C, R];
      return { layer: layer.layer, head, values, errors, found: look.found(layer.layer, head), left: kept.reduce((a, b) => a + b, 0) / kept.length, from, x: LABELS + column * step, y: top + row * rise + (one ? 0 : name), w: side, h: tall };
    }),
  );
  context.putImageData(pixels, 0, 0);
  const height = top + down * rise;
  const tileOf = (at: Spot | null) => tiles.find(({ layer, head }) => layer === at?.layer && head === at.head);

  function draw(pen: Pen, at: Spot | null, above: number): void {
    heading(pen, setting, title, scale);
    if (own) pen.text("each head has its own color scale", width, 12, { size: 11, fill: theme.muted, align: "right" });
    for (const { left, from, x, y, w, h, found } of tiles) {
      pen.image(atlas, from, x, y, w, h);
      if (left < 1) pen.rect(x, y, w, h, theme.ground, 0.85 * (1 - left) ** 2);
      pen.frame(x, y, w, h, theme.faint, 0.75);
      if (found?.family) sign(pen, found as Found & { family: Role }, x, y, w);
    }
    let x = LABELS;
    if (!isNamed) for (const { family, said } of key) {
      pen.rect(x, headroom(setting, title, scale) - 3, MARK, MARK, theme.roles[family]);
      pen.text(said, x + MARK + 4, headroom(setting, title, scale) + 1, { size: 11, fill: theme.muted });
      x += MARK + measure(said, 11) + 18;
    }
    numbers(pen, clamp(above - top + NUMBERS, 0, height - top - tall));
    const pointed = tileOf(at);
    if (pointed) pen.frame(pointed.x - 1.5, pointed.y - 1.5, pointed.w + 3, pointed.h + 3, theme.ink, 2);
  }
  /** Mark a tile by the color of its role, and name the role where there is room. */
  function sign(pen: Pen, { family, share: part }: Found & { family: Role }, x: number, y: number, w: number): void {
    const [word, room] = [`${family} ${share(part!)}`, w - MARK - 4];
    const said = !isNamed ? "" : [word, family].find((each) => measure(each, 10.5) + (one ? 44 : 0) <= room) ?? "";
    const wide = said ? MARK + 4 + measure(said, 10.5) : w;
    const left = one ? x + w - wide : x;
    pen.rect(left, said ? y - 11 : y - 3, said ? MARK : w, said ? MARK : 2, theme.roles[family]);
    pen.text(said, left + MARK + 4, y - 7.5, { size: 10.5, fill: theme.muted });
  }
  /** Write the numbers of heads and layers; those across stay at the top of the window. */
  function numbers(pen: Pen, lowered: number): void {
    const words = { size: 11, fill: theme.muted };
    if (one) {
      for (const { head, x, y } of tiles) pen.text(`head ${head}`, x, y - 8, words);
      return;
    }
    const every = Math.ceil(16 / step);
    const y = top - 8 + lowered;
    if (lowered) pen.rect(0, y - 10, width, 18, theme.ground, 0.9);
    acrossSide.numbers.forEach((number, n) => n % every || pen.text(String(number), LABELS + n * step + side / 2, y, { ...words, align: "center" }));
    downSide.numbers.forEach((number, n) => {
      if (n % Math.ceil(13 / rise) === 0) pen.text(String(number), LABELS - 8, top + n * rise + name + tall / 2, { ...words, align: "right" });
    });
    pen.text(acrossSide.name, 0, y, words);
    pen.text(downSide.name, 7, top + (down * rise) / 2, { ...words, align: "center", turned: true });
  }
  function say(at: Spot): Line[] {
    const tile = tileOf(at);
    if (!tile) return [];
    const best = tile.values.reduce((most, value, n) => (Math.abs(value) > Math.abs(tile.values[most]) ? n : most), 0);
    const [row, column] = [Math.floor(best / C), best % C];
    const value = (look.signed ? number : weight)(tile.values[best], tile.errors[row]);
    const lost = removed(look, [Float32Array.of(tile.left)]);
    return [
      [`Layer ${tile.layer}, head ${tile.head}`],
      ...(lost ? [[lost]] : []),
      ["largest ", ...pair(look, look.rows.from + row, look.columns.from + column), `  ${value}`],
      ...(tile.found?.title ? [[tile.found.title]] : []),
    ];
  }
  return {
    height,
    label: `Maps of ${title}: ${downSide.name}s down, ${acrossSide.name}s across`,
    draw,
    say,
    hit: (x, y) => {
      const tile = tiles.find((each) => inside({ ...each, y: each.y - name, w: step, h: rise }, x, y));
      return tile ? { layer: tile.layer, head: tile.head } : null;
    },
    move: (at, right, lower) => {
      const from = tileOf(at) ?? (at ? tiles[0] : null);
      if (!from) return { layer: tiles[0].layer, head: tiles[0].head };
      const [x, y] = [from.x + right * step + 1, from.y + lower * rise + 1];
      const to = tiles.find((each) => inside({ ...each, w: step, h: rise }, x, y)) ?? from;
      return { layer: to.layer, head: to.head };
    },
    press: ({ layer, head }) => (layer === undefined ? {} : { view: "head", layer, heads: [head!], mean: false }),
    place: (at) => {
      const tile = tileOf(at);
      return tile ? [tile.x + tile.w / 2, tile.y + tile.h / 2] : null;
    },
  };
}
