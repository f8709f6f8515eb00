"""Different heads, different relations

All {count} heads of layer {layer}, side by side, on the same words. Each has its own matrices for
queries, keys and values, so each relates the words in its own way: in {previous} of them the
average word gives most weight to the word before it, in {following} to the one after it, in {own}
to itself, and in {special} to [CLS] or [SEP].
"""

import attnviz

layer = 2
result = attnviz.attend("the train left the station on time")
maps = attnviz.make_maps(result, layer=layer)

places = maps.weights[0, :, 1:-1].argmax(-1)  # of every head and word, the key with most weight
words = range(1, len(maps.rows) - 1)
kinds = {"previous": -1, "own": 0, "following": 1}
counts = dict.fromkeys([*kinds, "special"], 0)
for head in places.tolist():
    votes = {
        name: sum(key == word + step for word, key in zip(words, head, strict=True))
        for name, step in kinds.items()
    }
    votes["special"] = sum(key in (0, len(maps.rows) - 1) for key in head)
    winner = max(votes, key=lambda name: votes[name])
    counts[winner] += votes[winner] > len(words) / 2
count = len(places)
previous, own, following, special = (counts[name] for name in (*kinds, "special"))

fig = attnviz.head_grid(maps)
