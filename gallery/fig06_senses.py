"""The words around it settle the sense of a word

Each dot is “bank” or “check” in its own sentence, {c} for each sense, entering a layer, in the two
main directions of its panel. In layer 0 it knows only its place in the sentence (dots there
coincide). Numbers: how often the nearest centre of a sense, made without that sentence, is the
right one (in {d} dimensions). Guessing gives {half:.0%} for “bank” and {third:.0%} for “check”; in
layer 0 it is {bank[0]:.0%} and {check[0]:.0%}, from layer {since} on at least {floor:.0%}. The
sentences were written with clear cues, and are few: an illustration and not a benchmark.
"""

import matplotlib.pyplot as plt
import torch

import attnviz

TEXTS = {
    "bank: river": """We sat on the bank of the river|Reeds grew on the muddy bank|A boat lay at
the bank|Otters dug holes in the bank of the stream|He fished from the bank|Water hit the bank""",
    "bank: money": """She opened an account at the bank|The bank refused the loan|My bank charges a
fee|Thieves robbed the bank|He paid his wages into the bank|The bank raised its interest rates""",
    "check: cheque": """She wrote a check for the rent|He cashed the check|They paid with a
check|The check bounced|Please sign the check and post it|A check for fifty dollars came""",
    "check: chess": """The queen gave check to the king|A knight put his king in check|One more
check and black loses|Rook takes, check|She escaped check with her bishop|White called check""",
    "check: verify": """Check the spelling of your name|The nurse will check my pulse|Always check
facts first|Could you check whether it rains|Engineers check the bridge|I always check the door""",
}
done = {name: attnviz.attend(" ".join(them.split()).split("|")) for name, them in TEXTS.items()}
bank, check, half, third = [], [], 1 / 2, 1 / 3
with attnviz.style():
    fig, axes = plt.subplots(2, 6, figsize=(7.2, 2.8), layout="constrained")
    for n, ax in enumerate(axes.flat):
        (word, rights), layer = (("bank", bank), ("check", check))[n // 6], n % 6
        names = [name for name in TEXTS if word in name]
        found = [result.record(layer) for name in names for result in done[name]]
        X = torch.stack([each.input[each.query_axis.labels.index(word)] for each in found])
        X = (X - X.mean(0)).unflatten(0, (len(names), -1))  # (senses, sentences, d_model)
        (k, c, d), apart = X.shape, torch.cdist(X, X.mean(1))  # from each to each centre
        apart.diagonal(dim1=0, dim2=2).mul_(c / (c - 1))  # to its own, made without it
        rights.append((apart.argmin(-1) == torch.arange(k)[:, None]).double().mean().item())
        for name, dots in zip(names, X @ torch.linalg.svd(X.flatten(0, 1)).Vh[:2].T, strict=True):
            ax.plot(*dots.T, "o", ms=4, mec="white", mew=0.4, label=name.split(": ")[1])
        ax.set(
            xticks=[], yticks=[], xlabel=f"{rights[-1]:.0%} right", title=f"{word}, layer {layer}"
        )
        if layer == 5:
            ax.legend(loc="center left", bbox_to_anchor=(0.95, 0.5), handletextpad=0)
since = next(at for at in range(6) if min(bank[at:] + check[at:]) >= 0.9)
floor, proofs = min(bank[since:] + check[since:]), [x.agreement for of in done.values() for x in of]
proof = attnviz.AgreementReport.joined(proofs)
fig = attnviz.add_caption(fig, text=f"{len(proofs)} sentences, all-MiniLM-L6-v2", agreement=proof)
