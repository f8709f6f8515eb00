"""What moved “apple”: four methods

How much each word moved “apple” from fruit toward tech: by the exact decomposition, by raw
attention (last layer, mean of all heads), by rollout, and by the effect of masking, replacing,
knocking out or deleting the word (mean of the four). Lengths along the axis are in units of the
hidden state. For “phones” the decomposition gives {phones:+.2f} and the interventions
{phones_effect:+.2f}; for “pie” {pie:+.2f} and {pie_effect:+.2f}. Attention has no sign: it gives
“phones” {phones_attention:.0%} and “pie” {pie_attention:.0%}, and cannot show that they pull in
opposite directions. Rollout is between {least:.1%} and {most:.1%} for all of them. Three words
prove little about a ranking; scripts/bench.py compares the methods on hundreds of sentences.
"""

import matplotlib.pyplot as plt
import torch

import attnviz

fruit = ["banana", "pear", "cherry", "grape", "peach", "plum", "mango", "lemon"]
tech = ["computer", "laptop", "phone", "internet", "robot", "camera", "tablet", "software"]
regions = {"tech": [f"I love {w}" for w in tech], "fruit": [f"I love {w}" for w in fruit]}
model, shifts = attnviz.load(), []
for neighbor in ("phones", "pie"):
    text = f"I love apple {neighbor}"
    shift = attnviz.shift("apple", text, toward=regions, verify_causally=True, model=model)
    methods = {"decomposition": shift.credit, "raw attention": shift.raw_attention}
    methods |= {"rollout": shift.rollout}
    methods |= {"measured effect": torch.stack(list(shift.causal.values())).mean(0)}
    shifts.append((shift, {name: values[shift.sources] for name, values in methods.items()}))
(phones, phones_attention, _, phones_effect), (pie, pie_attention, _, pie_effect) = (
    [values[-1].item() for values in methods.values()] for _, methods in shifts
)
rollout_values = torch.cat([methods["rollout"] for _, methods in shifts])
least, most = rollout_values.min(), rollout_values.max()
assert min(phones, phones_effect, phones_attention, pie_attention) > 0 > max(pie, pie_effect)

with attnviz.plot.style():
    fig, axes = plt.subplots(2, 4, figsize=(7.2, 2.4), sharex="col", layout="constrained")
    for row, (shift, methods) in zip(axes, shifts, strict=True):
        for ax, (name, values) in zip(row, methods.items(), strict=True):
            order = values.argsort(descending=True).tolist()
            words = [shift.words[index] for index in shift.sources]
            colors = ["C0" if values[index] > 0 else "C1" for index in order]
            ax.barh([words[index] for index in order], values[order].tolist(), color=colors)
            ax.axvline(0, color="0.5", lw=0.5)
            ax.invert_yaxis()
            ax.spines[["left", "top", "right"]].set_visible(False)
            ax.set_title(name if ax in axes[0] else "", size=8)
        row[0].set_ylabel(f"apple {words[-1]}")
    for index, unit in enumerate(("along the axis", "weight", "weight", "along the axis")):
        axes[1, index].set_xlabel(unit)
    fig.align_ylabels(axes[:, 0])
agreement = attnviz.AgreementReport.joined(shift.agreement for shift, _ in shifts)
text = "“I love apple phones” and “I love apple pie”, read by all-MiniLM-L6-v2"
fig = attnviz.plot.add_caption(fig, text=text, agreement=agreement)
