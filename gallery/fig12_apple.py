"""What “phones” does to “apple”

0 is the centre of {n} fruits, 1 that of {n} technical words, each read in “I love …”; bands reach
from the first of them to the last. At first “apple” is in between, at {start:.2f} (distances to the
centres {before[0]:.1f} and {before[1]:.1f}). In the end “phones” has drawn it to {phones:.2f} (now
{after[0]:.1f} and {after[1]:.1f}), “pie” to {pie:.2f}; alone it is at {alone:.2f}. Against alone,
it goes where its neighbour points, but {inside} the technical words, which begin at {border:.2f}.
Plain fruits stay: “phones” leaves them at {mean:.2f} on average (dotted), {most:.2f} at most.
"""

import matplotlib.pyplot as plt
import torch

import attnviz

words = "banana pear cherry grape peach plum mango lemon computer laptop phone internet robot"
words = [*words.split(), "camera", "tablet", "software", "apple", "apple phones", "apple pie"]
n, model = 8, attnviz.load()
texts = [f"I love {word}" for word in words + [f"{fruit} phones" for fruit in words[:n]]]
results = model.attend(texts)
with torch.no_grad():  # of each text its third word: as it enters the layers, as it leaves the last
    end = model.module(**model.tokenizer(texts, padding=True, return_tensors="pt"))[0][:, 3]
X = [torch.stack([result.record(layer).input[3] for result in results]) for layer in range(6)]
X = torch.stack([*X, end])  # (7, texts, d_model)
centres = X[:, : 2 * n].unflatten(1, (2, n)).mean(2)
line = centres[:, 1:] - centres[:, :1]
place = ((X - centres[:, :1]) * line).sum(-1) / line.square().sum(-1)
before, after = ((X[at, 2 * n + at % 2] - centres[at]).norm(dim=1) for at in (0, -1))
fruits, tech, apple, control = place.split((n, n, 3, n), 1)
start, (alone, phones, pie), border = apple[0, 0], apple[-1], tech[-1].min()
mean, most = control[-1].mean(), control[-1].max()
inside = "comes to lie among" if phones > border else "stays short of"
assert mean < fruits[-1].max() < pie < alone < phones  # as the caption says

with attnviz.style():
    fig, ax = plt.subplots(figsize=(4.72, 2.7), layout="constrained")
    for name, colour, band in (("fruits", "C3", fruits), ("technical words", "C5", tech)):
        ax.fill_between(range(7), band.amin(1), band.amax(1), color=colour, alpha=0.2, lw=0)
        ax.text(0.1, band[0].mean() + 0.06, name, color=colour)
    names = "“I love apple”", "“… apple phones”", "“… apple pie”", "fruits + “phones”"
    looks = "C4o-", "C0o-", "C1o-", "C3:"
    for y, name, look in zip([*apple.T, control.mean(1)], names, looks, strict=True):
        ax.plot(y, look)
        ax.text(6.1, y[-1], name, color=look[:2], va="center")
    ax.set(xlabel="entering layer", ylabel="place between the centres")
    ax.set_xticks(range(7), [*range(6), "end"])
proof = attnviz.AgreementReport.joined(one.agreement for one in results)
fig = attnviz.add_caption(fig, text="Third word of each text, all-MiniLM-L6-v2", agreement=proof)
