"""While a small model learns to copy, {induction} heads turn to what followed before

A decoder with two layers of {heads_of_layer} heads learns to repeat {symbols} symbols. Each
training text has its own period, so no fixed distance helps. The same {texts} new texts of {period}
random symbols twice are read by its copy at {checkpoints} steps of the training. Between {before}
and {after} head {head} gives {rise:.0%} more of its weight to what followed the same symbol before
({low:.0%} to {high:.0%}, an interval of {level:.0%} over the texts). There the model begins to
copy: the next symbol of the second half is right in {right_before:.0%} of the places at {before},
in {right_after:.0%} at {after}, and in {right:.0%} at the end. At first no head has a role; at the
end {induction} have the role induction, {own} own token and {previous} previous token.
"""

import torch
from toy import copying_accuracy, letters_tokenizer, train_to_copy

import attnviz

symbols, period, texts, level = 24, 12, 64, 0.95
copies = train_to_copy(steps=(0, 50, 100, 150, 200, 250), symbols=symbols)

letters, tokenizer = letters_tokenizer(symbols)
torch.manual_seed(1)
ids = torch.rand(texts, symbols).argsort(1)[:, :period].repeat(1, 2)
accuracy = {f"step {step:,}": copying_accuracy(model, ids) for step, model in copies.items()}
compared = attnviz.compare(
    [" ".join(letters[number] for number in row) for row in ids.tolist()],
    models={
        f"step {step:,}": attnviz.load(model, tokenizer=tokenizer) for step, model in copies.items()
    },
)
turn = compared.turns()[0]
assert compared.statistics[turn.statistic] == "induction"
at, head = (turn.step, turn.head, turn.statistic), compared.heads[turn.head]
rise, low, high = (
    float(numbers[at]) for numbers in (compared.change, compared.change_low, compared.change_high)
)
before, after = compared.checkpoints[turn.step : turn.step + 2]
checkpoints, heads_of_layer = len(copies), len(compared.heads) // 2
right_before, right_after, right = accuracy[before], accuracy[after], [*accuracy.values()][-1]
roles = "induction", "own token", "previous token"
induction, own, previous = map(compared.roles[-1].count, roles)
assert {*filter(None, compared.roles[-1])} <= {*roles}
assert low > 0
assert not any(compared.roles[0])
fig = attnviz.plot.compare(compared, caption="none")
fig.texts[0].remove()  # the title names only the first of these heads
with attnviz.plot.style():
    ax = fig.add_axes((0.69, 0.12, 0.3, 0.37))
    ax.plot([*accuracy], [*accuracy.values()], "C4o-")
    ax.set(title="Next symbol right, in the second half", ylim=(0, 1.05), xticks=(0, 2, 4))
    ax.axvspan(turn.step, turn.step + 1, color="0.94", lw=0)
    ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
title = f"As the model begins to copy, {induction} heads turn to what followed before"
text = f"{texts} texts; colors: the heads with the role induction, with 95% intervals over texts"
fig = attnviz.plot.add_caption(fig, title=title, text=text, agreement=compared.agreement)
