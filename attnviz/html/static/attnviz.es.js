// src/data.ts
function e(e, n) {
	let r = /* @__PURE__ */ new Map();
	return (i) => {
		let [a, o] = n[i], s = r.get(i) ?? t(e.slice(a, a + o));
		return r.set(i, s), s;
	};
}
async function t(e) {
	let t = Uint8Array.from(atob(e), (e) => e.charCodeAt(0)), n = new Blob([t]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
	return new Uint8Array(await new Response(n).arrayBuffer());
}
function n(e, t, n, r) {
	let { shape: i, levels: a, scale: o } = e, s = i.reduce((e, t) => e * t, 1), c = s / i[0], l = t.length >= 2 * s, u = new Float32Array(r);
	for (let i = 0, d = n; i < r; i++, d++) {
		let n = t[d] + (l ? t[s + d] << 8 : 0), r = typeof o == "number" ? o : o[Math.floor(d / c)];
		u[i] = e.kind === "root" ? r * (n / a) ** 2 : r * (n - 32768);
	}
	return u;
}
// src/colours.ts
var r = {
	devon_r: "fffffffbfafef7f6fdf2f1fceeedfceae8fbe6e4fae2dff9dedbf8dad6f7d6d2f6d2cdf6cec9f5cac5f4c6c0f3c2bcf2beb8f2bab3f1b5aff0b0abeeaba6eda4a2eb9d9de89599e58c95e28290df798cdb6f88d76583d25b7ecd517ac84875c14171bb3b6db43669ad3265a62e629f2b5d9829599028548a274f8327497d274478283f72283a6d2936692931642a2c5f2a285a2b23562b1e512c1a4c",
	oslo: "01010104070b060c130911190c151f0d19250e1c2c0e20320f2439102840112c4713314e143555163a5d183e641a436c1c48731f4c7b22518326568b2a5b932f609b3465a33b6bab4371b24b77b9537dbe5b83c36388c66a8dc87091c97795c97d99ca839dca89a0ca8ea4c994a8c99aacc9a0afc9a7b4caadb8cbb4bdccbac2cec2c7d1c9cdd4d1d3d9d8dadee0e1e4e8e9eaeff0f1f7f7f8ffffff",
	vik: "001261011a6602226b022a7002317502397a03417f03498405518908598f106294196b9a2575a1337fa84289af5194b6619ebd71a8c480b2ca90bcd1a0c5d8b0cfdec0d8e4cfe0e8dee6e9e8e7e5eee3dceedbd0ecd1c3e8c8b5e4bea8dfb49adbaa8dd7a081d39774cf8e68cc855dc87c51c47445c06b3abc622fb65824af4c18a5400f9a35088f2b068522067c1b067314066a0d07620607590008",
	berlin: "9eb0ff93affa87adf47bacee6fa9e862a6e056a2d74b9bcd4194c1398bb43382a82f789c2b6f8f276683245d7820546c1d4b611a4256173a4b143240122a3611232c101c2311161b121214160e0d1b0b07210b03260d012c0e00330f00391100411201481502501803591c0763210c6e281379301b8439248e422e984c39a25544ac5e4fb6685ac07165ca7b71d5857ddf8f89ea9995f4a3a1ffadad"
}, i = /* @__PURE__ */ new Map();
function a(e) {
	let t = i.get(e);
	if (t) return t;
	let n = r[e].match(/../g).map((e) => parseInt(e, 16)), a = n.length / 3 - 1, o = Uint8Array.from({ length: 768 }, (e, t) => {
		let [r, i] = [Math.floor(t / 3) / 255 * a, t % 3], o = Math.min(Math.floor(r), a - 1), [s, c] = [n[3 * o + i], n[3 * o + 3 + i]];
		return Math.round(s + (c - s) * (r - o));
	});
	return i.set(e, o), o;
}
function o({ low: e, high: t, log: n }, r) {
	let i = n ? Math.log(Math.max(r, e) / e) / Math.log(t / e) : (r - e) / (t - e);
	return Math.round(255 * Math.min(1, Math.max(0, i)));
}
function s(e, t) {
	let [n, r] = [a(e.map), 3 * o(e, t)];
	return `rgb(${n[r]},${n[r + 1]},${n[r + 2]})`;
}
function c(e, t) {
	let [n, r] = [a(e.map), 3 * o(e, t)];
	return .2126 * n[r] + .7152 * n[r + 1] + .0722 * n[r + 2] < .48 * 255;
}
var l = [
	"#34508f",
	"#d1495b",
	"#e3a02f",
	"#2f8f7a",
	"#8c8c8c",
	"#8a6fb0",
	"#4fa3d1",
	"#b0653a",
	"#7d8f2f",
	"#c77fb0",
	"#5b4a42",
	"#1f6f5c"
], u = [
	"#8fa8e8",
	"#f0808f",
	"#f0bd62",
	"#5cc4ab",
	"#b4b4b4",
	"#b9a2dd",
	"#7cc4ec",
	"#d99468",
	"#b0c25c",
	"#e5a8d2",
	"#b3a098",
	"#57a893"
], d = {
	dark: !1,
	ground: "#ffffff",
	ink: "#1a1a1a",
	muted: "#5c5c5c",
	faint: "#d5d5dd",
	accent: "#d1495b",
	weights: "devon_r",
	signed: "vik",
	lines: l
}, f = {
	dark: !0,
	ground: "#14161a",
	ink: "#ececec",
	muted: "#a6a8ad",
	faint: "#3b3f47",
	accent: "#ff7d8c",
	weights: "oslo",
	signed: "berlin",
	lines: u
};
// src/dom.ts
function p(e, t = {}, ...n) {
	let r = document.createElement(e);
	for (let [e, n] of Object.entries(t)) typeof n == "function" ? r.addEventListener(e, n) : n !== !1 && r.setAttribute(e, n === !0 ? "" : String(n));
	return r.append(...n), r;
}
function m(e, t) {
	let n = URL.createObjectURL(t), r = p("a", {
		href: n,
		download: e
	});
	document.body.append(r), r.click(), r.remove(), setTimeout(() => URL.revokeObjectURL(n), 1e4);
}
// src/text.ts
var h = /[\p{Cc}\p{Cs}\p{Co}\p{Noncharacter_Code_Point}\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/gu, g = 60;
function _(e) {
	let t = e.replace(h, (e) => {
		let t = e.codePointAt(0);
		return t === 8232 || t === 8233 ? "␊" : t === 127 ? "␡" : t < 32 ? String.fromCharCode(9216 + t) : "�";
	}), n = t.trim() === "" ? t.replace(/\s/gu, "·") || "∅" : t;
	return n.length <= g ? n : [...n].slice(0, 59).join("") + "…";
}
function v(e, t, n) {
	if (n(e) <= t) return e;
	let r = [...e], [i, a] = [0, r.length];
	for (; a - i > 1;) {
		let e = i + a >> 1;
		n(r.slice(0, e).join("") + "…") <= t ? i = e : a = e;
	}
	return r.slice(0, i).join("") + "…";
}
function y(e, t) {
	return e === 0 ? "0 (masked)" : b(e, t);
}
function b(e, t) {
	let n = Math.min(12, Math.max(0, Math.floor(-Math.log10(2 * Math.max(t, 1e-12))))), r = Math.abs(e);
	if (r === 0) return "0";
	let i = Math.min(4, n + Math.floor(Math.log10(r)) + 1);
	if (i < 1) return `${e < 0 ? "−" : ""}<${10 ** -n >= 1e-4 ? (10 ** -n).toFixed(n) : `1e-${n}`}`;
	let a = r < .001 ? r.toExponential(i - 1) : r.toPrecision(i);
	return (e < 0 ? "−" : "") + a;
}
function x(e) {
	return e.toFixed(2).replace(/^(-?)0\./, "$1.").replace("-", "−");
}
function S(e) {
	if (e === 0) return "0";
	let t = Math.abs(e), n = t < .005 ? t.toExponential(0) : String(Number(t.toPrecision(2)));
	return (e < 0 ? "−" : "") + n;
}
function C(e) {
	let t = [];
	for (let n = 0, r; n < e.length; n = r + 1) {
		for (r = n; e[r + 1] === e[r] + 1;) r++;
		t.push(n === r ? `${e[n]}` : `${e[n]}–${e[r]}`);
	}
	return t.join(", ");
}
function w(e, t) {
	let n = /* @__PURE__ */ new Set();
	for (let [, r, i] of e.matchAll(/(\d+)(?:\s*[-–]\s*(\d+))?/g)) {
		let e = Number(i ?? r);
		for (let i of t) i >= Number(r) && i <= e && n.add(i);
	}
	return n.size ? [...n].sort((e, t) => e - t) : null;
}
function T({ start: e }) {
	return {
		view: e.view,
		stack: e.stack,
		layer: e.layer,
		heads: [e.head],
		query: null,
		key: null,
		lock: !1,
		words: e.words,
		special: "keep",
		threshold: 0,
		find: "",
		show: "first",
		layers: null,
		only: null,
		colours: "shared",
		by: "query",
		range: null,
		theme: "auto"
	};
}
function E({ view: e, stack: t, layer: n, heads: r, query: i, key: a, words: o }) {
	return {
		view: e,
		stack: t,
		layer: n,
		heads: r,
		query: i,
		key: a,
		words: o
	};
}
var D = {
	view: [
		"grid",
		"head",
		"token",
		"steps"
	],
	special: [
		"keep",
		"hide",
		"remove"
	],
	show: [
		"first",
		"second",
		"difference"
	],
	colours: ["shared", "head"],
	by: ["query", "key"],
	theme: [
		"auto",
		"light",
		"dark"
	]
};
function O(e, t) {
	let n = [];
	for (let r of Object.keys(t)) {
		let i = e[r];
		String(i) !== String(t[r]) && n.push(`${r}=${encodeURIComponent(k(r, i)).replace(/%2C/g, ",")}`);
	}
	return n.join("&");
}
function k(e, t) {
	return typeof t == "boolean" ? t ? "1" : "0" : Array.isArray(t) ? e === "range" ? t.join(",") : C(t).replace(/–/g, "-").replace(/ /g, "") : String(t ?? "");
}
function A(e, t) {
	let n = T(t), r = {};
	for (let t of e.replace(/^#/, "").split("&")) {
		let [e, n = ""] = t.split("=");
		try {
			r[e] = decodeURIComponent(n);
		} catch {
			continue;
		}
	}
	return M({
		...n,
		...j(r)
	}, t);
}
function j(e) {
	let t = Array.from({ length: 512 }, (e, t) => t), n = (e) => /^\d{1,7}$/.test(e) ? Number(e) : null, r = {};
	for (let [i, a] of Object.entries(e)) if (D[i]) D[i].includes(a) && (r[i] = a);
	else if (i === "stack" || i === "find") r[i] = a.slice(0, 200);
	else if (i === "lock" || i === "words") r[i] = a === "1";
	else if (i === "layer" && n(a) !== null) r[i] = n(a);
	else if (i === "query" || i === "key") r[i] = n(a);
	else if (i === "threshold" && Number.isFinite(Number(a))) r[i] = Number(a);
	else if (i === "layers" || i === "only") r[i] = w(a, t);
	else if (i === "heads" && w(a, t)) r[i] = w(a, t);
	else if (i === "range") {
		let e = a.split(",").map(n);
		r[i] = e.length === 4 && e.every((e) => e !== null) ? e : null;
	}
	return r;
}
function M(e, { results: t, start: n }) {
	let r = t[0].stacks.find(({ name: t }) => t === e.stack) ?? t[0].stacks.find(({ name: e }) => e === n.stack) ?? t[0].stacks[0], i = r.layers.find(({ layer: t }) => t === e.layer) ?? r.layers[0], a = e.heads.filter((e) => i.heads.includes(e)).slice(0, 12), [o, s] = [r.queries, r.keys].map((e) => t[0].axes[e].labels.length), c = (e, t) => e !== null && e < t ? e : null, l = (e, t) => {
		let n = e?.filter((e) => t.includes(e)) ?? [];
		return n.length && n.length < t.length ? n : null;
	}, u = [...new Set(r.layers.flatMap(({ heads: e }) => e))], [d, f] = [c(e.query, o), c(e.key, s)];
	return {
		...e,
		stack: r.name,
		layer: i.layer,
		heads: a.length ? a : [i.heads[0]],
		query: d,
		key: f,
		lock: e.lock && (d !== null || f !== null),
		threshold: Math.min(1, Math.max(0, e.threshold)),
		show: t.length > 1 ? e.show : "first",
		layers: l(e.layers, r.layers.map(({ layer: e }) => e)),
		only: l(e.only, u),
		range: N(e.range, o, s)
	};
}
function N(e, t, n) {
	if (!e) return null;
	let r = (e, t, n) => {
		let r = Math.max(0, Math.min(Math.round(e), n - 1));
		return [r, Math.max(r + 1, Math.min(Math.round(t), n))];
	}, [i, a, o, s] = [...r(e[0], e[1], t), ...r(e[2], e[3], n)];
	return a - i === t && s - o === n ? null : [
		i,
		a,
		o,
		s
	];
}
// src/controls.ts
var P = {
	grid: "Grid",
	head: "Head",
	token: "Token",
	steps: "Steps"
}, F = 32, I = [
	["1 – 4", "grid, head, token, steps"],
	["← ↑ → ↓", "move over the view"],
	["Enter", "open a head, lock a token"],
	["Esc", "unlock"],
	["+ − 0", "zoom a map, show all of it"],
	["/", "search a token"]
];
function L(e, t, n) {
	let { change: r } = n, i = e.results.length > 1, a = e.results[0].stacks, o = (e) => a.find(({ name: t }) => t === e.stack), s = (e) => o(e).layers.find((t) => t.layer === e.layer), c = ({ view: e }) => e === "grid" || e === "token", [l, u] = e.results.map(({ name: e }) => e), d = [
		z(r),
		...a.length > 1 ? [V("stack", "Stack", a.map(({ name: e, title: t }) => [e, t]), r)] : [],
		R(H(r, o), (e) => !c(e)),
		R(U(r, s, t), (e) => !c(e)),
		R(ee("layers", "Layers", r, (e) => o(e).layers.map(({ layer: e }) => e)), c),
		R(ee("only", "Heads", r, (e) => [...new Set(o(e).layers.flatMap(({ heads: e }) => e))]), c)
	], f = [
		...i ? [V("show", "Show", [
			["first", `1: ${l}`],
			["second", `2: ${u}`],
			["difference", "1 − 2"]
		], r)] : [],
		R(V("by", "Weights", [["query", "it gives"], ["key", "it gets"]], r), ({ view: e }) => e === "token"),
		R(te(r), ({ view: e }) => e !== "steps"),
		R(V("special", "Special tokens", [
			["keep", "keep"],
			["hide", "hide"],
			["remove", "remove, renormalise"]
		], r), ({ view: e }) => e !== "steps"),
		R(ne(r), ({ view: e }) => e !== "steps"),
		R(V("colours", "Colours", [["shared", "shared"], ["head", "per head"]], r), ({ view: e }) => e === "grid"),
		re(r, n.next),
		V("theme", "Theme", [
			["auto", "auto"],
			["light", "light"],
			["dark", "dark"]
		], r),
		ie(n)
	], m = [...d, ...f], h = (e, t, n) => p("div", {
		class: e,
		role: "group",
		"aria-label": t
	}, ...n.map(({ node: e }) => e));
	return {
		node: p("div", { class: "bars" }, h("bar", "What is shown", d), h("bar more", "How it is shown", f)),
		follow: (e) => m.forEach((t) => t.follow(e))
	};
}
function R(e, t) {
	return {
		node: e.node,
		follow: (n) => {
			e.node.hidden = !t(n), t(n) && e.follow(n);
		}
	};
}
function z(e) {
	let t = Object.entries(P).map(([t, n], r) => p("button", {
		type: "button",
		"data-control": `view-${t}`,
		title: `${n} (${r + 1})`,
		click: () => e({ view: t })
	}, n));
	return {
		node: p("div", {
			class: "tabs",
			role: "group",
			"aria-label": "View"
		}, ...t),
		follow: ({ view: e }) => t.forEach((t, n) => t.setAttribute("aria-pressed", String(Object.keys(P)[n] === e)))
	};
}
function B(e, t, ...n) {
	return p("label", {}, p("span", {}, e), t, ...n);
}
function V(e, t, n, r) {
	let i = n.map(([e, t]) => p("option", { value: e }, t)), a = p("select", {
		"data-control": e,
		change: () => r({ [e]: a.value })
	}, ...i);
	return {
		node: B(t, a),
		follow: (t) => a.value = String(t[e])
	};
}
function H(e, t) {
	let n = p("select", {
		"data-control": "layer",
		change: () => e({ layer: Number(n.value) })
	}), r = null;
	return {
		node: B("Layer", n),
		follow: (e) => {
			r !== t(e) && (r = t(e), n.replaceChildren(...r.layers.map(({ layer: e }) => p("option", { value: e }, String(e))))), n.value = String(e.layer);
		}
	};
}
function U(e, t, n) {
	let r = p("span", { class: "chips" }), i = "", a, o = W("heads", (n) => e({ heads: w(n, t(a).heads) ?? a.heads })), s = (t, n) => {
		let r = a.heads.includes(t), i = a.heads.filter((e) => e !== t), o = r ? i : [...a.heads, t].sort((e, t) => e - t);
		e({ heads: n || a.view === "steps" || !o.length ? [t] : o.slice(-12) });
	};
	return {
		node: p("div", {
			class: "field",
			role: "group",
			"aria-label": "Heads"
		}, p("span", {}, "Heads"), r),
		follow: (e) => {
			a = e;
			let c = t(e).heads;
			i !== String(c) && (i = String(c), r.replaceChildren(...c.length > F ? [o] : c.map((e) => p("button", {
				type: "button",
				class: "chip",
				"data-control": `head-${e}`,
				title: "click to add or take away, double click for this one alone",
				click: () => s(e, !1),
				dblclick: () => s(e, !0)
			}, String(e))))), o.value = C(e.heads), c.forEach((t, i) => {
				if (c.length > F) return;
				let a = r.children[i], o = (e.view === "steps" ? e.heads.slice(0, 1) : e.heads).indexOf(t);
				a.setAttribute("aria-pressed", String(o >= 0)), a.style.borderBottomColor = o >= 0 ? n()[o % n().length] : "";
			});
		}
	};
}
function W(e, t) {
	let n = p("input", {
		type: "text",
		size: 7,
		"data-control": e,
		placeholder: "all",
		title: "numbers such as 0-3, 7",
		change: () => t(n.value)
	});
	return n;
}
function ee(e, t, n, r) {
	let i, a = W(e, (t) => {
		n({ [e]: w(t, r(i)) }), a.value = C(i[e] ?? []);
	});
	return {
		node: B(t, a),
		follow: (t) => {
			i = t, a.value = C(t[e] ?? []);
		}
	};
}
function te(e) {
	let t = p("select", {
		"data-control": "words",
		change: () => e({ words: t.value === "words" })
	}, p("option", { value: "words" }, "words"), p("option", { value: "pieces" }, "pieces"));
	return {
		node: B("Tokens", t),
		follow: (e) => t.value = e.words ? "words" : "pieces"
	};
}
function ne(e) {
	let t = p("input", {
		type: "range",
		min: 0,
		max: 1,
		step: .01,
		"data-control": "threshold-slider",
		"aria-label": "Hide weights below",
		input: () => e({ threshold: Number((Number(t.value) ** 2).toPrecision(2)) })
	}), n = p("input", {
		type: "number",
		min: 0,
		max: 1,
		step: "any",
		"data-control": "threshold",
		"aria-label": "Hide weights below, as a number",
		change: () => e({ threshold: Number(n.value) || 0 })
	});
	return {
		node: p("div", { class: "field" }, p("span", {}, "Hide below"), t, n),
		follow: ({ threshold: e }) => {
			Math.abs(Number(t.value) ** 2 - e) > .006 * Math.max(e, .01) && (t.value = String(Math.sqrt(e))), document.activeElement !== n && (n.value = String(e));
		}
	};
}
function re(e, t) {
	let n = p("input", {
		type: "search",
		size: 9,
		"data-control": "find",
		placeholder: "token",
		title: "Enter goes to the next match",
		input: () => e({ find: n.value }),
		keydown: (e) => e.key === "Enter" && t()
	});
	return {
		node: B("Find", n),
		follow: ({ find: e }) => {
			n.value !== e && (n.value = e);
		}
	};
}
function ie({ save: e }) {
	let t = p("dl", {}, ...I.flatMap(([e, t]) => [p("dt", {}, e), p("dd", {}, t)])), n = p("details", { class: "help" }, p("summary", {
		"aria-label": "Keyboard help",
		"data-control": "help"
	}, "?"), t), r = (t) => p("button", {
		type: "button",
		"data-control": `save-${t}`,
		title: `Save this view as ${t.toUpperCase()}`,
		click: () => e(t)
	}, t.toUpperCase());
	return {
		node: p("div", { class: "end" }, r("svg"), r("png"), n),
		follow: () => {}
	};
}
// src/footer.ts
var ae = 12;
function oe({ results: e, notes: t }) {
	let n = p("p", {
		class: "verdict",
		"data-control": "verdict"
	}), r = p("p", { class: "source" }), i = p("ul"), a = p("details", {}, p("summary", {}, "About these numbers"), i), o = (t) => t.signed ? e : [t.result], s = (e) => o(e).find(({ verdict: e }) => e !== "verified") ?? e.result, c = (e) => o(e).map(({ source: t }, n) => e.signed ? `${n + 1}: ${t}` : t).join(". ");
	return {
		node: p("footer", {}, n, r, a),
		follow(e) {
			let l = s(e);
			n.dataset.verdict = l.verdict, n.textContent = `${l.verdict === "verified" ? "✓" : "✗"} ${l.summary}`, r.textContent = c(e);
			let u = [...o(e).flatMap(({ notes: e }) => e), ...t];
			i.replaceChildren(...u.map((e) => p("li", {}, e))), a.hidden = u.length === 0;
		},
		caption(e) {
			let { state: t } = e, n = t.special === "remove" ? "special tokens removed, rows renormalised to 1" : "special tokens hidden, rows not renormalised", r = e.rows.units.positions.concat(e.columns.units.positions).some(({ length: e }) => e > 1), i = [
				c(e),
				...e.cell > 1 || t.special === "keep" || t.view === "steps" ? [] : [n],
				...e.cell === 1 && r ? ["word pieces merged (columns summed, rows averaged)"] : [],
				...t.threshold > 0 ? [`weights below ${t.threshold} not drawn`] : [],
				...e.notes
			], { summary: a, verdict: o } = s(e);
			return {
				verdict: a,
				isProven: o === "verified",
				lines: [i.join(". ") + "."]
			};
		}
	};
}
function se(e, t, n, r, i) {
	let a = n.view === "steps", o = a && !r || n.view === "head" && t.notes.some((e) => e.startsWith("only pooled")), s = r ? t.notes.join("; ") : `The queries and keys of layer ${n.layer}, head ${n.heads[0]} do not travel with this page`, c = s ? [`${s}. `] : [];
	if (o) {
		let e = t.stack.layers.flatMap(({ layer: e, heads: t, exact: n }) => t.filter((e, t) => a ? n[t]?.query : n[t]).map((t) => ({
			layer: e,
			head: t
		}))), r = e.sort((e, t) => Math.abs(e.layer - n.layer) - Math.abs(t.layer - n.layer)).slice(0, ae), o = ({ layer: e, head: t }) => p("button", {
			type: "button",
			"data-control": `offer-${e}-${t}`,
			click: () => i({
				layer: e,
				heads: [t]
			})
		}, `${e}.${t}`), s = [...new Set(e.map(({ layer: e }) => e))].sort((e, t) => e - t), l = a ? "They do" : "Exact weights do";
		c.push(e.length ? `${l} for ${e.length} heads of layers ${C(s)}, such as ` : `${l} for no head.`, ...r.map(o));
	}
	e.replaceChildren(...c), e.hidden = c.length === 0;
}
// src/pen.ts
var ce = "system-ui, -apple-system, \"Segoe UI\", Roboto, \"Noto Sans\", \"DejaVu Sans\", sans-serif", le = document.createElement("canvas").getContext("2d");
function ue(e = 12, t = !1) {
	return `${t ? "600 " : ""}${e}px ${ce}`;
}
function G(e, t = 12, n = !1) {
	let r = ue(t, n);
	return le.font !== r && (le.font = r), le.measureText(e).width;
}
var de = class {
	to;
	constructor(e) {
		this.to = e;
	}
	rect(e, t, n, r, i, a = 1) {
		this.to.globalAlpha = a, this.to.fillStyle = i, this.to.fillRect(e, t, n, r), this.to.globalAlpha = 1;
	}
	frame(e, t, n, r, i, a = 1) {
		this.to.strokeStyle = i, this.to.lineWidth = a, this.to.strokeRect(e, t, n, r);
	}
	line(e, t, n, r, i, a = 1) {
		this.stroke(i, a, 1, () => {
			this.to.moveTo(e, t), this.to.lineTo(n, r);
		});
	}
	curve(e, t, n, r, i, a, o) {
		let s = (e + n) / 2;
		this.stroke(i, a, o, () => {
			this.to.moveTo(e, t), this.to.bezierCurveTo(s, t, s, r, n, r);
		});
	}
	stroke(e, t, n, r) {
		this.to.globalAlpha = n, this.to.strokeStyle = e, this.to.lineWidth = t, this.to.beginPath(), r(), this.to.stroke(), this.to.globalAlpha = 1;
	}
	text(e, t, n, { size: r, fill: i, align: a = "left", bold: o, turned: s }) {
		if (this.to.font = ue(r, o), this.to.fillStyle = i, this.to.textAlign = a, this.to.textBaseline = "middle", this.to.direction = "ltr", !s) return this.to.fillText(e, t, n);
		this.to.save(), this.to.translate(t, n), this.to.rotate(-Math.PI / 2), this.to.fillText(e, 0, 0), this.to.restore();
	}
	image(e, [t, n, r, i], a, o, s, c) {
		let l = Math.abs(this.to.getTransform().a) * s < r;
		this.to.imageSmoothingEnabled = l, this.to.imageSmoothingQuality = "high", this.to.drawImage(e, t, n, r, i, a, o, s, c);
	}
}, fe = "http://www.w3.org/2000/svg", pe = class {
	root = document.createElementNS(fe, "svg");
	constructor(e, t) {
		let n = {
			width: e,
			height: t,
			viewBox: `0 0 ${e} ${t}`,
			"font-family": ce
		};
		for (let [e, t] of Object.entries(n)) this.root.setAttribute(e, String(t));
	}
	add(e, t) {
		let n = document.createElementNS(fe, e);
		for (let [e, r] of Object.entries(t)) n.setAttribute(e, typeof r == "number" ? String(Math.round(r * 100) / 100) : r);
		return this.root.appendChild(n);
	}
	rect(e, t, n, r, i, a = 1) {
		this.add("rect", {
			x: e,
			y: t,
			width: n,
			height: r,
			fill: i,
			...a < 1 && { opacity: a }
		});
	}
	frame(e, t, n, r, i, a = 1) {
		this.add("rect", {
			x: e,
			y: t,
			width: n,
			height: r,
			stroke: i,
			"stroke-width": a,
			fill: "none"
		});
	}
	line(e, t, n, r, i, a = 1) {
		this.add("line", {
			x1: e,
			y1: t,
			x2: n,
			y2: r,
			stroke: i,
			"stroke-width": a
		});
	}
	curve(e, t, n, r, i, a, o) {
		let [s, c, l, u, d] = [
			e,
			t,
			n,
			(e + n) / 2,
			r
		].map((e) => Math.round(e * 10) / 10), f = `M${s},${c}C${u},${c} ${u},${d} ${l},${d}`;
		this.add("path", {
			d: f,
			stroke: i,
			"stroke-width": a,
			opacity: o,
			fill: "none"
		});
	}
	text(e, t, n, { size: r = 12, fill: i, align: a = "left", bold: o, turned: s }) {
		let c = {
			left: "start",
			center: "middle",
			right: "end"
		}[a];
		this.add("text", {
			x: t,
			y: n,
			fill: i,
			"font-size": r,
			"text-anchor": c,
			"dominant-baseline": "central",
			...o && { "font-weight": 600 },
			...s && { transform: `rotate(-90 ${Math.round(t * 10) / 10} ${Math.round(n * 10) / 10})` }
		}).textContent = e;
	}
	image(e, [t, n, r, i], a, o, s, c) {
		let l = document.createElement("canvas");
		[l.width, l.height] = [r, i], l.getContext("2d").drawImage(e, t, n, r, i, 0, 0, r, i);
		let u = l.toDataURL("image/png");
		this.add("image", {
			x: a,
			y: o,
			width: s,
			height: c,
			href: u,
			preserveAspectRatio: "none",
			"image-rendering": "pixelated"
		});
	}
	toString() {
		return new XMLSerializer().serializeToString(this.root);
	}
};
// src/formula.ts
function me(e, t) {
	let n = e.length;
	return Float64Array.from({ length: t.length / n }, (r, i) => {
		let a = 0;
		for (let r = 0, o = i * n; r < n; r++, o++) a += e[r] * t[o];
		return a;
	});
}
function he(e, t, n, r) {
	let i = n.softCap;
	return me(e, t).map((e, t) => {
		if (ge(n, r, t)) return -Infinity;
		let a = e * n.scale;
		return i === null ? a : i * Math.tanh(a / i);
	});
}
function ge({ before: e, after: t, offset: n, hidden: r }, i, a) {
	return e !== null && a < i + n - e || t !== null && a > i + n + t || r.includes(a);
}
function _e(e, t = null) {
	let n = e.reduce((e, t) => Math.max(e, t), t ?? -Infinity);
	if (n === -Infinity) return new Float64Array(e.length);
	let r = e.map((e) => Math.exp(e - n)), i = t === null ? 0 : Math.exp(t - n), a = r.reduce((e, t) => e + t, i);
	return r.map((e) => e / a);
}
function ve(e, t) {
	return Array.isArray(e.sink) ? e.sink[t] : e.sink;
}
function ye(e, t, n, r) {
	return _e(he(e, t, n, r), ve(n, r));
}
// src/maps.ts
function be(e, t, n) {
	let r = new Set(e.special), i = /* @__PURE__ */ new Map();
	e.labels.forEach((a, o) => {
		if (!n && r.has(o)) return;
		let s = t ? e.words[o] : null, c = s === null ? `piece ${o}` : `word ${s}`;
		i.set(c, [...i.get(c) ?? [], o]);
	});
	let a = [...i.values()];
	return Se(e, a, a.map(([n]) => {
		let r = t ? e.words[n] : null;
		return r === null ? e.labels[n] : e.wordLabels[r];
	}));
}
function xe(e, t, n) {
	let r = e.labels.length, i = Array.from({ length: n }, (e, n) => Array.from({ length: Math.max(0, Math.min(t, r - n * t)) }, (e, r) => n * t + r));
	return Se(e, i, i.map(([t]) => `${e.labels[t] ?? ""} …`));
}
function Se(e, t, n) {
	let r = new Int32Array(e.labels.length).fill(-1);
	t.forEach((e, t) => e.forEach((e) => r[e] = t));
	let i = new Set(e.special);
	return {
		labels: n,
		positions: t,
		of: r,
		special: t.map((e) => e.length > 0 && e.every((e) => i.has(e)))
	};
}
function Ce(e, t, n) {
	let r = e.positions.map((e) => e.some((e) => e >= t && e < n)), i = Math.max(0, r.indexOf(!0));
	return {
		units: e,
		from: i,
		to: Math.max(i, r.lastIndexOf(!0) + 1)
	};
}
function we(e, t) {
	for (let n = 0; n < e.of.length; n++) for (let r of [t + n, t - n]) if (e.of[r] >= 0) return e.of[r];
	return 0;
}
function Te(e, t) {
	let n = e.labels.map((e, n) => e === t.labels[n] ? e : `${e} | ${t.labels[n]}`);
	return {
		...e,
		labels: n
	};
}
function Ee(e, t) {
	return String(e.positions) === String(t.positions);
}
function De(e, t, n, r, i) {
	let [a, o] = [n.to - n.from, r.to - r.from], s = {
		values: new Float32Array(a * o),
		errors: new Float32Array(a)
	}, { of: c, positions: l } = r.units, u = l.reduce((e, { length: t }) => Math.max(e, t), 1);
	for (let d = 0; d < a; d++) {
		let a = n.units.positions[n.from + d], f = new Float64Array(l.length);
		for (let t of a) {
			let n = e(t);
			for (let e = 0; e < c.length; e++) c[e] >= 0 && (f[c[e]] += n[e] / a.length);
		}
		let p = i && f.reduce((e, t) => e + t, 0) || 1;
		for (let e = 0; e < o; e++) s.values[d * o + e] = f[r.from + e] / p;
		s.errors[d] = t * u / p;
	}
	return s;
}
// src/reader.ts
var Oe = 128, ke = 2 ** 24, Ae = class {
	source;
	bytes = /* @__PURE__ */ new Map();
	known = /* @__PURE__ */ new Map();
	constructor(e) {
		this.source = e;
	}
	async look(e) {
		let { results: t } = this.source.payload, n = e.show === "difference" ? t.slice(0, 2) : [t[+(e.show === "second")]], r = n.map((t) => t.stacks.find(({ name: t }) => t === e.stack)), i = je(e, r[0]), a = r.map((e) => (t, n) => Me(e, t, n)), o = i.flatMap(({ layer: e, heads: t }) => t.map((t) => [e.layer, t])), { rows: s, columns: c, pooled: l, notes: u } = Pe(e, n, r, i), d = l ? i[0].layer.pooled.cell : 1;
		for (let t of a) {
			let n = o.map(([e, n]) => t(e, n));
			await this.load(n.flatMap(({ layer: t, exact: n }) => l ? [t.pooled.maps] : Ne(n, e.view))), !l && e.view !== "steps" && await this.compute(n, s);
		}
		let f = e.special === "remove" && !l, p = (e, t) => {
			let [n, r] = a.map((n) => {
				let r = n(e, t), [i, a] = l ? this.pooledRow(r) : this.exactRow(r.exact);
				return De(i, a, ...l ? [Ie(s), Ie(c)] : [s, c], f);
			});
			return r ? Le(n, r) : n;
		}, m = (e, t) => this.vectors(a[0](e, t).exact), h = n.length > 1;
		return {
			state: e,
			result: n[0],
			stack: r[0],
			layers: i,
			rows: s,
			columns: c,
			cell: d,
			signed: h,
			notes: u,
			table: p,
			vectors: m
		};
	}
	async load(e) {
		let t = [...new Set(e.filter((e) => e !== null).map(({ block: e }) => e))].filter((e) => !this.bytes.has(e)), n = await Promise.all(t.map((e) => this.source.block(e)));
		t.forEach((e, t) => this.bytes.set(e, n[t]));
	}
	part(e, t, r) {
		return n(e, this.bytes.get(e.block), t, r);
	}
	exactRow(e) {
		if (e.map === null) return [(t) => this.known.get(e).get(t), e.error];
		let { map: t } = e;
		return [(e) => this.part(t, e * t.shape[1], t.shape[1]), e.error];
	}
	pooledRow({ layer: e, head: t }) {
		let { maps: n, rows: r, columns: i } = e.pooled, a = e.heads.indexOf(t);
		return [(e) => this.part(n, (a * r + e) * i, i), (typeof n.scale == "number" ? n.scale : n.scale[a]) / n.levels];
	}
	vectors(e) {
		if (!e?.query || !e.key || !e.rule) return null;
		let [t, n] = [e.query, e.key].map((e) => this.part(e, 0, e.shape[0] * e.shape[1]));
		return {
			query: t,
			key: n,
			d: e.key.shape[1],
			rule: e.rule
		};
	}
	async compute(e, t) {
		let [n, r] = [performance.now(), 0];
		for (let e of this.known.values()) for (let t of e.values()) r += t.length;
		r > ke && this.known.clear();
		for (let { exact: r } of e) {
			if (!r || r.map) continue;
			let e = this.known.get(r) ?? /* @__PURE__ */ new Map();
			this.known.set(r, e);
			let i = t.units.positions.slice(t.from, t.to).flat().filter((t) => !e.has(t));
			if (!i.length) continue;
			let { query: a, key: o, d: s, rule: c } = this.vectors(r);
			for (let t of i) e.set(t, Float32Array.from(ye(a.subarray(t * s, (t + 1) * s), o, c, t))), performance.now() - n < 25 || (await new Promise((e) => setTimeout(e)), n = performance.now());
		}
	}
};
function je(e, t) {
	let n = e.view === "head" || e.view === "steps", r = (t) => n ? t.layer === e.layer : !e.layers || e.layers.includes(t.layer), i = (t) => n ? e.heads : t.heads.filter((t) => !e.only || e.only.includes(t));
	return t.layers.filter(r).map((e) => ({
		layer: e,
		heads: i(e)
	}));
}
function Me(e, t, n) {
	let r = e.layers.find((e) => e.layer === t);
	return {
		layer: r,
		head: n,
		exact: r.exact[r.heads.indexOf(n)]
	};
}
function Ne(e, t) {
	return e ? e.map && t !== "steps" ? [e.map] : [e.query, e.key] : [];
}
function Pe(e, t, n, r) {
	let i = e.view === "steps", a = n.map(({ queries: e, keys: n }, r) => [t[r].axes[e], t[r].axes[n]]), o = (t) => a.map((n) => n.map((n) => be(n, t && !i, e.special === "keep" || i))), s = [], c = o(e.words);
	c.length > 1 && !(Ee(c[0][0], c[1][0]) && Ee(c[0][1], c[1][1])) && (s.push("The words of the two texts have different pieces, so pieces are compared"), c = o(!1));
	let l = (e, t) => t.length > 1 ? Te(t[0][e], t[1][e]) : t[0][e], u = (t, n) => {
		let [r, o] = a[0].map(({ labels: e }) => e.length), [s, c, l, u] = (e.view === "grid" ? null : e.range) ?? [
			0,
			r,
			0,
			o
		], d = Ce(t, s, c), f = Ce(n, l, u), p = (e, t) => {
			let n = we(e.units, t ?? Fe(e.units));
			return {
				units: e.units,
				from: n,
				to: n + 1
			};
		};
		return e.view === "token" && e.by === "key" ? [d, p(f, e.key)] : e.view === "token" || i ? [p(d, e.query), f] : [d, f];
	}, [d, f] = u(l(0, c), l(1, c)), p = Math.max(d.to - d.from, f.to - f.from), m = !i && r.every(({ layer: e }) => e.pooled), h = r.every(({ layer: e, heads: t }) => t.every((t) => e.exact[e.heads.indexOf(t)]));
	if (!m || p <= Oe && h) return {
		rows: d,
		columns: f,
		pooled: !1,
		notes: s
	};
	let { cell: g, rows: _, columns: v } = r[0].layer.pooled, y = a.map(([e, t]) => [xe(e, g, _), xe(t, g, v)]);
	s.push(`Each cell joins ${g} × ${g} tokens: weights summed over keys, averaged over queries`), e.special !== "keep" && s.push("special tokens are not taken out of them"), !h && p <= Oe && s.push("only pooled weights of some of these heads travel with this page");
	let [b, x] = u(l(0, y), l(1, y));
	return {
		rows: b,
		columns: x,
		pooled: !0,
		notes: s
	};
}
function Fe({ special: e, positions: t }) {
	return t[Math.max(0, e.indexOf(!1))][0];
}
function Ie({ units: e, from: t, to: n }) {
	let r = e.positions.map((e, t) => [t]);
	return {
		units: {
			...e,
			positions: r,
			of: Int32Array.from(r, ([e]) => e)
		},
		from: t,
		to: n
	};
}
function Le(e, t) {
	return {
		values: e.values.map((e, n) => e - t.values[n]),
		errors: e.errors.map((e, n) => e + t.errors[n])
	};
}
// src/save.ts
var Re = 16, ze = 16;
function Be(e, t, n, r, i, a) {
	let o = a.lines.flatMap((e) => Ve(e, r)), s = Ve(a.verdict, r), c = n.height + (o.length + s.length) * ze + ze, l = (e) => {
		e.rect(-16, -16, r + 32, c + 32, i.ground), n.draw(e, null);
		let t = (t, r, i) => e.text(t, 0, n.height + (r + 1) * ze, {
			size: 11,
			fill: i
		});
		o.forEach((e, n) => t(e, n, i.muted)), s.forEach((e, n) => t(e, o.length + n, a.isProven ? i.ink : i.accent));
	};
	if (e === "svg") {
		let e = new pe(r + 32, c + 32);
		e.root.setAttribute("viewBox", [
			-16,
			-16,
			r + 32,
			c + 32
		].join(" ")), l(e), m(`${t}.svg`, new Blob([e.toString()], { type: "image/svg+xml" }));
		return;
	}
	let u = document.createElement("canvas"), d = Math.min(3, 16e3 / Math.max(r + 32, c + 32));
	[u.width, u.height] = [(r + 32) * d, (c + 32) * d];
	let f = u.getContext("2d");
	f.scale(d, d), f.translate(Re, Re), l(new de(f)), u.toBlob((e) => e && m(`${t}.png`, e));
}
function Ve(e, t) {
	let n = [""];
	for (let r of e.split(" ")) {
		let e = `${n[n.length - 1]} ${r}`.trim();
		G(e, 11) <= t ? n[n.length - 1] = e : n.push(r);
	}
	return n;
}
// src/tooltip.ts
function He() {
	let e = p("div", {
		role: "tooltip",
		class: "tip"
	}), t = p("div", {
		class: "spoken",
		"aria-live": "polite"
	});
	e.hidden = !0;
	let n = 0;
	return {
		nodes: [e, t],
		show(r, i, a, o) {
			e.replaceChildren(...r.map((e) => p("div", {}, ...e.map((e) => typeof e == "string" ? e : p("bdi", {}, e.token))))), e.hidden = !1, e.style.left = `${Math.max(0, Math.min(i + 14, o - e.offsetWidth))}px`, e.style.top = `${a + 18}px`, clearTimeout(n), n = setTimeout(() => t.textContent = e.innerText, 150);
		},
		hide() {
			e.hidden = !0;
		}
	};
}
// src/scene.ts
function K({ x: e, y: t, w: n, h: r }, i, a) {
	return i >= e && i < e + n && a >= t && a < t + r;
}
function q(e, t, n) {
	return Math.max(t, Math.min(e, n));
}
function J(e, t, n, r, i = 0) {
	let a = document.createElement("canvas");
	[a.width, a.height] = [n, t];
	let o = a.getContext("2d"), s = o.createImageData(n, t);
	return Ue(s, e, t, n, r, i, 0, 0), o.putImageData(s, 0, 0), a;
}
function Ue({ data: e, width: t }, n, r, i, s, c, l, u) {
	let d = a(s.map);
	for (let a = 0, f = 0; a < r; a++) for (let r = 0, p = 4 * ((u + a) * t + l); r < i; r++, f++, p += 4) {
		let t = n[f];
		if (Number.isNaN(t) || c > 0 && Math.abs(t) < c) continue;
		let r = 3 * o(s, t);
		e[p] = d[r], e[p + 1] = d[r + 1], e[p + 2] = d[r + 2], e[p + 3] = 255;
	}
}
function We({ signed: e, cell: t, columns: n }, r, i) {
	let a = Math.max(i, 1e-9);
	if (e) return {
		map: r.signed,
		low: -a,
		high: a,
		log: !1,
		label: "difference of weights"
	};
	let o = 1 / (n.to - n.from);
	return t > 1 ? {
		map: r.weights,
		low: o / 3,
		high: Math.max(a, 3 * o),
		log: !0,
		label: "attention weight (log)"
	} : {
		map: r.weights,
		low: 0,
		high: a,
		log: !1,
		label: "attention weight"
	};
}
function Y(e, t) {
	let n = Math.max(1, Math.floor(e.length / 5e4)), r = Float32Array.from({ length: Math.ceil(e.length / n) }, (t, r) => Math.abs(e[r * n])).sort();
	return r.length ? r[Math.floor(t * (r.length - 1))] : 0;
}
function Ge(e, { theme: t, width: n }, r, i) {
	if (e.text(r, 0, 12, {
		size: 15,
		bold: !0,
		fill: t.ink
	}), !i) return;
	let [a, o] = [Math.min(170, n * .36), 8], s = Ke(n, r, i), [c, l] = [n - a - 8, s ? 30 : 6], u = J(Float32Array.from({ length: 256 }, (e, t) => t), 1, 256, {
		...i,
		low: 0,
		high: 255,
		log: !1
	});
	e.image(u, [
		0,
		0,
		256,
		1
	], c, l, a, o), e.frame(c, l, a, o, t.faint, .5), e.text(i.label, c - 10, l + 4, {
		size: 11,
		fill: t.muted,
		align: "right"
	});
	let d = i.log ? Math.sqrt(i.low * i.high) : (i.low + i.high) / 2;
	for (let [n, r] of [
		[0, i.low],
		[.5, d],
		[1, i.high]
	]) {
		let i = n === 0 ? "left" : n === 1 ? "right" : "center";
		e.text(S(r), c + n * a, l + 17, {
			size: 10,
			fill: t.muted,
			align: i
		});
	}
}
function Ke(e, t, n) {
	return G(t, 15, !0) + G(n.label, 11) + Math.min(170, e * .36) + 50 > e;
}
function qe({ width: e }, t, n) {
	return n && Ke(e, t, n) ? 60 : 38;
}
function X(e, t, n) {
	let r = (e) => ({ token: _(e) });
	return [
		r(e.rows.units.labels[t]),
		" ← ",
		r(e.columns.units.labels[n])
	];
}
function Je(e) {
	let [t, n] = [e[0], e[e.length - 1]];
	return t === n ? `${t}` : `${t}–${n}`;
}
// src/zoom.ts
var Ye = 4;
function Xe([e, t, n, r], [i, a], [o, s], c) {
	let l = (e, t, n, r) => {
		let i = Math.min(n, Math.max(Math.min(Ye, n), (t - e) * c)), a = c < 1 ? Math.floor(i) : Math.ceil(i);
		return $e(Math.round(e + r * (t - e) - r * a), a, n);
	};
	return [...l(e, t, i, o), ...l(n, r, a, s)];
}
function Ze([e, t, n, r], [i, a], o, s) {
	return [...$e(e + Math.round(o), t - e, i), ...$e(n + Math.round(s), r - n, a)];
}
function Qe(e, [t, n], r, i) {
	if (!e) return null;
	let [a, o, s, c] = e, l = (e, t, n, r) => r === null || r >= e && r < t ? [e, t] : $e(r - Math.floor((t - e) / 2), t - e, n);
	return [...l(a, o, t, r), ...l(s, c, n, i)];
}
function $e(e, t, n) {
	let r = Math.max(0, Math.min(e, n - t));
	return [r, r + t];
}
// src/pointing.ts
var et = 64, tt = {
	ArrowLeft: [-1, 0],
	ArrowRight: [1, 0],
	ArrowUp: [0, -1],
	ArrowDown: [0, 1]
}, nt = [
	"grid",
	"head",
	"token",
	"steps"
];
function rt({ root: e, canvas: t, sizes: n, change: r, point: i, state: a, at: o, scene: s, page: c }) {
	let l = /* @__PURE__ */ new Map(), u = null, d = 0, f = (e) => {
		let { left: n, top: r } = t.getBoundingClientRect();
		return [e.clientX - n, e.clientY - r];
	}, p = () => [
		0,
		n()[0],
		0,
		n()[1]
	], m = () => a().range ?? p();
	function h(e, t, i) {
		let a = s()?.map;
		if (!a) return;
		let o = (e) => Math.max(0, Math.min(1, e)), c = [o((t - a.y) / a.h), o((e - a.x) / a.w)];
		r({ range: Xe(m(), n(), c, i) });
	}
	function g(e, t) {
		let i = s()?.map;
		if (!u || !i || !a().range || (u.moved ||= Math.hypot(e - u.x, t - u.y) > 4, !u.moved)) return;
		let [o, c, l, d] = u.range, f = (u.y - t) / i.h * (c - o), p = (u.x - e) / i.w * (d - l);
		r({ range: Ze(u.range, n(), f, p) });
	}
	function _() {
		let [[e, t], [n, r]] = [...l.values()], i = Math.hypot(e - n, t - r);
		d && Math.abs(i / d - 1) > .1 && h((e + n) / 2, (t + r) / 2, d / i), (!d || Math.abs(i / d - 1) > .1) && (d = i);
	}
	let v = {
		pointerdown(e) {
			let [n, r] = f(e);
			l.set(e.pointerId, [n, r]);
			let i = s()?.map;
			u = {
				x: n,
				y: r,
				range: m(),
				moved: !1
			}, a().range && i && K(i, n, r) && t.setPointerCapture(e.pointerId);
		},
		pointermove(e) {
			let [t, n] = f(e);
			if (l.has(e.pointerId) && l.set(e.pointerId, [t, n]), l.size === 2) return _();
			l.size === 1 && g(t, n), u?.moved || i(s()?.hit(t, n) ?? null, t, n);
		},
		pointerup(e) {
			let t = l.size > 1;
			l.delete(e.pointerId), l.size < 2 && (d = 0);
			let [n, i] = f(e), a = s()?.hit(n, i), o = u && !u.moved && !t;
			u = null, o && e.button === 0 && a && r(s().press(a));
		},
		pointercancel(e) {
			l.delete(e.pointerId), u = null, d = 0;
		},
		pointerleave() {
			i(null, 0, 0);
		},
		dblclick(e) {
			let [t, n] = f(e), i = s()?.map;
			i && K(i, t, n) && r({ range: null });
		},
		wheel(e) {
			let [t, r] = f(e), i = s()?.map, a = e.ctrlKey || Math.max(...n()) > et;
			i && K(i, t, r) && a && (e.preventDefault(), h(t, r, Math.exp(Math.max(-.5, Math.min(.5, e.deltaY * (e.ctrlKey ? .01 : .002))))));
		},
		keydown(e) {
			let [t, n] = [s(), o()], i = tt[e.key];
			if (!t || e.ctrlKey || e.metaKey || e.altKey) return;
			let [a, c] = (n && t.place(n)) ?? [0, 0];
			if (i) y(t, n, i);
			else if ((e.key === "Enter" || e.key === " ") && n) r(t.press(n));
			else if (e.key === "+" || e.key === "=") h(a, c, .7);
			else if (e.key === "-") h(a, c, 1 / .7);
			else if (e.key === "0") r({ range: null });
			else return;
			e.preventDefault();
		},
		blur() {
			i(null, 0, 0);
		}
	};
	function y(e, o, [s, c]) {
		let l = e.move(o, s, c);
		o && e.map && a().range && JSON.stringify(l) === JSON.stringify(o) && r({ range: Ze(m(), n(), c, s) });
		let [u, d] = e.place(l) ?? [0, 0];
		i(l, u, d);
		let { top: f } = t.getBoundingClientRect();
		(f + d < 0 || f + d > innerHeight) && scrollTo({ top: scrollY + f + d - innerHeight / 2 });
	}
	function b(t) {
		if (t.key === "Escape") return r({
			lock: !1,
			key: null
		});
		if (t.target instanceof Element && t.target.matches("input, select, textarea") || t.ctrlKey || t.metaKey || t.altKey) return;
		let n = nt[Number(t.key) - 1];
		n && r({ view: n }), t.key === "/" && (e.querySelector("[data-control=\"find\"]")?.focus(), t.preventDefault());
	}
	for (let [e, n] of Object.entries(v)) t.addEventListener(e, n, { passive: !1 });
	let x = c ? document : e;
	return x.addEventListener("keydown", b), () => x.removeEventListener("keydown", b);
}
// src/views/grid.ts
var Z = 34;
function it(e) {
	let { look: t, theme: n, width: r } = e, [i, a] = [t.rows.to - t.rows.from, t.columns.to - t.columns.from], o = [...new Set(t.layers.flatMap(({ heads: e }) => e))].sort((e, t) => e - t), s = t.layers.length === 1, c = s ? Math.min(o.length, Math.max(2, Math.floor((r - Z) / 150))) : o.length, l = s ? Math.ceil(o.length / c) : t.layers.length, u = q(Math.min((r - Z) / c, 660 / l), Math.min(26, (r - Z) / c), 180), d = u * .9, f = d * q(i / a, .3, 1.7), p = f + u * .1 + (s ? 14 : 0), m = t.layers.map(({ layer: e, heads: n }) => n.map((n) => t.table(e.layer, n))), h = We(t, n, at(m.flat().map(({ values: e }) => e))), g = document.createElement("canvas");
	[g.width, g.height] = [c * a, l * i];
	let _ = g.getContext("2d"), v = _.createImageData(g.width, g.height), x = t.state.colours === "head", S = `${t.layers.reduce((e, { heads: t }) => e + t.length, 0)} heads`, C = x ? null : h, w = qe(e, S, C) + (s ? 14 : 0), T = t.layers.flatMap(({ layer: e, heads: r }, l) => r.map((r, g) => {
		let _ = s ? g : o.indexOf(r), [y, b] = [_ % c, s ? Math.floor(_ / c) : l], { values: S, errors: C } = m[l][g], T = x ? We(t, n, at([S])) : h;
		Ue(v, S, i, a, T, t.state.threshold, y * a, b * i);
		let E = [
			y * a,
			b * i,
			a,
			i
		];
		return {
			layer: e.layer,
			head: r,
			values: S,
			errors: C,
			from: E,
			x: Z + y * u,
			y: w + b * p,
			w: d,
			h: f
		};
	}));
	_.putImageData(v, 0, 0);
	let E = w + l * p + (s ? 4 : 34), D = (e) => T.find(({ layer: t, head: n }) => t === e?.layer && n === e.head);
	function O(t, i) {
		Ge(t, e, S, C), x && t.text("each head's colours end at its own largest weight", r, 12, {
			size: 11,
			fill: n.muted,
			align: "right"
		});
		for (let { from: e, x: r, y: i, w: a, h: o } of T) t.image(g, e, r, i, a, o), t.frame(r, i, a, o, n.faint, .75);
		k(t);
		let a = D(i);
		a && t.frame(a.x - 1.5, a.y - 1.5, a.w + 3, a.h + 3, n.accent, 2);
	}
	function k(e) {
		let r = {
			size: 11,
			fill: n.muted
		};
		if (s) {
			for (let { head: t, x: n, y: i } of T) e.text(`head ${t}`, n, i - 8, r);
			return;
		}
		let i = Math.ceil(16 / u), a = w + l * p + 4;
		o.forEach((t, n) => n % i || e.text(String(t), Z + n * u + d / 2, a, {
			...r,
			align: "center"
		})), t.layers.forEach(({ layer: t }, n) => {
			n % Math.ceil(13 / p) === 0 && e.text(String(t.layer), 26, w + n * p + f / 2, {
				...r,
				align: "right"
			});
		}), e.text("Head", Z + c * u / 2, a + 17, {
			...r,
			align: "center"
		}), e.text("Layer", 7, w + l * p / 2, {
			...r,
			align: "center",
			turned: !0
		});
	}
	function A(e) {
		let n = D(e);
		if (!n) return [];
		let r = n.values.reduce((e, t, r) => Math.abs(t) > Math.abs(n.values[e]) ? r : e, 0), [i, o] = [Math.floor(r / a), r % a], s = (t.signed ? b : y)(n.values[r], n.errors[i]);
		return [[`Layer ${n.layer}, head ${n.head}`], [
			"largest ",
			...X(t, t.rows.from + i, t.columns.from + o),
			`  ${s}`
		]];
	}
	return {
		height: E,
		label: `Maps of ${S}: layers down, heads across`,
		draw: O,
		say: A,
		hit: (e, t) => {
			let n = T.find((n) => K({
				...n,
				w: u,
				h: p
			}, e, t));
			return n ? {
				layer: n.layer,
				head: n.head
			} : null;
		},
		move: (e, t, n) => {
			let r = D(e) ?? (e ? T[0] : null);
			if (!r) return {
				layer: T[0].layer,
				head: T[0].head
			};
			let [i, a] = [r.x + t * u + 1, r.y + n * p + 1], o = T.find((e) => K({
				...e,
				w: u,
				h: p
			}, i, a)) ?? r;
			return {
				layer: o.layer,
				head: o.head
			};
		},
		press: ({ layer: e, head: t }) => e === void 0 ? {} : {
			view: "head",
			layer: e,
			heads: [t]
		},
		place: (e) => {
			let t = D(e);
			return t ? [t.x + t.w / 2, t.y + t.h / 2] : null;
		}
	};
}
function at(e) {
	return e.reduce((e, t) => Math.max(e, Y(t, .995)), 0);
}
// src/matrix.ts
var ot = 9.5;
function st(e) {
	let { theme: t, scale: n } = e, [r, i] = [e.rows.length, e.columns.length], [a, o] = [e.rows.map(_), e.columns.map(_)], s = (e, t) => e.reduce((e, n) => Math.max(e, G(n, t)), 0), l = 22 + Math.min(e.width * .28, 120, s(a, 12)), u = Math.min(e.largest, (e.width - l) / i), d = e.flat ?? u, f = {
		x: e.x + l,
		y: e.y,
		w: u * i,
		h: d * r
	}, [p, m] = [ct(d), ct(u)], h = s(o, m) > u - 4, g = 24 + (h ? Math.min(110, s(o, m)) : m + 2), y = {
		x: e.x,
		y: e.y,
		w: l + f.w,
		h: f.h + g
	}, b = J(e.values, r, i, n, e.threshold), S = u >= 30 && d >= 17;
	function C(n, a, o) {
		n.image(b, [
			0,
			0,
			i,
			r
		], f.x, f.y, f.w, f.h), u >= 8 && d >= 8 && w(n), n.frame(f.x, f.y, f.w, f.h, t.faint, .75);
		for (let r of e.breaks ?? []) n.line(f.x - 4, f.y + r * d, f.x + f.w, f.y + r * d, t.faint, .75);
		S && T(n), E(n, a, o);
		let [s, c] = [f.x + (o ?? 0) * u, f.y + (a ?? 0) * d];
		a !== null && n.frame(f.x, c, f.w, d, t.accent, o === null ? 1.5 : .75), o !== null && n.frame(s, f.y, u, f.h, t.accent, a === null ? 1.5 : .75), a !== null && o !== null && n.frame(s, c, u, d, t.accent, 2);
	}
	function w(e) {
		for (let n = 1; n < i; n++) e.line(f.x + n * u, f.y, f.x + n * u, f.y + f.h, t.ground, .5);
		for (let n = 1; n < r; n++) e.line(f.x, f.y + n * d, f.x + f.w, f.y + n * d, t.ground, .5);
	}
	function T(t) {
		for (let a = 0, o = 0; a < r; a++) for (let r = 0; r < i; r++, o++) {
			let i = e.values[o];
			if (e.threshold > 0 && Math.abs(i) < e.threshold) continue;
			let s = c(n, i) ? "#ffffff" : "#1a1a1a";
			t.text(x(i), f.x + (r + .5) * u, f.y + (a + .5) * d, {
				size: 10,
				fill: s,
				align: "center"
			});
		}
	}
	function E(n, s, c) {
		let _ = l - 22, y = (e, n) => e || n ? t.accent : t.ink;
		lt(r, d, s, (t) => {
			let r = v(a[t], _, (e) => G(e, p, t === s)), i = y(t === s, e.found?.row(t));
			n.text(r, f.x - 6, f.y + (t + .5) * d, {
				size: p,
				fill: i,
				align: "right",
				bold: t === s
			});
		}), lt(i, u, c, (t) => {
			let r = v(o[t], h ? g - 24 : u - 2, (e) => G(e, m, t === c)), i = y(t === c, e.found?.column(t)), [a, s] = [f.x + (t + .5) * u, f.y + f.h];
			h ? n.text(r, a, s + 6, {
				size: m,
				fill: i,
				align: "right",
				turned: h,
				bold: t === c
			}) : n.text(r, a, s + 6 + m / 2, {
				size: m,
				fill: i,
				align: "center",
				bold: t === c
			});
		}), n.text(e.yName, e.x + 6, f.y + f.h / 2, {
			size: 11,
			fill: t.muted,
			align: "center",
			turned: !0
		}), n.text(e.xName, f.x + f.w / 2, f.y + f.h + g - 8, {
			size: 11,
			fill: t.muted,
			align: "center"
		});
	}
	function D(t, n) {
		let a = q(Math.floor((n - f.y) / d), 0, r - 1), o = q(Math.floor((t - f.x) / u), 0, i - 1);
		return K(f, t, n) ? {
			row: a,
			column: o
		} : K({
			...f,
			x: e.x + 14,
			w: l - 14
		}, t, n) ? { row: a } : K({
			...f,
			y: f.y + f.h,
			h: g - 16
		}, t, n) ? { column: o } : null;
	}
	function O(e, t) {
		return [t === null ? f.x - 12 : f.x + (t + .5) * u, e === null ? f.y + f.h + 10 : f.y + (e + .5) * d];
	}
	return {
		cells: f,
		box: y,
		draw: C,
		at: D,
		centre: O
	};
}
function ct(e) {
	return q(Math.floor(e), 9, 12);
}
function lt(e, t, n, r) {
	let i = Math.ceil(ot / t);
	for (let t = 0; t < e; t += i) (n === null || t === n || Math.abs(t - n) >= i) && r(t);
	n !== null && n % i && r(n);
}
// src/views/head.ts
var ut = 100;
function dt(e) {
	let { look: t, theme: n, width: r, found: i } = e, { state: a, rows: o, columns: s } = t, [c, l] = [o.to - o.from, s.to - s.from], u = t.layers[0].heads, d = u.map((e) => t.table(a.layer, e)), f = d[0].values.map((e, t) => d.reduce((e, { values: n }) => e + n[t], 0) / d.length), p = (e) => Math.max(...d.map(({ errors: t }) => t[e])), m = ft(f, c, l, o.units.special.slice(o.from, o.to)), h = We(t, n, m), g = `Layer ${a.layer}, head${u.length > 1 ? "s" : ""} ${C(u)}`, x = qe(e, g, h), S = r < 720, [w, T] = S ? [r, 0] : [Math.min(400, r * .36), 36], [E, D] = [Math.min(c, ut), Math.min(l, ut)], O = q((S ? 420 : 640) / Math.max(E, D), 10.5, 24), k = Math.max(E, D) * O + 26, A = st({
		values: f,
		scale: h,
		theme: n,
		threshold: a.threshold,
		rows: o.units.labels.slice(o.from, o.to),
		columns: s.units.labels.slice(s.from, s.to),
		x: S ? 0 : w + T,
		y: S ? x + k + 14 : x,
		width: S ? r : r - w - T,
		largest: Math.min(54, 660 / Math.max(c, 1)),
		xName: "key (attended to)",
		yName: "query (attending)",
		found: {
			row: (e) => i(o.units.labels[o.from + e]),
			column: (e) => i(s.units.labels[s.from + e])
		}
	}), j = Math.min(130, w * .3), M = {
		x: 0,
		y: x + 22,
		w,
		h: k
	}, N = u.length > 1, P = Math.max(M.y + k, A.box.y + A.box.h) + 6;
	function F(e) {
		let [t, n] = [a.query, a.key], r = (e, t) => t === null || e[t] < 0 ? null : e[t], i = a.lock ? {
			row: r(o.units.of, t),
			column: r(s.units.of, n)
		} : e, c = (e, t, n) => e == null || e < t || e >= n ? null : e - t;
		return {
			row: c(i?.row, o.from, o.to),
			column: c(i?.column, s.from, s.to)
		};
	}
	function I(t, n) {
		let r = F(n);
		Ge(t, e, g, h), L(t, r.row, r.column), z(t, r.row, r.column), A.draw(t, r.row, r.column);
	}
	function L(e, r, i) {
		let o = [];
		d.forEach(({ values: e }, t) => {
			for (let n = r ?? 0; n < (r === null ? E : r + 1); n++) for (let r = i ?? 0; r < (i === null ? D : i + 1); r++) {
				let i = Math.abs(e[n * l + r]), s = Math.min(1, i / (h.log ? h.high : m));
				s >= .02 && i >= a.threshold && n < E && r < D && o.push([
					s,
					n,
					r,
					t
				]);
			}
		}), o.sort((e, t) => e[0] - t[0]);
		for (let [r, i, a, s] of o.slice(-6e3)) {
			let o = t.signed && d[s].values[i * l + a] < 0, c = n.lines[t.signed ? Number(o) : s % n.lines.length];
			e.curve(j + 8, R(i), w - j - 8, R(a), c, .6 + 2.6 * r, .08 + .87 * r);
		}
	}
	function R(e) {
		return M.y + (e + .5) * O;
	}
	function z(e, t, r) {
		let a = {
			size: 11,
			fill: n.muted
		};
		e.text("query", j, x + 8, {
			...a,
			align: "right"
		}), e.text("key", w - j, x + 8, a), N && V(e);
		let u = q(Math.floor(O - 1), 9, 13), d = (t, r, a, o) => {
			let s = o, c = v(_(t), j - 4, (e) => G(e, u, s)), l = o || i(t) ? n.accent : n.ink;
			e.text(c, a === "right" ? j : w - j, R(r), {
				size: u,
				fill: l,
				align: a,
				bold: s
			});
		};
		for (let n = 0; t !== null && r === null && n < D; n++) B(e, h, w - j - 3, n, f[t * l + n]);
		for (let n = 0; r !== null && t === null && n < E; n++) B(e, h, 3, n, f[n * l + r]);
		for (let e = 0; e < E; e++) d(o.units.labels[o.from + e], e, "right", e === t);
		for (let e = 0; e < D; e++) d(s.units.labels[s.from + e], e, "left", e === r);
		(c > E || l > D) && e.text(`first ${ut} of ${Math.max(c, l)}: zoom the matrix for others`, 0, M.y + k - 12, a);
	}
	function B(e, { log: t, high: r }, i, a, o) {
		let s = Math.min(1, Math.abs(o) / (t ? r : m));
		e.rect(i, R(a) - O / 2 + .5, j, O - 1, n.lines[0], .45 * s);
	}
	function V(e) {
		let t = Math.min(30, (w - 2 * j) / u.length);
		u.forEach((r, i) => {
			let a = w / 2 + (i - (u.length - 1) / 2) * t;
			e.rect(a - t / 2 + 1, x + 14, t - 2, 3, n.lines[i % n.lines.length]), t > 13 && e.text(String(r), a, x + 6, {
				size: 10,
				fill: n.muted,
				align: "center"
			});
		});
	}
	function H(e, t) {
		let n = A.at(e, t);
		if (n) return {
			part: "matrix",
			row: n.row === void 0 ? void 0 : o.from + n.row,
			column: n.column === void 0 ? void 0 : s.from + n.column
		};
		if (!K(M, e, t)) return null;
		let r = Math.floor((t - M.y) / O);
		return e <= j + 8 && r < E ? {
			part: "lines",
			row: o.from + r
		} : e >= w - j - 8 && r < D ? {
			part: "lines",
			column: s.from + r
		} : null;
	}
	function U({ row: e, column: n }) {
		let r = [`${g.toLowerCase()}${N ? ", mean" : ""}`];
		if (e !== void 0 && n !== void 0) {
			let [i, a] = [e - o.from, n - s.from], c = (t.signed ? b : y)(f[i * l + a], p(i)), [m, h] = [o.units.positions[e], s.units.positions[n]], g = N && u.map((e, t) => `${e}: ${b(d[t].values[i * l + a], p(i))}`), _ = [
				[...X(t, e, n), `  ${c}`],
				[`query ${Je(m)}, key ${Je(h)}`],
				r
			];
			if (g) for (let e = 0; e < g.length; e += 4) _.push([g.slice(e, e + 4).join("   ")]);
			return _;
		}
		return e === void 0 ? n === void 0 ? [] : [...W(n, !1), r] : [...W(e, !0), r];
	}
	function W(e, n) {
		let r = e - (n ? o : s).from, i = (e) => n ? f[r * l + e] : f[e * l + r];
		return Array.from({ length: n ? l : c }, (e, t) => t).sort((e, t) => i(t) - i(e)).slice(0, 3).map((e) => {
			let [a, c] = n ? [r, e] : [e, r];
			return [...X(t, o.from + a, s.from + c), `  ${(t.signed ? b : y)(i(e), p(a))}`];
		});
	}
	function ee({ row: e, column: t }) {
		let n = e === void 0 ? null : o.units.positions[e][0], r = t === void 0 ? null : s.units.positions[t][0];
		return n === null && r === null ? { lock: !1 } : a.lock && a.query === n && a.key === r ? {
			lock: !1,
			key: null
		} : {
			query: n,
			key: r,
			lock: !0
		};
	}
	function te(e) {
		let t = e.row === void 0 ? null : e.row - o.from, n = e.column === void 0 ? null : e.column - s.from;
		return e.part === "lines" && t !== null && n === null && t < E ? [j - 8, R(t)] : e.part === "lines" && n !== null && t === null && n < D ? [w - j + 8, R(n)] : (t ?? 0) < c && (n ?? 0) < l ? A.centre(t, n) : null;
	}
	return {
		height: P,
		draw: I,
		hit: H,
		say: U,
		press: ee,
		label: `${g}: lines between ${c} queries and ${l} keys, and their matrix`,
		place: te,
		move: (e, t, n) => ({
			part: "matrix",
			row: q((e?.row ?? o.from) + (e ? n : 0), o.from, o.to - 1),
			column: q((e?.column ?? s.from) + (e ? t : 0), s.from, s.to - 1)
		}),
		map: A.cells
	};
}
function ft(e, t, n, r) {
	let [i, a] = [0, 0];
	for (let o = 0, s = 0; o < t; o++) for (let t = 0; t < n; t++, s++) a = Math.max(a, Math.abs(e[s])), r[o] || (i = Math.max(i, Math.abs(e[s])));
	return i || a;
}
// src/flow.ts
var pt = 12, mt = 22, ht = 160;
function gt(e, t, n, r, i, a) {
	let o = Math.max(0, Math.min(t - ht / 2, e.labels.length - ht)), s = [], [c, l] = [0, n];
	for (let t = o; t < Math.min(o + ht, e.labels.length); t++) {
		let n = v(_(e.labels[t]), 180, (e) => G(e, pt)), i = G(n, pt) + 12;
		c + i > r && c > 0 && ([c, l] = [0, l + mt]), s.push({
			x: c,
			y: l,
			w: i,
			h: 20,
			unit: t,
			text: n
		}), c += i + 2;
	}
	function u(t, n, r) {
		for (let o of s) {
			let [s, c] = [o.unit === n, o.unit === r];
			s && t.rect(o.x, o.y, o.w, o.h, i.accent), c && t.frame(o.x, o.y, o.w, o.h, i.accent);
			let l = s ? i.ground : a(o.text) ? i.accent : e.special[o.unit] ? i.muted : i.ink;
			t.text(o.text, o.x + 6, o.y + o.h / 2, {
				size: pt,
				fill: l,
				bold: s
			});
		}
	}
	return {
		height: l + mt - n + 8,
		draw: u,
		at: (e, t) => s.find((n) => K(n, e, t))?.unit ?? null,
		place: (e) => {
			let t = s.find((t) => t.unit === e);
			return t ? [t.x + t.w / 2, t.y + t.h / 2] : null;
		}
	};
}
// src/views/steps.ts
var _t = 100, Q = 20;
function vt(e) {
	let { look: t, theme: n, width: r, found: i } = e, { state: a, rows: o, columns: c } = t, l = t.layers[0].heads[0], u = t.vectors(a.layer, l);
	if (!u) return null;
	let { key: d, d: f, rule: p } = u, m = o.from, h = u.query.subarray(m * f, (m + 1) * f), g = he(h, d, p, m), y = _e(g, ve(p, m)), x = bt(y, c.from, c.to), S = x.map((e) => d.subarray(e * f, (e + 1) * f)), C = S.map((e) => h.map((t, n) => t * e[n])), w = Math.max(Y(h, 1), Y(d, .998)), T = (e, t) => ({
		map: n.signed,
		low: -e,
		high: e,
		log: !1,
		label: t
	}), E = T(w, "entries of q and k"), D = T(Math.max(...C.map((e) => Y(e, 1)), 1e-9), "q × k"), O = `Layer ${a.layer}, head ${l}, step by step`, k = qe(e, O, E), A = gt(o.units, m, k + 30, r, n, i), j = r < 620, M = j ? 62 : 110, N = j ? 46 : 62, P = j ? 40 : 120, F = j ? 6 : 14, I = Math.max(48, (r - M - 2 * N - P - 4 * F) / 2), L = [M + F, M + I + 2 * F], R = L[1] + I + F + N, z = R + F, B = k + 30 + A.height + 22, V = B + Q + 26, H = V + x.length * Q + (x.length < c.to - c.from ? 24 : 6), U = {
		query: J(h, 1, f, E),
		key: J(xt(S, f), x.length, f, E),
		product: J(xt(C, f), x.length, f, D)
	}, W = (e) => c.units.labels[e];
	function ee(t, i) {
		Ge(t, e, O, E), t.text(v(yt(p, f), r, (e) => G(e, 12)), 0, k + 8, {
			size: 12,
			fill: n.ink
		}), A.draw(t, m, i?.part === "text" ? i.row : null);
		let a = {
			size: 11,
			fill: n.muted
		};
		t.text("q", L[0], B - 9, a), t.image(U.query, [
			0,
			0,
			f,
			1
		], L[0], B, I, 16), ne(t, o.units.labels[m], B + Q / 2 - 2, !1), t.text("k", L[0], V - 11, a), t.text("q × k", L[1], V - 11, a), t.text("score", R, V - 11, {
			...a,
			align: "right"
		}), t.text("weight", z, V - 11, a), x.forEach((e, n) => te(t, e, n, i?.column === e)), i?.dimension !== void 0 && re(t, i.dimension), x.length < c.to - c.from && t.text(`the ${x.length} of ${c.to - c.from} keys with the largest weights`, 0, H - 10, a);
	}
	function te(e, t, i, a) {
		let o = V + i * Q;
		a && e.rect(0, o - 1, r, 19, n.accent, .1), ne(e, W(t), o + Q / 2 - 2, a), e.image(U.key, [
			0,
			i,
			f,
			1
		], L[0], o + 1, I, 15), e.image(U.product, [
			0,
			i,
			f,
			1
		], L[1], o + 1, I, 15);
		let c = g[t] === -Infinity;
		e.text(c ? "masked" : $(g[t]), R, o + Q / 2 - 2, {
			size: 11,
			fill: c ? n.muted : n.ink,
			align: "right"
		});
		let l = P * y[t];
		e.rect(z, o + 2, Math.max(l, .5), 13, s({
			map: n.weights,
			low: 0,
			high: 1,
			log: !1,
			label: ""
		}, .35 + .45 * y[t])), e.text(y[t] === 0 ? "0" : b(y[t], 1e-4), z + l + 4, o + Q / 2 - 2, {
			size: 11,
			fill: n.ink,
			bold: a
		});
	}
	function ne(e, t, r, a) {
		let o = v(_(t), M - 4, (e) => G(e, 12, a));
		e.text(o, M, r, {
			size: 12,
			fill: a || i(t) ? n.accent : n.ink,
			align: "right",
			bold: a
		});
	}
	function re(e, t) {
		let r = I / f;
		e.frame(L[0] + t * r, B - 1, r, 18, n.accent);
		for (let i of L) e.frame(i + t * r, V, r, x.length * Q - 3, n.accent);
	}
	function ie(e, t) {
		let n = A.at(e, t);
		if (n !== null) return {
			part: "text",
			row: n
		};
		let i = K({
			x: 0,
			y: B,
			w: L[0] + I,
			h: Q
		}, e, t), a = Math.floor((t - V) / Q);
		if (!i && (a < 0 || a >= x.length || e > r)) return null;
		let o = i ? void 0 : x[a];
		for (let [t, n] of [[i ? "query" : "key", L[0]], ["product", L[1]]]) if (!(e < n || e >= n + I || i && t === "product")) return {
			part: t,
			row: m,
			column: o,
			dimension: Math.floor((e - n) / I * f)
		};
		return {
			part: "score",
			row: m,
			column: o
		};
	}
	function ae({ part: e, row: t, column: n, dimension: r }) {
		if (e === "text") return [[{ token: _(o.units.labels[t]) }], ["click to follow it"]];
		let i = { token: _(o.units.labels[m]) };
		if (n === void 0) return [["q of ", i], ...r === void 0 ? [] : [[`dimension ${r}: ${$(h[r])}`]]];
		let a = [
			i,
			" ← ",
			{ token: _(W(n)) }
		], s = d[n * f + (r ?? 0)];
		return r === void 0 ? [a, [ge(p, m, n) ? "masked: this query may not read it" : `score ${$(g[n])}, weight ${b(y[n], 1e-5)}`]] : [a, [`dimension ${r}: q ${$(h[r])} × k ${$(s)} = ${$(h[r] * s)}`]];
	}
	function oe({ part: e, row: t, column: n }) {
		return e === "text" ? {
			query: o.units.positions[t][0],
			key: null
		} : n === void 0 ? {} : {
			key: c.units.positions[n][0],
			query: o.units.positions[m][0],
			lock: !0
		};
	}
	return {
		height: H,
		draw: ee,
		hit: ie,
		say: ae,
		press: oe,
		label: `${O}: of the token ${_(o.units.labels[m])}, ${x.length} keys`,
		place: ({ part: e, row: t, column: n, dimension: r }) => {
			if (e === "text") return A.place(t ?? m);
			let i = r === void 0 ? R - 10 : L[+(e === "product")] + (r + .5) / f * I;
			return n === void 0 ? [i, B + Q / 2 - 2] : x.includes(n) ? [i, V + x.indexOf(n) * Q + Q / 2 - 2] : null;
		},
		move: (e, t, n) => {
			let r = q(x.indexOf(e?.column ?? -1) + (e ? n : 1), 0, x.length - 1), i = e?.dimension === void 0 ? t ? 0 : void 0 : q(e.dimension + t, 0, f - 1);
			return {
				part: i === void 0 ? "score" : "product",
				row: m,
				column: x[r],
				dimension: i
			};
		}
	};
}
function yt({ scale: e, softCap: t, sink: n, before: r, after: i }, a) {
	let o = Math.abs(e * Math.sqrt(a) - 1) < 1e-4 ? `/ √${a}` : `× ${S(e)}`, s = t === null ? `q·k ${o}` : `${t} tanh(q·k ${o} / ${t})`, c = [
		n === null ? "" : "a sink takes a share that no key gets",
		i === 0 ? "causal" : "",
		r === null ? "" : `only the ${r} keys before`
	].filter(Boolean);
	return `weight = softmax(${s})${c.length ? ` (${c.join(", ")})` : ""}: the pieces as the model reads them, words are not merged here`;
}
function bt(e, t, n) {
	let r = Array.from({ length: n - t }, (e, n) => t + n);
	return r.length <= _t ? r : r.sort((t, n) => e[n] - e[t]).slice(0, _t).sort((e, t) => e - t);
}
function xt(e, t) {
	let n = new Float32Array(e.length * t);
	return e.forEach((e, r) => n.set(e, r * t)), n;
}
function $(e) {
	let t = Math.abs(e);
	return (e < 0 ? "−" : "") + (t < .001 && t > 0 ? t.toExponential(1) : t.toFixed(t < 10 ? 3 : 2));
}
// src/views/token.ts
function St(e) {
	let { look: t, theme: n, width: r, found: i } = e, { state: a } = t, o = a.by === "query", [s, c] = o ? [t.rows, t.columns] : [t.columns, t.rows], l = t.layers.flatMap(({ layer: e, heads: t }) => t.map((t) => ({
		layer: e.layer,
		head: t
	}))), u = l.map(({ layer: e, head: n }) => t.table(e, n)), d = c.to - c.from, f = new Float32Array(l.length * d);
	u.forEach((e, t) => f.set(e.values, t * d));
	let p = We(t, n, Y(f, .995)), m = _(s.units.labels[s.from]), h = o ? `What “${m}” attends to` : `What attends to “${m}”`, g = qe(e, h, p), v = gt(s.units, s.from, g, r, n, i), x = l.flatMap(({ layer: e }, t) => t > 0 && l[t - 1].layer !== e ? [t] : []), S = q(760 / l.length, 5, 20), C = Math.ceil(9.5 / S), w = st({
		values: f,
		scale: p,
		theme: n,
		threshold: a.threshold,
		breaks: x,
		flat: S,
		rows: l.map(({ layer: e, head: t }, n) => C > 1 ? n % C ? "" : t === 0 || n === 0 || x.includes(n) ? `layer ${e}` : "·" : `${e}.${t}`),
		columns: c.units.labels.slice(c.from, c.to),
		x: 0,
		y: g + v.height + 4,
		width: r,
		largest: 54,
		xName: o ? "key (attended to)" : "query (attending)",
		yName: "layer.head",
		found: {
			row: () => !1,
			column: (e) => i(c.units.labels[c.from + e])
		}
	}), T = (e) => l.findIndex(({ layer: t, head: n }) => t === e.layer && n === e.head), E = (e) => o ? e.column : e.row, D = (e) => o ? { column: e } : { row: e }, O = { ...o ? { row: s.from } : { column: s.from } };
	function k(t, n) {
		Ge(t, e, h, p);
		let r = n?.part === "text";
		v.draw(t, s.from, r ? o ? n.row : n.column : null);
		let i = n && !r ? T(n) : -1, a = n && !r ? E(n) : void 0;
		w.draw(t, i < 0 ? null : i, a === void 0 ? null : a - c.from);
	}
	function A(e, t) {
		let n = v.at(e, t);
		if (n !== null) return o ? {
			part: "text",
			row: n
		} : {
			part: "text",
			column: n
		};
		let r = w.at(e, t);
		if (!r) return null;
		let i = r.row === void 0 ? {} : l[r.row];
		return {
			part: "rows",
			...O,
			...i,
			...r.column === void 0 ? {} : D(c.from + r.column)
		};
	}
	function j(e) {
		if (e.part === "text") return [[{ token: _(s.units.labels[o ? e.row : e.column]) }], ["click to look at it"]];
		let [n, r] = [T(e), E(e)], i = n < 0 ? [] : [[`layer ${l[n].layer}, head ${l[n].head}`]];
		if (r === void 0) return i;
		let [a, p] = o ? [s.from, r] : [r, s.from];
		if (n < 0) return [X(t, a, p)];
		let m = f[n * d + r - c.from], h = u[n].errors[o ? 0 : r - c.from];
		return [[...X(t, a, p), `  ${(t.signed ? b : y)(m, h)}`], ...i];
	}
	function M(e) {
		if (e.part === "text") {
			let t = o ? e.row : e.column, n = s.units.positions[t][0];
			return o ? { query: n } : { key: n };
		}
		if (e.layer === void 0) return {};
		let t = s.units.positions[s.from][0];
		return {
			view: "head",
			layer: e.layer,
			heads: [e.head],
			lock: !0,
			...o ? {
				query: t,
				key: null
			} : {
				key: t,
				query: null
			}
		};
	}
	return {
		height: w.box.y + w.box.h + 4,
		label: `${h}: ${l.length} heads down, ${d} tokens across`,
		draw: k,
		hit: A,
		say: j,
		press: M,
		place: (e) => {
			if (e.part === "text") return v.place(o ? e.row : e.column);
			let [t, n] = [T(e), E(e)];
			return w.centre(t < 0 ? null : t, n === void 0 ? null : n - c.from);
		},
		move: (e, t, n) => {
			let r = e && e.part !== "text" ? e : null, i = q(r ? T(r) + n : 0, 0, l.length - 1), a = q((r ? E(r) ?? c.from : c.from) + (r ? t : 0), c.from, c.to - 1);
			return {
				part: "rows",
				...O,
				...l[i],
				...D(a)
			};
		}
	};
}
// src/page.ts
var Ct = {
	grid: it,
	head: dt,
	token: St,
	steps: vt
};
function wt(e, t, n = {}) {
	let { payload: r } = t, i = T(r), a = new Ae(t), o = M({
		...n.hash ? A(location.hash, r) : i,
		...n.state
	}, r), s = null, c = null, l = null, u = 0, m = 0, h = Promise.resolve(), g = matchMedia("(prefers-color-scheme: dark)"), _ = () => o.theme === "dark" || o.theme === "auto" && g.matches ? f : d, v = p("canvas", {
		tabindex: 0,
		role: "application"
	}), y = v.getContext("2d"), b = He(), x = p("div", { class: "stage" }, v, ...b.nodes), S = p("div", {
		class: "notice",
		role: "status"
	}), C = L(r, () => _().lines, {
		change: D,
		next: I,
		save: (e) => z(e)
	}), w = oe(r);
	e.classList.add("attnviz"), e.replaceChildren(C.node, x, S, w.node);
	function D(e) {
		let t = o, i = {
			...o,
			...e
		};
		"stack" in e && e.stack !== t.stack && (i.range = null), o = M(i, r), n.hash && k(), JSON.stringify(E(t)) !== JSON.stringify(E(o)) && n.onselect?.(E(o)), t.view !== o.view && (l = null), j();
	}
	function k() {
		try {
			history.replaceState(null, "", `#${O(o, i)}`);
		} catch {}
	}
	function j() {
		let t = _().dark;
		e.dataset.theme = t ? "dark" : "light", e.dataset.view = o.view, C.follow(o);
		let n = ++u;
		x.setAttribute("aria-busy", "true"), h = a.look(o).then((e) => n === u && N(e), (e) => n === u && (S.textContent = `This view could not be drawn: ${String(e)}. Write the page again.`)).then(() => void 0);
	}
	function N(e) {
		s = e;
		let t = Math.max(240, Math.floor(x.clientWidth)), n = o.find.trim().toLocaleLowerCase();
		if (c = Ct[o.view]({
			look: s,
			theme: _(),
			width: t,
			found: (e) => n !== "" && e.toLocaleLowerCase().includes(n)
		}), se(S, s, o, c !== null, D), w.follow(s), v.hidden = c === null, c) {
			v.setAttribute("aria-label", c.label);
			let e = Math.max(1, devicePixelRatio);
			[v.width, v.height] = [Math.round(t * e), Math.round(c.height * e)], [v.style.width, v.style.height] = [`${t}px`, `${c.height}px`], l && !c.place(l) && (l = null), P();
		}
		x.setAttribute("aria-busy", "false");
	}
	function P() {
		if (!c) return;
		let e = v.width / parseFloat(v.style.width);
		y.setTransform(e, 0, 0, e, 0, 0), y.clearRect(0, 0, v.width, v.height), c.draw(new de(y), l);
	}
	function F(e, t, n) {
		JSON.stringify(e) !== JSON.stringify(l) && (l = e, cancelAnimationFrame(m), m = requestAnimationFrame(P));
		let r = e && c ? c.say(e) : [];
		r.length ? b.show(r, t, n, x.clientWidth) : b.hide();
	}
	function I() {
		if (!s || !o.find.trim()) return;
		let e = o.find.trim().toLocaleLowerCase(), t = o.view === "token" && o.by === "key", { labels: n, positions: r } = (t ? s.columns : s.rows).units, i = t ? o.key : o.query, a = n.flatMap((t, n) => t.toLocaleLowerCase().includes(e) ? [r[n][0]] : []);
		if (!a.length) return;
		let c = a.find((e) => i !== null && e > i) ?? a[0];
		if (t) return D({ key: c });
		D({
			query: c,
			key: null,
			range: Qe(o.range, R(), c, null),
			lock: o.view === "head",
			view: o.view === "grid" ? "token" : o.view
		});
	}
	function R() {
		let e = r.results[0].stacks.find(({ name: e }) => e === o.stack);
		return [e.queries, e.keys].map((e) => r.results[0].axes[e].labels.length);
	}
	function z(e) {
		c && s && Be(e, `attnviz-${o.view}`, c, parseFloat(v.style.width), _(), w.caption(s));
	}
	let B = rt({
		root: e,
		canvas: v,
		sizes: R,
		change: D,
		point: F,
		state: () => o,
		at: () => l,
		scene: () => c,
		page: !!n.hash
	}), V = () => {
		o = A(location.hash, r), j();
	}, H = new ResizeObserver(() => s && Math.floor(x.clientWidth) !== parseFloat(v.style.width) && N(s));
	return H.observe(x), g.addEventListener("change", j), n.hash && addEventListener("hashchange", V), j(), Object.assign(e, { attnviz: {
		show: D,
		get state() {
			return o;
		},
		get ready() {
			return h;
		},
		locate({ query: e, key: t, ...n }) {
			if (!c || !s) return null;
			let r = (e, t) => t === void 0 ? void 0 : e[t], i = c.place({
				...n,
				row: r(s.rows.units.of, e),
				column: r(s.columns.units.of, t)
			}), { left: a, top: o } = v.getBoundingClientRect();
			return i && {
				x: a + i[0],
				y: o + i[1]
			};
		},
		destroy() {
			B(), H.disconnect(), g.removeEventListener("change", j), removeEventListener("hashchange", V), e.replaceChildren();
		}
	} }).attnviz;
}
// src/widget.ts
function Tt({ model: t, el: n }) {
	let r = t.get("payload"), i = e(t.get("blocks"), r.blocks), a = () => t.get("selection"), o = !1, s = (e) => {
		o = !0, t.set("selection", e), t.save_changes(), o = !1;
	}, c = wt(n.appendChild(document.createElement("div")), {
		payload: r,
		block: i
	}, {
		state: a(),
		onselect: s
	}), l = () => {
		o || (c.show(a()), s(E(c.state)));
	};
	return t.on("change:selection", l), () => {
		t.off("change:selection", l), c.destroy();
	};
}
var Et = { render: Tt };
export { Et as default, wt as mount, e as unpack };
