"""What moved “apple”: four methods

How much each word moved “apple” from fruit toward tech: by the exact decomposition, by raw
attention (last layer, mean of all heads), by rollout, and by the effect of masking, replacing,
knocking out or deleting the word (mean of the four). Lengths along the axis are in units of the
hidden state. For “phones” the decomposition gives {phones:+.2f} and the interventions
{phones_lost:+.2f}; for “pie” {pie:+.2f} and {pie_lost:+.2f}. Attention has no sign: it gives
“phones” {phones_seen:.0%} and “pie” {pie_seen:.0%}, and cannot show that they pull in opposite
directions. Rollout is between {least:.1%} and {most:.1%} for all of them. Three words prove little
about a ranking; scripts/bench.py compares the methods on hundreds of sentences.
"""

import matplotlib.pyplot as plt
import torch

import attnviz

fruit = ["banana", "pear", "cherry", "grape", "peach", "plum", "mango", "lemon"]
tech = ["computer", "laptop", "phone", "internet", "robot", "camera", "tablet", "software"]
regions = {"tech": [f"I love {w}" for w in tech], "fruit": [f"I love {w}" for w in fruit]}
model, found = attnviz.load(), []
for neighbour in ("phones", "pie"):
    text = f"I love apple {neighbour}"
    shift = attnviz.shift("apple", text, toward=regions, verify_causally=True, model=model)
    ways = {"exact split": shift.credit, "raw attention": shift.raw_attention}
    ways |= {"rollout": shift.rollout}
    ways |= {"lost where changed": torch.stack(list(shift.causal.values())).mean(0)}
    found.append((shift, {name: each[shift.sources] for name, each in ways.items()}))
(phones, phones_seen, _, phones_lost), (pie, pie_seen, _, pie_lost) = (
    [numbers[-1].item() for numbers in ways.values()] for _, ways in found
)
rolled = torch.cat([ways["rollout"] for _, ways in found])
least, most = rolled.min(), rolled.max()
assert min(phones, phones_lost, phones_seen, pie_seen) > 0 > max(pie, pie_lost)

with attnviz.plot.style():
    fig, axes = plt.subplots(2, 4, figsize=(7.2, 2.4), sharex="col", layout="constrained")
    for row, (shift, ways) in zip(axes, found, strict=True):
        for ax, (name, numbers) in zip(row, ways.items(), strict=True):
            order = numbers.argsort(descending=True).tolist()
            words = [shift.words[at] for at in shift.sources]
            colours = ["C0" if numbers[at] > 0 else "C1" for at in order]
            ax.barh([words[at] for at in order], numbers[order].tolist(), color=colours)
            ax.axvline(0, color="0.5", lw=0.5)
            ax.invert_yaxis()
            ax.spines[["left", "top", "right"]].set_visible(False)
            ax.set_title(name if ax in axes[0] else "", size=8)
        row[0].set_ylabel(f"apple {words[-1]}")
    for at, unit in enumerate(("along the axis", "weight", "weight", "along the axis")):
        axes[1, at].set_xlabel(unit)
    fig.align_ylabels(axes[:, 0])
proof = attnviz.AgreementReport.joined(shift.agreement for shift, _ in found)
text = "“I love apple phones” and “I love apple pie”, read by all-MiniLM-L6-v2"
fig = attnviz.plot.add_caption(fig, text=text, agreement=proof)
