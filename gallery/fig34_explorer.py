"""One page shows what each of {heads} heads does

A picture of the interactive page that “attnviz explore --sample --model smollm2” writes: each dot
is a head of SmolLM2, placed by two statistics over {texts} short sentences that come with attnviz,
and colored by its role, which half of the sentences suggest and the other half confirm. Beside the
plane are the strongest examples of one head. The page also has typical examples, the plane in which
queries and keys meet, the tokens whose logits a head raises and lowers, and what next tokens lose
without it. It is one file and works offline.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
from screenshot import screenshot

import attnviz

explored = attnviz.explore(sample=True, model="smollm2")
heads, texts = len(explored.survey.heads), explored.survey.texts
with TemporaryDirectory() as folder:
    explored.page().save(page := Path(folder, "heads.html"))
    picture = plt.imread(screenshot(page, scale=2))
with attnviz.plot.style():
    fig, ax = plt.subplots(figsize=(7.2, 5), layout="constrained")
    ax.imshow(picture, aspect="auto").axes.set_axis_off()
text = f"{texts} sentences, SmolLM2-135M-Instruct (4-bit weights)"
fig = attnviz.plot.add_caption(fig, text=text, agreement=explored.agreement)
