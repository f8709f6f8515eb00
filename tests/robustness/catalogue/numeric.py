"""Numbers: NaN, infinities, fully masked rows, and overflow."""

from robustness.catalogue.case import called, typed

NUMERIC = {
    "weights of nan": typed("verify 'the train' -m nan", 3, "finite"),
    "nan where nothing is read": typed("verify 'the train' -m nan-unused", 3, "finite"),
    "flat attention": typed("verify 'the train' -m flat", 5),
    "overflow in float16": typed("verify 'the train' -m overflowing --dtype float16", 5),
    "overflow in float16, as a page": typed(
        "view 'the train' -m overflowing --dtype float16", 5, leaves="view.html"
    ),
    "float64": typed("verify 'the train left' -m tiny --dtype float64"),
    "int8": typed("verify 'the train' -m tiny --dtype int8", 2, "'int8' is not a dtype"),
    "texts of two lengths, padded": called(
        "attnviz.attend(['the train left the station', 'a'], model='tiny')[1].agreement"
    ),
    "padding that a causal model sees": called(
        "attnviz.attend(['the train left the station', 'a'], model='gpt')[1].agreement"
    ),
    "a page of endless size": typed("view train -m tiny --size inf", leaves="view.html"),
    "a page that is too small": typed("view train -m tiny --size 0.01", 2, "larger size"),
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
