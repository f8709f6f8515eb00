"""Of {heads} heads, head {head} reads the previous token most: {share:.0%} of its weight

A picture of the interactive page that “attnviz explore --sample --model smollm2” writes: each dot
is a head of SmolLM2, placed by two statistics over {texts} short sentences that come with attnviz,
and colored by its role, which half of the sentences suggest and the other half confirm. Head {head}
is the one farthest right: it gives {share:.0%} of its weight to the token before (even weights:
{even:.0%}). Beside the plane are its
strongest and typical examples: the outlined token reads the colored ones. Further down the page has
the plane in which queries and keys meet, and the tokens whose logits the head raises and lowers. It
is one file and works offline.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
from screenshot import screenshot

import attnviz

explored = attnviz.explore(sample=True, model="smollm2")
survey = explored.survey
heads, texts, statistic = len(survey.heads), survey.texts, survey.statistics.index("previous")
weights = survey.mean[:, statistic]
most = int(weights.argmax())
head, share, even = survey.heads[most], weights[most], survey.even[most, statistic]
with TemporaryDirectory() as folder:
    explored.page().save(page := Path(folder, "heads.html"))
    picture = plt.imread(screenshot(page, scale=2, until="section.typical"))
picture = picture[132:]  # without the title of the page
with attnviz.plot.style():
    size = 7.2, 7.2 * len(picture) / len(picture[0])
    fig, ax = plt.subplots(figsize=size, layout="constrained")
    ax.imshow(picture, aspect="auto").axes.set_axis_off()
title = f"Of {heads} heads, head {head} reads the previous token most: {share:.0%} of its weight"
text = f"{texts} sentences, SmolLM2-135M-Instruct (4-bit weights)"
marks = "in a sentence: the outlined token reads the colored ones"
fig = attnviz.plot.add_caption(fig, title=title, text=(text, marks), agreement=explored.agreement)
