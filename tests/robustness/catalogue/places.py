"""Output files: unwritable locations and existing files."""

import sys

from robustness.catalogue.case import called, typed

# How Python refuses a NUL in a path.
_SINCE_3_13 = "stat: embedded null character in path"
NUL = _SINCE_3_13 if sys.version_info >= (3, 13) else "embedded null byte"

_RESULT = "attnviz.attend('the train', model='tiny')"
_TRAIN = "heatmap 'the train' -m tiny -o"

PLACES = {
    "a missing folder": typed(f"{_TRAIN} none/x.png", 4, "none does not exist", cold=True),
    "a file as the folder": typed(f"{_TRAIN} words.txt/x.svg", 4, "words.txt"),
    "the file that is read": typed(
        "example --file own.json -o own.json --force", 2, "own.json is the text to read"
    ),
    "a folder": typed(f"{_TRAIN} afolder", 4, "afolder is a folder"),
    "a read-only folder": typed(f"{_TRAIN} locked/x.png", 4, "read-only", within="no root"),
    "a folder of the system": typed(f"{_TRAIN} /proc/x.json", 4, "/proc"),
    "a device": typed(f"{_TRAIN} /dev/null", 2, "must end in"),
    "a link to a device": typed(f"{_TRAIN} null.png", 4, "is a device"),
    "a link": typed(f"{_TRAIN} link.png", leaves="real.png"),
    "a link to nowhere": typed(f"{_TRAIN} nowhere.png", 4, "does not exist"),
    "a link to itself": typed(f"{_TRAIN} loop.png", 4, "loop.png"),
    "a name too long": typed(f"{_TRAIN} {'n' * 300}.png", 4, "File name too long"),
    "a path too long": typed(f"{_TRAIN} {'n/' * 3000}x.png", 4, "too long"),
    "a newline in the name": typed(f"{_TRAIN} 'a\nb.json'", leaves=("a\nb.json",)),
    "an escape in the name": typed(f"{_TRAIN} 'none/\x1b[31m.png'", 4, "none"),
    "a name that is no Unicode": typed(f"{_TRAIN} '\udcff.json'", leaves=("\udcff.json",)),
    "a name of blanks": typed(f"{_TRAIN} '  .json'", leaves=("  .json",)),
    "no ending": typed(f"{_TRAIN} x", 2, "must end in"),
    "NUL in the name": called(
        f"attnviz.save_result(attnviz.attention_map({_RESULT}, layer=0, head=0), 'a\\0.json')",
        4,
        NUL,
    ),
    **{
        f"no room for a .{ending}": typed(
            f"heads 'the train left the station' -m tiny -o x.{ending}",
            4,
            "File too large",
            within="600 bytes of room",
        )
        for ending in ("png", "svg", "pdf", "json", "npz", "safetensors", "parquet")
    },
    "no room for a page": typed(
        "view 'the train' -m tiny", 4, "File too large", within="9000 bytes of room"
    ),
    "old data": typed(f"{_TRAIN} old.json", 4, "not overwritten by default"),
    "a result, by its own map": typed(
        "heatmap --result kept.safetensors -o kept.safetensors", 4, "not overwritten by default"
    ),
    "no room for what is there": typed(
        "heatmap 'the train' -m tiny -o old.json --force",
        4,
        "File too large",
        within="600 bytes of room",
    ),
}
