"""A few figures compared with reference images that were inspected by eye.

To regenerate the images: pytest tests/figures/test_golden.py
--mpl-generate-path=tests/figures/baseline, then inspect each one.
"""

from functools import partial

import explained
import pytest

import attnviz

golden = partial(
    pytest.mark.mpl_image_compare,
    baseline_dir="baseline",
    style="default",
    tolerance=8,  # root mean square over all pixels, of 255; hinting varies by machine
    savefig_kwargs={"dpi": 100},
)


@golden(filename="heatmap_column_width.png")
def test_a_heatmap_of_column_width_with_its_overview(train):
    return attnviz.plot.heatmap(train, special="remove", width=89).figure


@golden(filename="heatmap_pair.png")
def test_a_heatmap_of_a_pair_in_full_width(pair):
    return attnviz.plot.heatmap(pair, layer=5, head=9, overview=True, width=183).figure


@golden(filename="text_column_width.png")
def test_a_text_of_column_width(train):
    drawn = attnviz.attention_map(train, layer=0, head=4)
    return attnviz.plot.text(drawn, width=89)


@golden(filename="head_grid_layer.png")
def test_the_heads_of_one_layer(short):
    return attnviz.plot.heads(short, layer=2, width=89)


@golden(filename="explain_windows.png")
def test_words_by_windows_of_a_sound():
    return attnviz.plot.explain(explained.of_words(), width=120)


@golden(filename="explain_tiles.png")
def test_neighboring_tiles_of_a_picture():
    return attnviz.plot.explain(explained.of_tiles(), width=120)
