"""Without the scale √dₖ, one key gets all the attention and the gradient vanishes

(a) The dot product of two vectors of dₖ standard normal numbers has variance dₖ (line), as measured
(dots, at most {off:.1%} off). (b) Without the scale, a query weighs {n} keys less and less evenly:
the entropy of its weights falls to {end:.2f} (zero: one key has all). Divided by √dₖ it stays at
{low:.2f} or more. (c) The norm of the softmax Jacobian in the median row says how much the weights
still react. Without the scale it is larger up to dₖ = {larger}, then falls to {flat:.4f} (divided:
{steep:.2f}): a saturated row hardly changes. (d) In {run.model} without its scale, entropy falls in
{lower} of {total} heads, to {left:.0%} of what it was or less, and the median norm of the Jacobian
falls by a factor of {real:.0f}.
"""

import matplotlib.pyplot as plt
import torch
from panels import CLAIM, bracket, name_axes, write

import attnviz
from attnviz.formula.attention import scores, softmax


def entropy(w):  # per row, as a share of its maximum log n
    return torch.special.entr(w).sum(-1) / torch.tensor(w.shape[-1]).log()


def jacobian_norm(w):  # ‖diag(w) − w wᵀ‖ per row, without building the matrix
    return ((w**2 - 2 * w**3).sum(-1) + (w**2).sum(-1) ** 2).clamp(min=0).sqrt()


n, repeats, d_k = 64, 99, 2 ** torch.arange(11)
torch.manual_seed(8)
raw = torch.stack([scores(*torch.randn(2, repeats, n, d).double()) for d in d_k]).flatten(1, 2)
variance, root, off = raw.var((1, 2)), d_k.sqrt(), (raw.var((1, 2)) / d_k - 1).abs().max()
free, kept = softmax(raw), softmax(raw / root.view(-1, 1, 1))
free_entropy, kept_entropy = entropy(free).mean(1), entropy(kept).mean(1)
free_norm, norm = jacobian_norm(free).median(1).values, jacobian_norm(kept).median(1).values
end, low, flat, steep = free_entropy[-1], kept_entropy.min(), free_norm[-1], norm[-1]
larger, fall = d_k[free_norm > norm].max(), steep / flat // 100 * 100

result = attnviz.attend("the train left the station on time because somebody had wound the clock")
scaled = torch.cat([softmax(record.scores().double()) for record in result])
bare = torch.cat([softmax(record.scores().double() / record.scale) for record in result])
parts = (entropy(bare).mean(1) / entropy(scaled).mean(1)).sort().values
lower, total, left = (parts < 1).sum(), len(parts), parts[-1]
run, real = result.provenance, jacobian_norm(scaled).median() / jacobian_norm(bare).median()

with attnviz.plot.style():
    fig, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(7.2, 4.4), layout="constrained")
    a.loglog(d_k, d_k, "0.7", d_k, variance, "C0o", base=2)
    b.semilogx(d_k, free_entropy, "C1o-", d_k, kept_entropy, "C0o-", base=2)
    c.semilogx(d_k, free_norm, "C1o-", d_k, norm, "C0o-", base=2)
    d.plot([0, total], [1, 1], "C0", 1 + torch.arange(total), parts, "C1o", clip_on=False)
    write(b, (3, 0.4, "no scale", "C1"), (99, 0.8, "÷ √dₖ", "C0"), (99, 0.2, "one has all", CLAIM))
    write(c, (40, 0.02, "no scale", "C1"), (2, 0.08, "÷ √dₖ", "C0"))
    name_axes(a, "a  Dot products spread (line: dₖ)", "dₖ", "variance of q · k")
    name_axes(b, "b  One key gets all the weight", "dₖ", "entropy (1: even, 0: one)", ylim=(0, 1))
    name_axes(c, "c  The gradient vanishes", "dₖ", "norm of the gradient", yscale="log")
    name_axes(d, f"d  Entropy falls in {lower} of {total} heads", "heads", "part left", ylim=(0, 1))
    bracket(d, total + 4, left, 1, f"{1 - left:.0%} lost\nor more")
    bracket(c, 1400, flat, steep, f"{fall:.0f} ×\nless")
title = "Without the scale, one key gets all the attention as dₖ grows, and the gradient vanishes"
fig = attnviz.plot.add_caption(fig, title=title, text=f"“{run.text}”", agreement=result.agreement)
