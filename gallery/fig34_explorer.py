"""Of {heads} heads, head {head} reads the previous token most: {share:.0%} of its weight

A picture of the interactive page that “attnviz explore --sample --model smollm2” writes: each dot
is a head of SmolLM2, placed by two statistics over {texts} short sentences that come with attnviz,
and colored by its role, which half of the sentences suggest and the other half confirm. Head {head}
(red) is the one farthest right: it gives {share:.0%} of its weight to the token before (even
weights: {even:.0%}). Beside the plane are its strongest and typical examples: the outlined token
reads the colored ones. Further down the page has the tokens whose logits the head raises and
lowers. It is one file and works offline.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
from panels import CLAIM
from screenshot import screenshot

import attnviz

explored = attnviz.explore(sample=True, model="smollm2")
survey = explored.survey
heads, texts, statistic = len(survey.heads), survey.texts, survey.statistics.index("previous")
weights = survey.mean[:, statistic]
most = int(weights.argmax())
head, share, even = survey.heads[most], weights[most], survey.even[most, statistic]
hidden = ".axes-of, .like, .effect, .beside, .strongest small, .typical li:nth-child(even)"
boxes = dict.fromkeys((".columns-of-page", "circle.chosen", "rect.chosen"))
look = {"until": ".columns-of-page", "style": f"{hidden} {{ display: none !important }}"}
with TemporaryDirectory() as folder:
    explored.page().save(page := Path(folder, "heads.html"))
    picture = plt.imread(screenshot(page, scale=2, boxes=boxes, **look))
(_, top, *_), *marked = boxes.values()
picture = picture[int(top) :]  # without the title of the page
with attnviz.plot.style():
    size = 7.2, 7.2 * len(picture) / len(picture[0])
    fig, ax = plt.subplots(figsize=size, layout="constrained")
    ax.imshow(picture, aspect="auto").axes.set_axis_off()
    names = (f"head {head}: {share:.0%}", "right", 18), (f"head {head}", "left", -6)
    for (x, y, wide, high), mark, (name, side, far) in zip(marked, "os", names, strict=True):
        middle, look = x + wide / 2, {"mfc": "none", "mec": CLAIM, "mew": 1.6, "ms": 9}
        ax.plot(middle, y + high / 2 - top, mark, **look)
        ax.text(middle + far, y - top - 16, name, color=CLAIM, weight="bold", ha=side)
title = f"Of {heads} heads, head {head} reads the previous token most: {share:.0%} of its weight"
text = f"{texts} sentences, SmolLM2-135M-Instruct (4-bit weights)"
marks = "in a sentence: the outlined token reads the colored ones"
fig = attnviz.plot.add_caption(fig, title=title, text=(text, marks), agreement=explored.agreement)
