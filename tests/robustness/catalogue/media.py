"""Images and audio: invalid, tiny, huge, damaged or unusual files."""

from robustness.catalogue.case import both, typed

_SEE, _HEAR = "heatmap -m vit --image", "verify -m wav2vec2 --audio"

MEDIA = {
    "no image": both(f"{_SEE} no.png", 2, "There is no image file no.png"),
    "a folder as an image": both(f"{_SEE} folder.png", 2, "folder.png"),
    "a text that is called .png": both(f"{_SEE} words.png", 2, "no picture that can be read"),
    "an empty image": both(f"{_SEE} empty.png", 2, "no picture that can be read"),
    "half a PNG": both(f"{_SEE} half.png", 2, "half.png"),
    "a bomb": both(f"{_SEE} bomb.png", 2, "bomb.png"),
    "1 × 1": typed(f"{_SEE} dot.png -o x.json", leaves="x.json"),
    "20,000 × 1": typed(f"{_SEE} line.png", leaves="heatmap.png"),
    "an animation": both(f"{_SEE} moving.gif -o x.json", leaves="x.json"),
    "CMYK": both(f"{_SEE} cmyk.jpg -o x.json", leaves="x.json"),
    "gray": both(f"{_SEE} gray.png -o x.json", leaves="x.json"),
    "transparent": typed(f"{_SEE} clear.png -o x.svg", leaves="x.svg"),
    "16 bits": both(f"{_SEE} deep.png", 2, "8 bits a channel"),
    "a photo": typed(f"{_SEE} photo.jpg -o x.pdf", leaves="x.pdf"),
    "a page of a photo": both("view -m vit --image photo.png", leaves="view.html"),
    "a patch outside": both(f"{_SEE} photo.png --patch 9,9", 2, "patch"),
    "a patch of no name": both(f"{_SEE} photo.png --patch sky", 2, "sky"),
    "a patch": typed(f"{_SEE} photo.png --patch 1,2 -o x.json", leaves="x.json"),
    "a text for an image model": both("verify train -m vit", 2, "an image"),
    "an image for a text model": both("verify train -m tiny --image photo.png", 2, "not an image"),
    "an image without an image model": both("verify --image photo.png -m tiny", 2, "a text"),
    "an image, streamed": both(f"{_SEE} photo.png --mode streamed", 2, "streamed"),
    "no sound": both(f"{_HEAR} no.wav", 2, "There is no audio file no.wav"),
    "a text that is called .wav": both(f"{_HEAR} words.wav", 2, "words.wav"),
    "a sound of 0 s": both(f"{_HEAR} silence.wav", 2, "silence.wav has no samples"),
    "a sound of 5 ms": both(f"{_HEAR} click.wav", 2, "Give a longer one"),
    "half a sound": both(f"{_HEAR} half.wav"),
    "stereo": both(f"{_HEAR} stereo.wav"),
    "8 kHz": both(f"{_HEAR} 8khz.wav"),
    "an image as a sound": both(f"{_HEAR} photo.png", 2, "photo.png"),
    "a sound for a text model": both("verify train -m tiny --audio tone.wav", 2, "not a sound"),
}
