"""Attention cannot say in which direction a word pulls

What each word did to “apple”, from fruit toward tech: by the exact decomposition; by the effect of
masking, replacing, knocking out or deleting the word (mean of the four); by raw attention (layer
{layer}, the last, counted from 0; mean of heads {layer}.0 to {layer}.{head}); and by rollout (all
heads of all layers). The first two are shares of the way from the mean of eight fruits, each read
in a text such as “I love banana”, to that of eight technical words. For “phones” the decomposition
gives {phones:+.0%} and the interventions {phones_effect:+.0%}; for “pie” {pie:+.0%} and
{pie_effect:+.0%}. Attention has no sign: it gives “phones” {phones_attention:.0%} and “pie”
{pie_attention:.0%}. Rollout is between {least:.1%} and {most:.1%} for all of them. Three words
prove little about a ranking; scripts/bench.py compares the methods on hundreds of sentences.
"""

import matplotlib.pyplot as plt
from panels import CLAIM, FAINT, FIRST, SECOND
from regions import FRUIT, TECH

import attnviz

regions = {"tech": [f"I love {w}" for w in TECH], "fruit": [f"I love {w}" for w in FRUIT]}
model, shifts, title = attnviz.load(), [], __doc__.splitlines()[0]
for neighbor in ("phones", "pie"):
    text = f"I love apple {neighbor}"
    shift = attnviz.shift("apple", text, toward=regions, model=model)
    methods = {"decomposition": shift.credit / shift.way, "measured": shift.effect / shift.way}
    methods |= {"raw attention": shift.raw_attention, "rollout": shift.rollout}
    shifts.append((shift, {name: values[shift.sources] for name, values in methods.items()}))
(phones, phones_effect, phones_attention, _), (pie, pie_effect, pie_attention, _) = (
    [values[-1].item() for values in methods.values()] for _, methods in shifts
)
layer, head = model.module.config.num_hidden_layers - 1, model.module.config.num_attention_heads - 1
least, most = (of(m["rollout"][n] for _, m in shifts for n in range(3)) for of in (min, max))
assert min(phones, phones_effect, phones_attention, pie_attention) > 0 > max(pie, pie_effect)

with attnviz.plot.style():
    fig, axes = plt.subplots(2, 4, figsize=(7, 3), sharex=True, sharey="row", layout="constrained")
    for row, (shift, methods) in zip(axes, shifts, strict=True):
        words = [shift.words[index] for index in shift.sources]
        for ax, (name, values) in zip(row, methods.items(), strict=True):
            signed = name in ("decomposition", "measured")
            colors = [("C4", SECOND, FIRST)[signed * (1 + int(value > 0))] for value in values]
            labels = [f"{value:{'+' * signed}.0%}".replace("-", "−") for value in values]
            ax.bar_label(ax.barh(words, values.tolist(), color=colors), labels, padding=2)
            ax.axvspan(-0.42, 0, color=FAINT, alpha=0.5 * (not signed), lw=0)
            ax.text(-0.36, 1.3, "no\ndirection" * (not signed), color=CLAIM, weight="bold")
            label = "← fruit   tech →\nshare of the way" if signed else "share of the attention"
            ax.set(title=name * (ax in axes[0]), xlim=(-0.42, 0.42), xlabel=label * (ax in axes[1]))
            ax.set_xticks((-0.2, 0, 0.2), ("−20%", "0", "20%"))
            ax.axvline(0, color="0.5", lw=0.5)
        row[0].set(ylabel=f"“apple {words[-1]}”", ylim=(len(words) - 0.5, -0.5))
    fig.align_ylabels(axes[:, 0])
proof = attnviz.AgreementReport.joined(shift.agreement for shift, _ in shifts)
same = [x > 0 for _, m in shifts for x in m["decomposition"] * m["measured"]]
text = "How far each word moves “apple” on the way from fruit to tech; all-MiniLM-L6-v2"
signs = f"decomposition and effect have the same direction for {sum(same)} of {len(same)} words"
fig = attnviz.plot.add_caption(fig, title=title, text=(text, signs), agreement=proof)
