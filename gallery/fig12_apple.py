"""“phones” pulls “apple” toward tech, “pie” toward fruit

0 is the center of {n} fruits and 1 that of {n} technical words, each read in “I love …”. Bands
reach from the lowest to the highest of them. In “I love apple”, the sentence with which the others
are compared, “apple” enters at {start:.2f} and ends at {alone:.2f}. The effect of a neighbor is the
difference from that (red): “phones” adds {adds:.2f}, up to {phones:.2f}, and “pie” takes
{takes:.2f}, down to {pie:.2f}. Each pulls “apple” its way, but “apple” stays short of the
technical words, which begin at {border:.2f}. “phones” moves the fruits (dotted line: mean) by
{mean:.2f} on average and {most:.2f} at most. In all {X.shape[2]} dimensions “apple” beside “phones”
ends {to_fruits:.1f} from the center of the fruits and {to_tech:.1f} from that of the technical
words.
"""

import matplotlib.pyplot as plt
import torch
from panels import FIRST, SECOND, arrow
from regions import FRUIT, TECH

import attnviz

words = [*FRUIT, *TECH, "apple", "apple phones", "apple pie", *(f"{one} phones" for one in FRUIT)]
texts = [f"I love {word}" for word in words]
n, third, model = len(FRUIT), 3, attnviz.load()  # position 3 follows [CLS], I, love
results = model.attend(texts)
last = model.module(**model.tokenizer(texts, padding=True, return_tensors="pt"))[0].detach()
entering = [[one.record(layer).input[third] for one in results] for layer in range(6)]
X = torch.stack([*map(torch.stack, entering), last[:, third]])  # (states, texts, d_model)

fruit_centre, tech_centre = X[:, :n].mean(1, keepdim=True), X[:, n : 2 * n].mean(1, keepdim=True)
line = tech_centre - fruit_centre
place = ((X - fruit_centre) * line).sum(-1) / line.square().sum(-1)
fruit_place, tech_place, apple_place, control_place = place.split([n, n, 3, n], dim=1)
start, (alone, phones, pie) = apple_place[0, 0], apple_place[-1]
adds, takes, shifts = phones - alone, alone - pie, control_place[-1] - fruit_place[-1]
border, mean, most = tech_place[-1].min(), shifts.mean(), shifts.max()
assert pie < alone < phones < border
to_fruits, to_tech = ((X[-1, 2 * n + 1] - of[-1]).norm() for of in (fruit_centre, tech_centre))

with attnviz.plot.style():
    fig, ax = plt.subplots(figsize=(4.72, 3), layout="constrained")
    for name, color, ys in (("fruits", SECOND, fruit_place), ("tech words", FIRST, tech_place)):
        ax.fill_between(range(7), ys.amin(1), ys.amax(1), color=color, alpha=0.2, lw=0)
        ax.text(0.1, ys[0].mean() + 0.06, f"range of {n} {name}", color=color)
    for text, color, ys in zip(texts[2 * n :], ("0.4", FIRST, SECOND), apple_place.T, strict=False):
        ax.plot(ys, "o-", color=color)
        ax.text(2.5, ys[2:4].max() + 0.035, f"“{text}”", color=color, ha="center")
    ax.plot(mean_of_controls := control_place.mean(1), ":", color=SECOND)
    ax.text(6.1, mean_of_controls[-1], f"mean of the {n} fruits\nbefore “phones”", color=SECOND)
    arrow(ax, 6.2, alone, phones, "“phones”")
    arrow(ax, 6.2, alone, pie, "“pie”")
    ax.set(xlabel="entering layer", ylabel="place between fruit (0) and tech (1)", xlim=(-0.2, 8))
    ax.set_xticks(range(7), [*range(6), "end"])
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
proof = attnviz.AgreementReport.joined(one.agreement for one in results)
text = "Red: the difference from “I love apple”, without a neighbor; read by all-MiniLM-L6-v2"
fig = attnviz.plot.add_caption(fig, title=__doc__.split("\n")[0], text=text, agreement=proof)
