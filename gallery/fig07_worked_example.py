"""A lesson prints wrong keys and values, and every later stage inherits them

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
decidable, links = count["printed"] - count["untold"], count["linked"]
follow_from_inputs, follow_from_printed = count["from_inputs"], count["from_printed"]
rounded = count["within_rounding"]
slip = " and ".join(
    f"the score ({worked.tokens[i]}, {worked.tokens[j]})"
    for i, j in (~stage("scores").from_printed_follows).nonzero().tolist()
)

cat = attnviz.example("cat")
small_title, small_right, small_printed = (
    cat.title,
    cat.count()["from_inputs"],
    cat.count()["printed"],
)

fig = attnviz.plot.example(worked)
