"""“phones” moves “apple” toward technology

0 is the center of {n} fruits and 1 that of {n} technical words, each read in “I love …”. Bands
reach from the lowest to the highest of them. In “I love apple”, the sentence with which the others
are compared, “apple” enters at {start:.2f} and ends at {alone:.2f}. The effect of a neighbor is the
difference from that: “phones” adds {adds:.2f}, up to {phones:.2f}, and “pie” takes {takes:.2f},
down to {pie:.2f}. So “apple” moves toward its neighbor, but {inside} the technical words, which
begin at {border:.2f}. “phones” moves plain fruits (dotted line: mean) by {mean:.2f} on average and
{most:.2f} at most. In all {X.shape[2]} dimensions “apple” beside “phones” ends {to_fruits:.1f} from
the center of the fruits and {to_tech:.1f} from that of the technical words.
"""

import matplotlib.pyplot as plt
import torch
from panels import FIRST, SECOND

import attnviz

fruits = ["banana", "pear", "cherry", "grape", "peach", "plum", "mango", "lemon"]
tech = ["computer", "laptop", "phone", "internet", "robot", "camera", "tablet", "software"]
words = [*fruits, *tech, "apple", "apple phones", "apple pie", *(f"{one} phones" for one in fruits)]
texts = [f"I love {word}" for word in words]
n, third, model = len(fruits), 3, attnviz.load()  # position 3 follows [CLS], I, love
results = model.attend(texts)
last = model.module(**model.tokenizer(texts, padding=True, return_tensors="pt"))[0].detach()
entering = [torch.stack([one.record(layer).input[third] for one in results]) for layer in range(6)]
X = torch.stack([*entering, last[:, third]])  # (layer inputs and the output, texts, d_model)

fruit_centre, tech_centre = X[:, :n].mean(1, keepdim=True), X[:, n : 2 * n].mean(1, keepdim=True)
line = tech_centre - fruit_centre
place = ((X - fruit_centre) * line).sum(-1) / line.square().sum(-1)
fruit_place, tech_place, apple_place, control_place = place.split([n, n, 3, n], dim=1)
start, (alone, phones, pie) = apple_place[0, 0], apple_place[-1]
adds, takes, shifts = phones - alone, alone - pie, control_place[-1] - fruit_place[-1]
border, mean, most = tech_place[-1].min(), shifts.mean(), shifts.max()
inside = "comes to lie among" if phones > border else "stays short of"
assert pie < alone < phones
beside = X[-1, words.index("apple phones")]
to_fruits, to_tech = (beside - fruit_centre[-1]).norm(), (beside - tech_centre[-1]).norm()

with attnviz.plot.style():
    fig, ax = plt.subplots(figsize=(4.72, 2.7), layout="constrained")
    for name, colour, ys in (("fruits", SECOND, fruit_place), ("tech words", FIRST, tech_place)):
        ax.fill_between(range(7), ys.amin(1), ys.amax(1), color=colour, alpha=0.2, lw=0)
        ax.text(0.1, ys[0].mean() + 0.06, f"range of {n} {name}", color=colour)
    names = ("“I love apple”", "“… apple phones”", "“… apple pie”", "fruits + “phones”")
    lines = [*apple_place.T, control_place.mean(1)]
    for name, colour, ys in zip(names, ("0.5", FIRST, SECOND, SECOND), lines, strict=True):
        ax.plot(ys, ":" if name == names[-1] else "o-", color=colour)
        ax.text(6.1, ys[-1], name, color=colour, va="center")
    ax.set(xlabel="entering layer", xlim=(-0.2, 8), xticks=range(7), xticklabels=[*range(6), "end"])
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["fruit = 0", ".25", ".5", ".75", "tech = 1"])
proof = attnviz.AgreementReport.joined(one.agreement for one in results)
title = "“apple” moves toward its neighbor, “phones” or “pie”"
text = "Compared with another sentence, “I love apple” (gray); read by all-MiniLM-L6-v2"
fig = attnviz.plot.add_caption(fig, title=title, text=text, agreement=proof)
