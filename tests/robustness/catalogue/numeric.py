"""Numbers: NaN, infinities, fully masked rows, and overflow."""

from robustness.catalogue.case import called, typed

NUMERIC = {
    "weights of nan": typed("verify 'the train' -m nan", 3, "finite"),
    "one row of nan": typed("heatmap 'the train' -m one-nan", 3, "finite"),
    "nan where nothing is read": typed("verify 'the train' -m nan-unused", 3, "finite"),
    "flat attention": typed("verify 'the train' -m flat", 5),
    "overflow in float16": typed("verify 'the train' -m overflowing --dtype float16", 5),
    "overflow in float16, as a page": typed(
        "view 'the train' -m overflowing --dtype float16", 5, leaves="view.html"
    ),
    "overflow in float16, in steps": typed(
        "steps 'the train' -m overflowing --dtype float16 --layer 1 -o x.svg", 5, leaves="x.svg"
    ),
    "float16": typed("verify 'the train left' -m tiny --dtype float16"),
    "bfloat16": typed("verify 'the train left' -m tiny --dtype bfloat16"),
    "float64": typed("verify 'the train left' -m tiny --dtype float64"),
    "whole numbers as weights": typed("verify 'the train' -m whole-numbers"),
    "int8": typed("verify 'the train' -m tiny --dtype int8", 2, "'int8' is not a dtype"),
    "a dtype of no name": typed("verify 'the train' -m tiny --dtype ''", 2, "'' is not a dtype"),
    "a row that sees nothing": called(
        "torch.allclose(torch.tensor([1.0, 0.0]), formula.softmax("
        "torch.tensor([[0.5, 2.0], [-torch.inf, -torch.inf]])).sum(-1))"
    ),
    "scores that overflow float16": called(
        "attnviz.formula.attention.softmax(torch.full((1, 3), 65504.0, dtype=torch.float16))"
        ".isfinite().all().item()"
    ),
    "texts of two lengths, padded": called(
        "attnviz.attend(['the train left the station', 'a'], model='tiny')[1].agreement"
    ),
    "padding that a causal model sees": called(
        "attnviz.attend(['the train left the station', 'a'], model='gpt')[1].agreement"
    ),
    "top of a streamed text below 0": called(
        "attnviz.attend('the train', model='tiny', mode='streamed', top=-1)", 2, "top"
    ),
    "no cells": called(
        "attnviz.attend('the train', model='tiny', mode='streamed', cells=0)", 2, "cells"
    ),
    "a page of nan megabytes": typed("view train -m tiny --size nan", 2, "size"),
    "a page below 0": typed("view train -m tiny --size -1", 2, "size"),
    "a page of endless size": typed("view train -m tiny --size inf", leaves="view.html"),
    "a page that is too small": typed("view train -m tiny --size 0.01", 2, "larger size"),
    "an example of nan": typed("example --file nan.json", 2, "X must have rows of equal length"),
    "an example beyond any number": typed(
        "example --file large.json", 2, "numbers up to 1,000,000,000"
    ),
    "a sound of nan": called(
        "attnviz.attend(audio=np.full(16000, np.nan, np.float32), sampling_rate=16000, "
        "model='wav2vec2')",
        2,
        "samples that are not finite",
    ),
    "a sound of no rate": called(
        "attnviz.attend(audio=np.zeros(16000, np.float32), model='wav2vec2')", 2, "sampling_rate"
    ),
    "an image of floats": called(
        "attnviz.attend(image=np.full((4, 4, 3), 2.0), model='vit')", 2, "of uint8"
    ),
    "an image without pixels": called(
        "attnviz.attend(image=np.zeros((0, 4, 3), np.uint8), model='vit')", 2, "of uint8"
    ),
}
