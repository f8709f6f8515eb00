"""A lesson prints {wrong} wrong numbers, and every later stage inherits the errors

A lesson computes one head for “{sentence}”. Every stage is recomputed, once from the inputs and
once from the stages that the lesson prints before it. A red frame marks a printed cell in which an
error begins, a gray one a cell that inherits an error. The queries are correct. The keys are not,
in {keys} of {rows} rows, nor are the values in {values}, and every later stage inherits the error:
{follow_from_inputs} of {decidable} printed cells follow from the inputs. From the printed stages
before them {follow_from_printed} of {links} follow, {rounded} of these only within rounding: each
softmax and each sum is correct for its inputs, and {slip} are additional slips. A smaller example,
“{small_title}”, is correct: {small_right} of its {small_printed} cells follow.
"""

import attnviz

worked = attnviz.example("phones")
sentence = " ".join(worked.tokens)
rows = len(worked.tokens)


def stage(name):
    return next(stage for stage in worked.stages if stage.name == name)


def rows_off(name):
    """Return the number of rows with a printed cell that does not follow from the inputs."""
    return int((~stage(name).from_inputs_follows).any(1).sum())


assert rows_off("Q") == 0
assert stage("weights").from_printed_follows.all()
assert stage("head output").from_printed_follows.all()
keys, values = rows_off("K"), rows_off("V")
count = worked.count()
linked = [one for one in worked.stages if one.from_printed_follows is not None]
links = sum(one.from_printed_follows.numel() for one in linked)
follow_from_printed = sum(int(one.from_printed_follows.sum()) for one in linked)
rounded = follow_from_printed - sum(int(one.from_printed_exactly.sum()) for one in linked)
follow_from_inputs = count["follows exactly"] + count["within rounding"]
decidable = sum(count.values()) - count["cannot be checked"]
slip = " and ".join(
    f"the score ({worked.tokens[i]}, {worked.tokens[j]})"
    for i, j in (~stage("scores").from_printed_follows).nonzero().tolist()
)

cat = attnviz.example("cat")
small = cat.count()
small_title, small_right, small_printed = cat.title, small["follows exactly"], sum(small.values())

wrong = sum(int((stage.states == "does not follow").sum()) for stage in worked.stages[:4])
fig = attnviz.plot.example(worked, caption="none")
title, subtitle, *_ = fig.texts
title.set_text(__doc__.splitlines()[0].format(wrong=wrong))
subtitle.set_text(f"A lesson on “{sentence}”: one of its two heads, as printed and as computed")
*_, copied = (text for text in fig.texts if "inherit" in text.get_text())
copied.set_text(f"printed: copied from stage 7, {count['cannot be checked']} cannot be checked")
source = "each stage is computed from what is given and, if something is printed before it, from"
source += " the nearest printed stages"
parts = worked.summary(), "own code in float64, no model", source
fig = attnviz.plot.add_caption(fig, text=parts)
