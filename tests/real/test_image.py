"""What a head of DINOv2 and its sink do on a photo, by numpy on the weights of attnviz."""

import numpy as np
import pytest
import torch
from fetched import PHOTO, attended, load
from PIL import Image

pytestmark = pytest.mark.real
SIDE = 16  # patches
FACE = np.zeros((SIDE, SIDE), bool)
FACE[1:9, 6:11] = True
WALL = np.zeros((SIDE, SIDE), bool)
WALL[:8, 13:] = True


@pytest.fixture(scope="module")
def photo():
    """The weights between patches, (layers, heads, queries, keys), those from [CLS], and norms."""
    model, outputs = load("dinov2-small", torch.float32), []
    hook = model.module.layernorm.register_forward_pre_hook(
        lambda _, arguments: outputs.append(arguments[0][0, 1:].norm(dim=-1))
    )
    with torch.no_grad(), Image.open(PHOTO) as picture:
        model.module(**model.checkpoint.processors.image(picture, return_tensors="pt"))
    hook.remove()
    result = attended("dinov2-small", torch.float32, "sample")
    weights = np.stack([record.weights().numpy() for record in result])
    return weights[:, :, 1:, 1:], weights[:, :, 0, 1:], outputs[-1]


def share(weights, region):
    """Return the mean weight that the patches of a region give to the region."""
    inside = region.ravel()
    return weights[inside][:, inside].sum(1).mean()


def by_distance(weights):
    """Return the mean weights of all pairs of patches that are equally far apart, rows sum to 1."""
    means = {}
    places = [divmod(n, SIDE) for n in range(SIDE * SIDE)]
    for n, (row, column) in enumerate(places):
        for m, (other_row, other_column) in enumerate(places):
            offset = other_row - row, other_column - column
            means.setdefault(offset, []).append(weights[n, m])
    means = {offset: np.mean(values) for offset, values in means.items()}
    near = np.array([[means[c[0] - r[0], c[1] - r[1]] for c in places] for r in places])
    return near / near.sum(1, keepdims=True)


@pytest.mark.parametrize("region", [FACE, WALL], ids=["face", "wall"])
def test_patches_attend_to_their_own_thing_beyond_what_is_near(photo, region):
    weights = photo[0][11, 2]
    assert share(weights, region) > 0.6
    assert share(weights, region) > share(by_distance(weights), region) + 0.1


def test_the_class_token_attends_to_the_face(photo):
    assert photo[1][11, 2][FACE.ravel()].sum() > 3 * FACE.mean()


def test_all_patches_of_one_head_attend_to_a_single_patch(photo):
    received = photo[0].mean(2).max(-1)  # (layers, heads): by the patch with the largest weight
    assert received[0, 5] > 0.5
    assert received[1:].max() < 0.2


def test_no_patch_has_an_outlying_norm(photo):
    assert photo[2].max() < 1.5 * photo[2].median()
