"""Figures of images and audio: cells over an image, scales instead of hundreds of labels."""

from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from media import RATE, SIDE, chirp, image_processor, picture, seeing
from readable_text import IMAGE_COLORS, LIGHT, LUMINANCE, check_layout, labels, page_text
from transformers import ViTConfig, ViTModel

import attnviz


@pytest.fixture(scope="session")
def vision(tokenizer):
    return seeing("vit", tokenizer).attend(image=picture())


def of_image(layers, heads, patch):
    """Return the attentions of an image in patches of some pixels."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=48,
        image_size=SIDE, patch_size=patch, initializer_range=0.2,
    )  # fmt: skip
    return attnviz.load(ViTModel(config), processor=image_processor()).attend(image=picture())


@pytest.fixture(scope="session")
def fine():
    """An image of 16 × 16 patches, too many to label each one."""
    return of_image(2, 4, patch=2)


@pytest.fixture(scope="session")
def speech(tokenizer):
    model = seeing("whisper", tokenizer)
    return model.attend(audio=chirp(), sampling_rate=RATE, target="the train left the station")


def outlined(ax, color=LIGHT.claim):
    boxes = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return [box.get_xy() for box in boxes if to_hex(box.get_edgecolor()) == color]


def test_the_weights_of_a_patch_are_cells_over_the_image(vision):
    ax = attnviz.plot.heatmap(vision, layer=1, head=2, patch=(3, 1))
    (mesh,) = ax.collections
    row = vision.weights(1, 2)[1 + 3 * 4 + 1]
    ratio = row[1:].reshape(4, 4) * len(row)
    np.testing.assert_allclose(mesh.get_array(), doublings(ratio))
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 4), (4, 0))
    assert outlined(ax) == [(1, 3)]
    limit = max(1, doublings(ratio).max().item())
    assert (mesh.norm.vmin, mesh.norm.vmax) == pytest.approx((-limit, limit))
    heading = next(text.get_text() for text in ax.figure.texts)
    row, column = divmod(int(ratio.argmax()), 4)
    assert outlined(ax, LIGHT.ink) == [(column, row)]
    assert heading == (
        f"The framed patch (3, 1) attends most to patch ({row}, {column}): "
        f"{ratio.max().item():.1f} × even weight"
    )
    seen = ax.figure.axes[0]
    np.testing.assert_array_equal(seen.images[0].get_array(), vision.image.numpy())
    assert outlined(seen) == [(1, 3)]
    assert "Layer 1, head 2, from the patch in row 3, column 1" in page_text(ax.figure)


def test_a_patch_that_attends_most_to_itself(vision):
    drawn = attnviz.attention_map(vision, layer=1, head=2)
    weights = drawn.weights.clone()
    weights[6] = torch.eye(17)[6]
    ax = attnviz.plot.heatmap(replace(drawn, weights=weights), patch=(1, 1))
    assert "The framed patch (1, 1) attends most to itself: 17.0 ×" in page_text(ax.figure)


def doublings(ratio):
    """Return how often even weight doubles to each weight; colors end at 1/32."""
    return ratio.clamp(min=1 / 32).log2()


def test_the_image_is_a_shadow_over_the_colors(vision):
    ax = attnviz.plot.heatmap(vision, layer=1, head=2)
    (image,), (mesh,) = ax.images, ax.collections
    assert image.zorder > mesh.zorder
    *colors, shadow = np.moveaxis(np.asarray(image.get_array()), -1, 0)
    assert not np.any(colors)  # black
    brightness = vision.image.numpy() @ np.array(LUMINANCE)
    order = brightness.ravel().argsort()
    assert (np.diff(shadow.ravel()[order]) <= 0).all()  # the darker the image, the darker
    assert shadow.max() - shadow.min() > 0.2
    assert shadow.max() <= 0.5  # colors stay visible
    assert min(mesh.cmap(0.5)) > 0.99  # even weights leave the image as it is


def test_vmax_sets_one_scale_of_several_overlays(vision):
    axes = plt.figure(figsize=(7, 3)).subplots(1, 2)
    for patch, ax in zip(("[CLS]", (3, 1)), axes, strict=True):
        attnviz.plot.heatmap(vision, layer=1, head=2, patch=patch, ax=ax, vmax=8, cbar=False)
        norm = ax.collections[0].norm
        assert (norm.vmin, norm.vmax) == (-3, 3)
    page = attnviz.plot.heatmap(vision, layer=1, head=2, vmax=8, title="One scale").figure
    assert "One scale" in page_text(page)
    assert page.axes[1].collections[0].norm.vmax == 3


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ({"vmin": 0.1}, "vmin and norm cannot be set. Set vmax"),
        ({"norm": mpl.colors.Normalize(0, 1)}, "vmin and norm cannot be set. Set vmax"),
        ({"vmax": 0.5}, "a multiple of even weight above 1, not 0.5"),
    ],
)
def test_a_scale_that_colors_over_an_image_cannot_have(vision, scale, said):
    with pytest.raises(attnviz.InputError, match=said):
        attnviz.plot.heatmap(vision, layer=1, head=2, **scale)


def test_a_tall_overview_is_beside_two_pictures_one_below_the_other():
    figure = attnviz.plot.heatmap(of_image(6, 2, patch=8)).figure
    image, overlay, _, overview = (ax.get_position() for ax in figure.axes)
    assert overlay.y1 < image.y0
    assert overlay.x0 == image.x0
    assert overview.x0 > overlay.x1
    check_layout(figure)


def test_the_overview_shows_the_same_query_as_the_chosen_head(vision):
    figure = attnviz.plot.heatmap(vision, patch=(0, 2)).figure
    assert "This head among all 8" in page_text(figure)
    mosaic = figure.axes[3].images[0]
    tiles = np.asarray(mosaic.get_array())
    best = attnviz.rank_heads(vision).best
    drawn = vision.weights(best.layer, best.head)[3, 1:].reshape(4, 4) * 17
    limit = max(1, doublings(drawn).max().item())
    values = doublings(vision.weights(0, 0)[3, 1:].reshape(4, 4) * 17) / limit
    expected = IMAGE_COLORS(((values + 1) / 2).clamp(0, 1).numpy())
    np.testing.assert_allclose(tiles[1:5, :4] / 255, expected, atol=0.006)


def test_without_a_class_token_the_center_patch_is_the_query(tokenizer):
    result = seeing("swin", tokenizer).attend(image=picture())
    ax = attnviz.plot.heatmap(result, layer=0, head=1)
    assert outlined(ax) == [(4, 4)]
    record = result.record(0)
    at = record.query_axis.patches.index((4, 4))
    weights = np.zeros((8, 8), np.float32)
    for patch, weight in zip(record.key_axis.patches, record.weights(1)[at], strict=True):
        if patch is not None:
            weights[patch] = weight
    ratio = torch.tensor(weights) * record.readable()[at].sum()
    np.testing.assert_allclose(ax.collections[0].get_array(), doublings(ratio))
    assert (weights > 1e-6).sum() <= 9  # only the 3 × 3 window
    assert attnviz.plot.heatmap(result).figure  # layers with different head counts: no overview


def test_words_are_queries_in_cross_attention_and_with_placeholders(tokenizer):
    blip = seeing("blip", tokenizer).attend("a red circle", image=picture())
    ax = attnviz.plot.heatmap(blip, layer=0, head=0)
    assert "Cross-attention, layer 0, head 0, from “circle”" in page_text(ax.figure)
    assert outlined(ax) == []
    weights = blip.weights(0, 0)[3, 1:].reshape(4, 4)
    np.testing.assert_allclose(ax.collections[0].get_array(), doublings(weights * 17))
    llava = seeing("llava", tokenizer).attend("a red circle", image=picture()).stack("decoder")
    ax = attnviz.plot.heatmap(llava, layer=0, head=0, patch="red")
    assert "from “red”" in page_text(ax.figure)
    assert "decoder" not in page_text(ax.figure)


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ((4, 0), "(4, 0) is not a query of the map. Choose [CLS] or a patch"),
        ((0, 9), "a patch as (row, column) from (0, 0) to (3, 3)."),
        ((-1, 0), "(-1, 0) is not a query of the map."),
        ("[SEP]", "'[SEP]' is not a query of the map. Choose [CLS] or a patch as (row, column)"),
    ],
)
def test_a_missing_patch(vision, patch, said):
    with pytest.raises(attnviz.InputError) as caught:
        attnviz.plot.heatmap(vision, patch=patch)
    assert said in str(caught.value)


def test_a_patch_of_a_matrix_or_of_a_text_is_refused(vision, train, tokenizer):
    for result, how in ((vision, {"matrix": True}), (train, {})):
        with pytest.raises(attnviz.InputError, match="only for weights that are drawn over"):
            attnviz.plot.heatmap(result, patch=(0, 0), **how)
    blip = seeing("blip", tokenizer).attend("a red circle", image=picture())
    said = r"not a query of the map\. Choose .*red or circle"
    with pytest.raises(attnviz.InputError, match=said):
        attnviz.plot.heatmap(blip, patch=(0, 0))


def test_a_matrix_of_a_fine_image_names_rows_of_patches(fine):
    ax = attnviz.plot.heatmap(fine, layer=0, head=0, matrix=True)
    (mesh,) = ax.collections
    assert mesh.get_array().shape == (257, 257)
    named = labels(ax.yaxis)
    assert named[0] == "[CLS]"
    assert set(named[1:]) <= {f"row {row}" for row in range(16)}
    assert len(named) > 8
    first = named.index("row 1")
    assert ax.get_yticks()[first] == 1 + 16 + 8  # the middle of that row of patches
    assert labels(ax.xaxis)[0] == "[CLS]"


def test_audio_frames_get_a_scale_in_seconds(speech):
    ax = attnviz.plot.heatmap(speech, layer=1, head=0)
    assert ax.get_xlabel() == "key (attended to), s"
    ticks = dict(zip(labels(ax.xaxis), ax.get_xticks(), strict=True))
    assert ticks["0"] == 0
    assert ticks["1"] == pytest.approx(50)  # frames of 20 ms
    assert max(ax.get_xticks()) == pytest.approx(50)  # the sound ends, and its padding is not drawn
    assert labels(ax.yaxis) == ["[CLS]", "the", "train", "left", "the", "station"]
    assert ax.get_aspect() == "auto"  # six rows of fifty columns would be a thin line
    both = attnviz.plot.heatmap(speech.stack("encoder"), layer=0, head=0, special="remove")
    assert both.get_ylabel() == "query (attending), s"
    assert both.get_aspect() == 1
    assert max(float(label) for label in labels(both.yaxis)) == 1


def test_more_frames_than_fit_are_drawn_by_their_maximum(speech):
    drawn = attnviz.attention_map(speech, layer=0, head=0)
    weights = torch.rand(6, 1500)
    seconds = tuple(0.02 * n for n in range(1500))
    long = replace(
        drawn, weights=weights, columns=("",) * 1500, special_columns=(False,) * 1500,
        sides=(drawn.sides[0], replace(drawn.sides[1], seconds=seconds)),
    )  # fmt: skip
    ax = attnviz.plot.heatmap(long)
    cells = np.asarray(ax.collections[0].get_array())
    np.testing.assert_array_equal(cells, weights.reshape(6, 500, 3).amax(-1))
    assert ax.get_xlim() == (0, 1500)
    assert "Each cell is the largest of several weights." in page_text(ax.figure)


def test_nothing_overlaps_for_images_and_audio(fine, speech):
    check_layout(attnviz.plot.heatmap(fine, width=89).figure)
    check_layout(attnviz.plot.heatmap(fine, layer=0, head=1, patch=(1, 2), width=89).figure)
    check_layout(attnviz.plot.heatmap(fine, matrix=True, width=89).figure)
    check_layout(attnviz.plot.heads(fine, width=89))
    for stack in speech.stacks:
        check_layout(attnviz.plot.heatmap(speech.stack(stack), width=89).figure)


def test_an_overlay_in_user_axes(vision):
    figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
    for head, ax in enumerate(axes):
        assert attnviz.plot.heatmap(vision, layer=0, head=head, ax=ax) is ax
        assert ax.get_title(loc="left").startswith(f"Layer 0, head {head}")
    check_layout(figure)


def test_images_are_upright_for_any_user_settings(vision):
    with mpl.rc_context({"image.origin": "lower"}):
        ax = plt.subplots()[1]
        attnviz.plot.heatmap(vision, ax=ax)
        figure = attnviz.plot.heatmap(vision).figure
    images = [image for axes in (ax, *figure.axes) for image in axes.images]
    assert len(images) >= 4
    assert {image.origin for image in images} == {"upper"}
