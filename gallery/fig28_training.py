"""While a small model learns to copy, {induction} heads turn to what followed before

A decoder with two layers of {heads_of_layer} heads learns to repeat {symbols} symbols. Each
training text has its own period, so no fixed distance helps. The same {texts} new texts of {period}
random symbols twice are read by its copy at {checkpoints} steps of the training. Between {before}
and {after} head {head} gives {rise:.0%} more of its weight to what followed the same symbol before
({low:.0%} to {high:.0%}, an interval of {level:.0%} over the texts). There the model begins to
copy: the next symbol of the second half is right in {right_before:.0%} of the places at {before},
in {right_after:.0%} at {after}, and in {right:.0%} at the end. At first no head has a role; at the
end {induction} have the role induction (red).
"""

import torch
from panels import CLAIM, GRAY, band, panels, path, shares, write
from toy import copying_accuracy, letters_tokenizer, train_to_copy

import attnviz

symbols, period, texts, level = 24, 12, 64, 0.95
copies = train_to_copy(steps=(0, 50, 100, 150, 200, 250), symbols=symbols)

letters, tokenizer = letters_tokenizer(symbols)
torch.manual_seed(1)
ids = torch.rand(texts, symbols).argsort(1)[:, :period].repeat(1, 2)
accuracy = [copying_accuracy(model, ids) for model in copies.values()]
models = {f"step {n}": attnviz.load(one, tokenizer=tokenizer) for n, one in copies.items()}
read = [" ".join(letters[number] for number in row) for row in ids.tolist()]
compared = attnviz.compare(read, models=models)
turn = compared.turns()[0]
at, head = (turn.step, turn.head, turn.statistic), compared.heads[turn.head]
changes = compared.change, compared.change_low, compared.change_high
rise, low, high = (numbers[at].item() for numbers in changes)
assert low > 0
(before, after), checkpoints = compared.checkpoints[turn.step : turn.step + 2], len(copies)
heads_of_layer, (right_before, right_after) = len(compared.heads) // 2, accuracy[turn.step :][:2]
turned = [n for n, role in enumerate(compared.roles[-1]) if role == "induction"]
right, induction, steps = accuracy[-1], len(turned), [*copies]

means = compared.mean, compared.low, compared.high
title, shape = __doc__.splitlines()[0].format(induction=induction), ("a;b", (1,), (1.7, 1))
with attnviz.plot.style():
    fig, above, below = panels(title, (*shape, 0.52), (*shape, 1.2), sharex=True)
    above.plot(steps, compared.mean[..., turn.statistic], color=GRAY, lw=0.6)
    for n in turned:
        path(above, *(of[:, n, turn.statistic] for of in means), CLAIM, steps, marker="o")
        y = compared.mean[-1, n, turn.statistic] + (0.02 if n == turn.head else -0.03)
        write(above, (254, y, f"head {compared.heads[n]}", CLAIM), weight="bold", va="center")
    below.plot(steps, accuracy, "o-", color="0.2", clip_on=False)
    write(below, (steps[turn.step] + 2, 0.66, "here it begins\nto copy", "k"), weight="bold")
    above.set_title("Weight for what followed the same symbol before (gray: the other heads)")
    below.set_xlim(-4, 278)
    below.set(title="Next symbol right, in the second half", xlabel="training step", xticks=steps)
    shares(above, below)
    band(*steps[turn.step : turn.step + 2], above, below)
text = f"{texts} texts; red: the heads with the role induction, with 95% intervals over texts"
fig = attnviz.plot.add_caption(fig, text=text, agreement=compared.agreement)
