"""An encoder attends both ways, a decoder only back; both give most to a sink

Above is one text, the mean map of all heads. In all-MiniLM-L6-v2 words attend to earlier and to
later ones; the mask of SmolLM2 hides the later ones (hatched). Both give most to the first token
(red): [CLS], or the first word, as SmolLM2 reads no special token. Below are the means of {texts}
texts: MiniLM gives later words {minilm[3]:.0%}, earlier ones {minilm[1]:.0%}; the mask of SmolLM2
gives later words {smollm2[3]:.0%}. Both give more than half to a sink: MiniLM {minilm[0]:.0%},
SmolLM2 {smollm2[0]:.0%}. Uniform weights would give the sinks {even[0]:.0%} and {even[1]:.0%}.
"""

import numpy as np
from panels import CLAIM, WIDTH, frame_cells, panels

import attnviz

TEXTS = """The dog that chased the cat ran across the road.|The train left the station on time.
She plays the violin and her brother plays the drums.|When the bell rang, nobody moved.
Rain fell all night, and the river rose.|Old maps hang in the hall.""".replace("\n", "|")
models = [attnviz.attend(TEXTS.split("|"), model=name) for name in (None, "smollm2")]


def shares(results, even=False):  # of the sink, earlier words, the word itself and later words
    parts = []
    for result in results:
        weights = result.weights().mean((0, 1)).numpy()
        token = np.arange(len(weights))
        weights = np.sign(weights) / np.sign(weights).sum(1, keepdims=True) if even else weights
        sink = np.array(result.record(0).key_axis.special[: len(token)]) | (token == 0)
        kind = np.where(sink, -2, np.sign(token - token[:, None]))
        parts.append([(weights * (kind == one)).sum(1)[~sink] for one in (-2, -1, 0, 1)])
    return np.concatenate(parts, axis=1).mean(1)


bars, even = (np.array([shares(one, even) for one in models]) for even in (False, True))
(minilm, smollm2), even, texts = bars, even[:, 0], len(models[0])
names = "MiniLM", "SmolLM2"
titles = "MiniLM, an encoder, looks both ways", "SmolLM2, a decoder, looks only back"
beside, stacked = ("01;22", (1, 1), (5, 1), 0.61), ("0;1;2", (1,), (6, 6, 1.5), 2.1)
with attnviz.plot.style():
    fig, *axes = panels(__doc__.splitlines()[0], beside, stacked)
    for ax, title, (one, *_) in zip(axes, titles, models, strict=False):
        layers, heads = map(range, one.weights().shape[:2])
        drawn = attnviz.attention_map(one, layer=[*layers], head=[*heads])
        attnviz.plot.heatmap(drawn, ax=ax, title=title, annot=False)
        frame_cells(ax, [(0, 0)], len(drawn.rows))  # the sink
    for n, name in enumerate(("sink ([CLS], [SEP], first word)", "earlier", "itself", "later")):
        look = {"label": name, "color": ("0.75", "#9aaed4", "#dfe5f2", "#e6bd8f")[n]}
        drawn = axes[2].barh(names, bars[:, n], 0.7, bars[:, :n].sum(1), **look)
        look = {"color": CLAIM, "weight": "bold"} if n == 0 else {}
        axes[2].bar_label(drawn, fmt=lambda x: f"{x:.0%}" if x else "", label_type="center", **look)
    axes[2].set(xlim=(0, 1), xticks=[], ylim=(1.5, -0.5), xlabel="attention, mean of all heads")
    axes[2].legend(ncols=4 if WIDTH > 127 else 2, loc="lower left", bbox_to_anchor=(0, 1))
proof, other = (attnviz.AgreementReport.joined(r.agreement for r in one) for one in models[::-1])
text = f"MiniLM is {other.verdict}; the next line is about SmolLM2 (4-bit weights)"
fig = attnviz.plot.add_caption(fig, text=text, agreement=proof)
