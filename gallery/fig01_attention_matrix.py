"""In head {best.layer}.{best.head}, “train” looks ahead to “station” with {share:.0%} of its weight

{words} words give a matrix of {words} × {words}. Word pieces are merged into words, [CLS] and [SEP]
are removed, and every row is renormalized to sum to 1. Does “train” attend to “station”? It gives
“station” more weight than “on” and both “the” in {above} of {total} heads, and more than any other
word except itself in {first} of them. In head {best.layer}.{best.head} (shown) “station” receives
{share:.0%} of the row, {ratio:.0f} times as much as “on”. In the median head it receives
{median:.2f} times as much as “on”: this is what some heads do, not what attention does.
"""

import statistics

import attnviz

result = attnviz.attend("the train left the station on time")

ranking = attnviz.find_heads(result, query="train", key="station")
above = len(ranking.above_function_words)
first = len(ranking.first)
total = len(ranking.scores)
best = ranking.scores[0]

others = attnviz.find_heads(result, query="train", key="on")
on = {(head.layer, head.head): head.score for head in others.scores}
ratios = [head.score / on[head.layer, head.head] for head in ranking.scores]
median = statistics.median(ratios)
ratio = ratios[0]  # the best head comes first

drawn = attnviz.attention_map(result, layer=best.layer, head=best.head, special="remove")
words = len(drawn.rows)
share = drawn.weights[drawn.rows.index("train"), drawn.columns.index("station")].item()

title = f"“train” looks ahead to “station” with {share:.0%} of its weight"
fig = attnviz.plot.heatmap(drawn, width=95, title=title).figure
