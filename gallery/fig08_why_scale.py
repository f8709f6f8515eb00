"""Why the scores are divided by √dₖ

(a) The dot product of two vectors of dₖ standard-normal numbers has variance dₖ (line), as
measured (dots, at most {off:.1%} off). (b) Unscaled, a query weighs {n} keys ever less evenly: the
entropy of its weights falls to {end:.2f} (zero: one key has all); divided by √dₖ they keep
{low:.2f}. (c) A choice as good as made is hard to unlearn: the derivative of the weights by the
scores (norm of the softmax Jacobian; line: median, band: {share[0]:.0%} to {share[2]:.0%} of the
rows) falls from {top:.2f} at dₖ = {peak} to {flat:.4f} at {widest} (divided:
{steep:.2f}). (d) In a real model without scale entropy falls in {lower} of {total} heads, in
the mean from {before:.2f} to {after:.2f}, the median derivative {real:.0f}-fold.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
import torch

import attnviz
from attnviz.attention import scores, softmax
from attnviz.plot.formulas import power


def study(w):  # mean entropy of the rows in units of log n; ‖diag(w) − w wᵀ‖ of every row w
    entropy = torch.special.entr(w).sum(-1).mean(-1) / torch.tensor(w.shape[-1]).log()
    return entropy, (w**2 * (1 - 2 * w + (w**2).sum(-1, keepdim=True))).sum(-1).sqrt()


n, d_k, share = 64, 2 ** torch.arange(11), torch.tensor([0.1, 0.5, 0.9])
chance = torch.Generator().manual_seed(8)
raw = torch.stack([scores(*torch.randn(2, 99, n, d, generator=chance)).flatten(0, 1) for d in d_k])
off = ((variance := raw.var((1, 2))) / d_k - 1).abs().max()
(free, wild), (kept, calm) = study(softmax(raw)), study(softmax(raw / d_k.sqrt().view(-1, 1, 1)))
wild, calm = (each.quantile(share, dim=1) for each in (wild, calm))
flat, steep, widest = wild[1, -1], calm[1, -1], d_k[-1]
end, low, peak, top = free[-1], kept.min(), d_k[wild[1].argmax()], wild[1].max()

result = attnviz.attend("the train left the station on time because somebody had wound the clock")
bare = [replace(record, scale=1.0) for record in result.records]
heads = (torch.cat([one.weights().cpu() for one in some]) for some in (result.records, bare))
(x, x_slopes), (y, y_slopes) = map(study, heads)
lower, total, before, after = (y < x).sum(), len(x), x.mean(), y.mean()
real = x_slopes.median() / y_slopes.median()

with attnviz.style():
    fig, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(7.2, 4.4), layout="constrained")
    a.loglog(d_k, d_k, "0.7", d_k, variance, "C0o", base=2)
    for colour, name, curve, band in ("C1", "no scale", free, wild), ("C0", "÷ √dₖ", kept, calm):
        b.semilogx(d_k, curve, "o-", color=colour, base=2)
        b.text(80, curve[6] + 0.03, name, color=colour)
        c.fill_between(d_k, band[0], band[2], color=colour, alpha=0.15, linewidth=0)
        c.semilogx(d_k, band[1], "o-", color=colour, base=2)
    d.plot([0, 1], [0, 1], "0.7", x, y, "C3o", clip_on=False)
    a.set(title="a  Variance of q · k", xlabel="dₖ", ylabel="variance")
    b.set(title="b  Entropy of the weights", xlabel="dₖ", ylabel="share of log n", ylim=(0, 1))
    c.set(title="c  Derivative of the weights", yscale="log", ylim=(1e-5, 1), xlabel="dₖ")
    d.set(title="d  Entropy in real heads", xlabel="with scale", ylabel="without", ylim=(0, 1))
    for axis in (a.xaxis, a.yaxis, b.xaxis, c.xaxis, c.yaxis):
        axis.set_major_formatter("{x:g}" if axis is not c.yaxis else lambda x, _: power(x))
source = f"(d) {result.provenance.model} on “{result.provenance.text}”"
attnviz.add_caption(fig, text=source, agreement=result.agreement)
