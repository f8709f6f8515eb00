"""What a model takes, and what each position is: text, images and sounds, whichever it reads."""

from attnviz.inputs.audio import Recording, Sound
from attnviz.inputs.batch import Batch, encode, expect_one_text
from attnviz.inputs.generated import continue_axis, expect_room, said_text
from attnviz.inputs.image import Photo, Picture
from attnviz.inputs.parse import Given, Many, gather
from attnviz.inputs.text import max_tokens, pad_together, padded, pieces_in, token_spans, tokenize
from attnviz.inputs.windows import place_windows

__all__ = [
    "Batch",
    "Given",
    "Many",
    "Photo",
    "Picture",
    "Recording",
    "Sound",
    "continue_axis",
    "encode",
    "expect_one_text",
    "expect_room",
    "gather",
    "max_tokens",
    "pad_together",
    "padded",
    "pieces_in",
    "place_windows",
    "said_text",
    "token_spans",
    "tokenize",
]
