"""Images and audio: invalid, tiny, huge, damaged or unusual files."""

from robustness.catalogue.case import typed

_SEE, _HEAR = "heatmap -m vit --image", "verify -m wav2vec2 --audio"

MEDIA = {
    "no image": typed(f"{_SEE} no.png", 2, "There is no image file no.png"),
    "an empty image": typed(f"{_SEE} empty.png", 2, "no picture that can be read"),
    "half a PNG": typed(f"{_SEE} half.png", 2, "half.png"),
    "a bomb": typed(f"{_SEE} bomb.png", 2, "bomb.png"),
    "1 × 1": typed(f"{_SEE} dot.png -o x.json", leaves="x.json"),
    "20,000 × 1": typed(f"{_SEE} line.png", leaves="heatmap.png"),
    "an animation": typed(f"{_SEE} moving.gif -o x.json", leaves="x.json"),
    "CMYK": typed(f"{_SEE} cmyk.jpg -o x.json", leaves="x.json"),
    "transparent": typed(f"{_SEE} clear.png -o x.svg", leaves="x.svg"),
    "16 bits": typed(f"{_SEE} deep.png", 2, "8 bits a channel"),
    "a text for an image model": typed("verify train -m vit", 2, "an image"),
    "an image without an image model": typed("verify --image photo.png -m tiny", 2, "a text"),
    "an image, streamed": typed(f"{_SEE} photo.png --mode streamed", 2, "streamed"),
    "a sound of 0 s": typed(f"{_HEAR} silence.wav", 2, "silence.wav has no samples"),
    "a sound of 5 ms": typed(f"{_HEAR} click.wav", 2, "Give a longer one"),
    "half a sound": typed(f"{_HEAR} half.wav"),
    "an image as a sound": typed(f"{_HEAR} photo.png", 2, "photo.png"),
    "a sound for a text model": typed("verify train -m tiny --audio tone.wav", 2, "not a sound"),
}
