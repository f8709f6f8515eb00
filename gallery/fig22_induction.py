"""Head {layer}.{head} looks at what followed the same word before

Each text has {period} random words twice. In the second half, head {layer}.{head} of SmolLM2 (layer
{layer}, head {head}, counted from 0) gives {share:.0%} of its weight to the word behind the first
occurrence (left: one text; mean of {texts} texts; uniform weights would give {even:.0%}). Such an
induction head knows what came next. The model copies: in the second half its most probable next
token is the right one in {second:.0%} of the places, in the first half in {first:.0%} (right; bands
are intervals of {level:.0%} from resampled texts). Other heads do the same: {others} of {heads}
give more than half of their weight to that word. That the head causes the copying is likely, but
not shown here.
"""

import numpy as np
import seaborn as sns
import torch
from panels import CLAIM, panels

import attnviz

WORDS = "river green table seven paper horse music stone window doctor silver garden engine letter"
period, texts, level, model = 9, 12, 0.95, attnviz.load("smollm2")
ids = torch.tensor([model.tokenizer(f" {word}")["input_ids"] for word in WORDS.split()]).flatten()
torch.manual_seed(0)
tokens = torch.stack([ids[torch.randperm(len(ids))[:period]].repeat(2) for _ in range(texts)])
results = model.attend(tokens.tolist())
weights = torch.stack([result.weights() for result in results])  # (texts, layers, heads, T, T)
again = torch.arange(period, 2 * period)
behind = weights[..., again, again - period + 1].mean((0, -1))  # (layers, heads)
layer, head = divmod(int(behind.argmax()), behind.shape[1])
share, others, heads = behind.max(), int((behind > 0.5).sum()) - 1, behind.numel()
even = (1 / (again + 1.0)).mean()
likely = model.module(tokens).logits[:, :-1].argmax(-1)
right = (likely == tokens[:, 1:]).float().numpy()  # (texts, places)
first, second = right[:, : period - 1].mean(), right[:, period:].mean()
assert second > first

beside, stacked = ("MC", (3, 2), (1,), 0.54), ("M;C", (1,), (2, 1), 1.6)
with attnviz.plot.style():
    title = "An induction head finds what came next, and the model copies it"
    fig, copied, ax = panels(title, beside, stacked)
    attnviz.plot.heatmap(results[0], layer=layer, head=head, ax=ax, annot=False, title="")
    for where in ("pre", "post"):  # below and above the cells of that word
        ax.step(range(1, period + 2), range(period, 2 * period + 1), CLAIM, where=where, lw=0.8)
    ax.text(period + 2.4, 2 * period - 0.3, "what followed\nthe same word\nbefore", color=CLAIM)
    ax.set_title(f"Head {layer}.{head} attends to what followed", loc="left", fontsize=8)
    every, right = np.tile(np.arange(1, 2 * period), texts), right.ravel()
    sns.lineplot(x=every, y=right, errorbar=("ci", 100 * level), seed=0, marker="o", ax=copied)
    copied.axvline(period - 0.5, color="0.5", lw=0.8, ls="--")
    copied.text(period - 0.3, 1.02, "repeat", va="top", color="0.4")
    copied.set(xlabel="place of the predicted word", ylabel="right next words", ylim=(0, 1.02))
    copied.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    copied.set_title("The model copies", loc="left", fontsize=8)
proof = attnviz.AgreementReport.joined(result.agreement for result in results)
text = f"{texts} texts of {period} random words twice, SmolLM2-135M-Instruct (4-bit weights)"
fig = attnviz.plot.add_caption(fig, text=text, agreement=proof)
