"""“{largest}” makes up most of the vector of “{word}”, with little of its weight

The attention vector of “{word}” is a sum: the value vector of every token, times the weight that
“{word}” gives it. In head {layer}.{head} the largest weight, {weight:.0%}, goes to {heaviest}. The
value of {heaviest} is short ({length:.1f}, against {longest:.1f} for “{largest}”), so it
contributes only {sink_share:.0%} of the sum. “{largest}” contributes {largest_share:.0%} with
{its_weight:.0%} of the weight. A large weight is not a large effect. On average over all {heads}
heads, {heaviest} receives {mean_weight:.0%} of the weight of “{word}” and contributes
{mean_share:.0%} of its vector.
"""

import attnviz

word, layer, head = "train", 5, 3
result = attnviz.attend("the train left the station")
steps = attnviz.steps(result, layer=layer, head=head, word=word)
weights = steps["weights"].values[steps.row]
lengths = steps["V"].values.norm(dim=1)

first = int(weights.argmax())  # the token with the largest weight
second = int(steps.shares.argmax())  # the token that makes up most of the sum
assert first != second
heaviest, largest = steps.keys[first], steps.keys[second]
weight, its_weight = weights[first], weights[second]
sink_share, largest_share = steps.shares[first], steps.shares[second]
length, longest = lengths[first], lengths[second]
assert length < longest

steps_by_head = [
    attnviz.steps(result, layer=record.layer, head=number, word=word)
    for record in result
    for number in range(record.heads)
]
heads = len(steps_by_head)
mean_weight = sum(one["weights"].values[one.row, first] for one in steps_by_head) / heads
mean_share = sum(one.shares[first] for one in steps_by_head) / heads

fig = attnviz.plot.attention_vector(steps)
