"""Correct and incorrect uses with their expected outcomes: a table for each group."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One use of the package, and its outcome.

    All files and models in the case are prepared (`running.prepared` maps their names).

    typed : the command line without "attnviz", quoted as for a shell, or None.
    called : a Python expression, or None.
    code : the exit code; for a call, the code of its exception.
    said : a part of the error line, or of the output on success.
    leaves : the files that are created or overwritten.
    within : settings from `running.scene`, or NAME=value for the environment, separated by commas.
    cold : run in a new process with fresh imports instead of a forked one.
    """

    typed: str | None
    called: str | None
    code: int = 0
    said: str = ""
    leaves: tuple[str, ...] = ()
    within: str = ""
    cold: bool = False


def typed(line, code=0, said="", *, leaves="", within="", cold=False):
    """Return a case of the command line."""
    files = tuple(leaves.split()) if isinstance(leaves, str) else leaves
    return Case(line, None, code, said, files, within, cold)


def called(expression, code=0, said=""):
    """Return a case of Python."""
    return Case(None, expression, code, said)


# Texts: empty and very long ones, and text that resembles other syntax.
_DROPPED = "the tokenizer drops control characters of the text: U+0001, U+0007,"

TEXTS = {
    "empty target": typed("heatmap train --target ' ' -m t5", 2, "target is empty. Type"),
    "nothing typed": typed("heatmap -m tiny", 2, "There is nothing to read"),
    "nothing given": called("attnviz.attend(model='tiny')", 2, "give a text, an image or a sound"),
    "an empty list": called("attnviz.attend([], model='tiny')", 2, "The list has no text"),
    "a text and a file": typed("heatmap train --file words.txt", 2, "exclude each other"),
    "only a zero-width space": typed("heatmap '\u200b' -m tiny", 2, "at least one word"),
    "100,000 tokens": typed("heatmap --file 100000.txt -m tiny", 2, "--truncate"),
    "102 tokens, cut and streamed": typed(
        f"heatmap '{'train ' * 100}' -m tiny --truncate --mode streamed -o x.json",
        said="attnviz: Note: text cut from 102 to 64 tokens.",
        leaves="x.json",
    ),
    "a word of 10,000 letters": typed(
        f"heatmap '{'a' * 10_000} train' -m tiny -o x.svg", leaves="x.svg"
    ),
    "an 'İ', which is longer in small letters": typed("verify 'İ train ẞ ﬁ' -m tiny"),
    "NUL in a file": typed("verify --file nul.txt -m tiny", said="drops control characters"),
    "control characters": typed("verify 'the\x07train \x01 \x7f' -m tiny", said=_DROPPED),
    "lone surrogates": typed(
        "heatmap 'train \udcff' -m tiny", 2, r"valid Unicode: remove '\udcff' at character 6"
    ),
    "right to left": typed("heatmap 'הרכבת עזבה את the train' -m tiny -o x.svg", leaves="x.svg"),
    "marks of direction": typed(
        "heatmap 'the \u202etrain\u202c \u2066left\u2069 \ufeff' -m tiny -o x.svg", leaves="x.svg"
    ),
    "combining marks without end": typed(
        "heatmap 'tra" + "\u0301" * 500 + "in left' -m tiny -o x.svg", leaves="x.svg"
    ),
    "emoji that are joined": typed(
        "heatmap '👩‍👩‍👧‍👦 left 🏳️‍🌈 🚂' -m tiny -o x.pdf", leaves="x.pdf"
    ),
    "characters of no plane yet": typed(
        "heatmap 'the \U000e0001 \ue000 \uffff \U0010ffff train' -m tiny -o x.svg", leaves="x.svg"
    ),
    "mathtext and format strings in svg": typed(
        r"heatmap '$\frac $5 to $6 $ %s %d {} {0.__class__} {{' -m tiny -o x.svg", leaves="x.svg"
    ),
    "markup of the terminal": typed(
        "heatmap '[bold red]a[/] [/bold] :train:' -m tiny -o x.json", leaves="x.json"
    ),
    "markup of a page": typed(
        "view '<script>alert(1)</script><img src=x onerror=y> ]]> <!--' -m tiny", leaves="view.html"
    ),
    "a formula of a spreadsheet": typed(
        "heads '=1+1 @SUM -2' -m tiny -o x.parquet", leaves="x.parquet"
    ),
    "escapes of the terminal": typed(
        "heatmap 'the \x1b[31mtrain\x1b[0m\x07 \x9b2J' -m tiny -o x.json", leaves="x.json"
    ),
    "escapes in a word that is absent": typed(
        "heatmap train --find '\x1b[31mx:train' -m tiny", 2, "is not a word of the text"
    ),
    "newlines": typed("heatmap 'the\ntrain\r\nleft\u2028home' -m tiny -o x.svg", leaves="x.svg"),
    "a byte order mark": typed("verify --file bom.txt -m tiny"),
    "standard input": typed(
        "verify --file - -m tiny --truncate",
        said="text cut from 102 to 64 tokens",
        within="yes on stdin",
    ),
    "a text that the locale cannot read": typed(
        "heatmap Müller -m tiny",
        2,
        "Set another one: LC_ALL=C.UTF-8",
        within="LC_ALL=C, PYTHONUTF8=0, PYTHONCOERCECLOCALE=0",
        cold=True,
    ),
    "no text at all": typed("heatmap --file binary.txt", 2, "binary.txt is not UTF-8 text"),
    "a folder as a file": typed("heatmap --file folder.txt", 2, "it is a folder"),
    "a device as a file": typed("heatmap --file /dev/zero", 2, "it is not a plain file"),
    "a file of 64 MB": typed("heatmap --file huge.txt", 2, "more than 67,108,864 bytes"),
    "typed [SEP]": typed("heatmap 'the [SEP] train [CLS]' -m tiny -o x.json", leaves="x.json"),
    "typed [MASK]": typed(
        "heatmap '[MASK] left' -m tiny --find '[MASK]:left' -o x.json", leaves="x.json"
    ),
    "bytes": called("attnviz.attend(b'the train', model='tiny')", 2, "not bytes"),
    "an empty text in a list": called(
        "attnviz.attend(['a', ''], model='tiny')", 2, "Text 2 of 2 is empty. Type"
    ),
    "an empty text among many": called(
        "attnviz.attend(['a'] * 1_000 + [' '], model='tiny')", 2, "Text 1,001 of 1,001 is empty."
    ),
    "an empty pair in a list": called(
        "attnviz.attend(['a', 'b'], pair=['', 'b'], model='tiny')", 2, "Pair 1 of 2 is empty."
    ),
    "a long text in a list": called(
        "attnviz.attend(['a', 'train ' * 70], model='tiny')", 2, "In text 2 of 2: The text has 72"
    ),
    "lists of two lengths": called(
        "attnviz.attend(['a', 'b'], pair=['a'], model='tiny')", 2, "2 texts but 1 pair"
    ),
}

# Selections: layers, heads, words, regions and widths that do not exist or are invalid.
_RESULT_OF_FOUR = "attnviz.attend('the train left the station', model='tiny')"
_THE = "'the train left the station' -m tiny"

SELECTIONS = {
    "heads in a range": typed(f"heatmap {_THE} --head 0-3", 2, "'0-3' is not a whole number"),
    "one head twice": typed(
        f"heatmap {_THE} --layer 0 --head 1 --head 1 -o x.json", leaves="x.json"
    ),
    "the#²": typed(f"heatmap {_THE} --find 'the#²:train'", 2, "the#²"),
    "the# and 5,000 digits": typed(
        f"heatmap {_THE} --find 'the#{'9' * 5000}:train'", 2, "'the#999"
    ),
    "word in pieces": typed(
        "heatmap 'the trains left' -m tiny --find trains:left -o x.json", leaves="x.json"
    ),
    "piece of a word": typed("heatmap 'the trains left' -m tiny --find '##s:left'", 2, "##s"),
    "word of many letters": typed(
        f"heatmap {_THE} --find {'x' * 10_000}:train", 2, "is not a word of the text"
    ),
    "rows past the end": typed(f"heatmap {_THE} --rows 90:99", 2, "Rows 90:99 are not part"),
    "rows that end past the end": typed(f"heatmap {_THE} --rows 1:99", 2, "START:STOP from 0 to 7"),
    "rows of other digits": typed(f"heatmap {_THE} --rows ٠:٣ -o x.json", leaves="x.json"),
    "rows beyond any number": typed(f"heatmap {_THE} --rows 0:{'9' * 5000}", 2, "rows"),
    "columns of a step": called(
        f"attnviz.plot.heatmap({_RESULT_OF_FOUR}, columns=slice(0, 4, 2))", 2, "Columns 0:4"
    ),
    "layer of a stack": typed(
        "heatmap train --target left -m t5 --stack cross --layer 1", 2, "layer 1 is out of range"
    ),
    "special tokens hidden, none left": typed(
        "heatmap train -m tiny --special remove -o x.json", leaves="x.json"
    ),
    "no target": typed("heatmap train -m t5", 2, "--target"),
    "generate and a target": typed(
        "verify a --target b --generate 2 -m t5", 2, "exclude each other"
    ),
    "two results in a list": called(
        "attnviz.plot.heatmap(attnviz.attend(['a', 'b'], model='tiny'))",
        2,
        "A list of 2 is not one result",
    ),
}


# Models: missing, damaged, inconsistent, unsupported, or without attention.
def _refused(name: str, said: str, **how: Any) -> dict:
    return {name: typed(f"heatmap 'the train' -m {name}", 3, said, **how)}


PRETRAINED = {
    "no such name": typed("heatmap train -m no/such-model", 3, "'no/such-model'"),
    "a name with an escape": typed("heatmap train -m 'a/\x1b[31mb'", 3, "a/"),
    "a name that is no Unicode": typed("heatmap train -m './\udcff'", 3, "folder"),
    "a web address": typed("heatmap train -m https://example.org/model", 3, "https://example.org"),
    "a name in other scripts": typed("heatmap train -m ./zug-ü-列車 -o x.svg", leaves="x.svg"),
    **_refused("a-file", "'a-file' is a file"),
    **_refused("a-broken-link", "a-broken-link"),
    **_refused("without-config", "config.json"),
    **_refused("without-weights", "model.safetensors"),
    **_refused("truncated", "cannot load the model (SafetensorError"),
    **_refused("huge-header", "cannot load the model (SafetensorError"),
    **_refused("git-lfs", "git lfs pull"),
    **_refused("no-tensors", "missing"),
    **_refused("missing-tensor", "encoder.layer.1.attention.self.query.weight is missing"),
    **_refused("config-no-json", "config.json"),
    **_refused("not-to-be-listed", "not-to-be-listed", within="no root"),
    **_refused("not-to-be-entered", "change its permissions", within="no root"),
    **_refused("unreadable-weights", "PermissionError", within="no root"),
    **_refused("wants-a-package", "Install what is missing"),
    **_refused("config-nested", "config.json"),
    **_refused("no-type", "model_type"),
    **_refused("unknown-type", "'nonesuch'"),
    **_refused("type-with-escape", "model_type"),
    **_refused("heads-do-not-divide", "heads (3)"),
    **_refused("no-heads", "no-heads: "),
    **_refused("lies-about-width", "by the config"),
    **_refused("no-width", "no-width: "),
    **_refused("negative-width", "negative dimension -16"),
    **_refused("more-layers", "encoder.layer.2"),
    **_refused("fewer-layers", "the config has no layer for"),
    **_refused("layers-a-word", "config.json"),
    **_refused("fewer-words", "by the config"),
    **_refused("other-family", "Use the config.json that was saved"),
    **_refused("other-activation", "nonesuch"),
    **_refused("own-code", "remote code"),
    **_refused("without-tokenizer", "tokenizer"),
    **_refused("tokenizer-no-json", "tokenizer"),
    **_refused("larger-tokenizer", "tokenizer"),
    **_refused("fnet", "attention"),
    "an image model without processor": typed(
        "heatmap --image photo.png -m vit-without-processor", 3, "no processor that reads image"
    ),
    "images without attention": typed("heatmap --image photo.png -m resnet", 3, "attention"),
    "the root of the disk": typed(
        "heatmap train -m /", 3, "/: config.json cannot be read: no such file"
    ),
    "at most -3 tokens": typed("verify train -m at-most-minus-3-tokens"),
    "remote code, yes typed": typed(
        "verify train -m own-code", 3, "remote code", within="yes on stdin"
    ),
    "attention code of a hub": typed("verify train -m eager-elsewhere"),
    "another number of heads": typed("verify train -m lies-about-heads"),
    "a shift of an encoder-decoder": typed("shift train 'the train left' -m t5", 3, "one text"),
}

# Numbers: NaN, infinities, fully masked rows, and overflow.
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

# Output files: unwritable locations and existing files.
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
    "a folder": typed(f"{_TRAIN} afolder", 4, "it is a folder"),
    "a read-only folder": typed(f"{_TRAIN} locked/x.png", 4, "read-only", within="no root"),
    "a folder of the system": typed(f"{_TRAIN} /proc/x.json", 4, "/proc"),
    "a device": typed(f"{_TRAIN} /dev/null", 4, "it is not a plain file"),
    "a link to a device": typed(f"{_TRAIN} null.png", 4, "it is not a plain file"),
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

# Streams, locales, terminals, signals, and compute devices.
_TRAIN_SURROUNDINGS = "heatmap 'the train left' -m tiny -o x.json"
_LONG = f"verify '{'train ' * 400}' --json"

STREAMS = {
    "nobody reads JSON": typed("verify train -m tiny --json", within="stdout not read"),
    "nobody reads the help": typed("--help", within="stdout not read", cold=True),
    "nobody reads the error": typed("heatmap ''", 2, within="stderr not read"),
    "a full standard output": typed(
        "--help", 4, "Standard output cannot be written", within="stdout full", cold=True
    ),
    "a full standard output after the run": typed(
        "verify train -m tiny", 4, "Standard output cannot be written", within="stdout full"
    ),
    "closed standard output": typed(_TRAIN_SURROUNDINGS, leaves="x.json", within="stdout closed"),
    "closed standard error": typed(_TRAIN_SURROUNDINGS, leaves="x.json", within="stderr closed"),
    "closed standard error, and an error": typed(
        "heatmap ''", 2, within="stderr closed", cold=True
    ),
    "all closed": typed(
        _TRAIN_SURROUNDINGS, leaves="x.json", within="stdin closed, stdout closed, stderr closed"
    ),
    "a terminal": typed(_TRAIN_SURROUNDINGS, said="the", leaves="x.json", within="a terminal"),
    "a terminal of 1 column": typed(
        _TRAIN_SURROUNDINGS, leaves="x.json", within="a terminal, COLUMNS=1"
    ),
    "columns that are no number": typed("models bert", within="COLUMNS=wide"),
    "an example in 20 columns": typed("example phones", within="a terminal, COLUMNS=20"),
    "an error in the locale C": typed(
        "heatmap train --file 'zug-ü.txt'",
        2,
        "exclude each other",
        within="LC_ALL=C, PYTHONUTF8=0, PYTHONCOERCECLOCALE=0",
        cold=True,
    ),
    "ASCII": typed("models bert", within="PYTHONIOENCODING=ascii", cold=True),
    "a malformed date": typed(
        "heatmap 'the train' -m tiny -o x.pdf", leaves="x.pdf", within="SOURCE_DATE_EPOCH=abc"
    ),
    "the locale C, no home, no backend, and a file": typed(
        "example cat -o x.svg",
        leaves="x.svg",
        cold=True,
        within="LC_ALL=C, PYTHONUTF8=0, PYTHONCOERCECLOCALE=0, HOME=/proc, MPLBACKEND=nonesuch",
    ),
    "warnings as errors": typed("models bert", within="PYTHONWARNINGS=error", cold=True),
    "optimised away": typed(
        "heatmap '' ", 2, "at least one word", within="PYTHONOPTIMIZE=2", cold=True
    ),
    "SIGINT as it runs": typed(_LONG, 130, within="SIGINT as it runs"),
    "SIGINT during the imports": typed(
        "heatmap 'the train'", 130, within="SIGINT while importing", cold=True
    ),
    "SIGINT while writing": typed(
        "heads 'the train left the station' -m tiny -o old.png",
        130,
        within="SIGINT while writing",
    ),
}

DEVICES = {
    "CUDA that is not there": typed(
        "verify train -m tiny --device cuda", 2, "PyTorch finds 0", within="CUDA_VISIBLE_DEVICES="
    ),
    "a tenth CUDA device": typed("verify train -m tiny --device cuda:9", 2, "of the kind 'cuda'"),
    "an unknown device": typed(
        "verify train -m tiny --device tpu", 2, "'auto', 'cpu', 'cuda' or 'cuda:N'"
    ),
    "a device that is a number": called(
        "attnviz.load('tiny', device=0.5)", 2, "0.5 is not a device"
    ),
    "the device meta": called("attnviz.load('tiny', device='meta')", 2, "'meta' is not a device"),
    "a device below 0": called("attnviz.load('tiny', device='cuda:-1')", 2, "'cuda:-1'"),
}

SEVERAL = {
    "4 at once, each its own file": typed(
        "heatmap 'the train left' -m tiny -o x{n}.json",
        leaves=" ".join(f"x{n}.json" for n in range(4)),
        within="4 at once",
    ),
    "4 at once, one file": typed(
        "heatmap 'the train left' -m tiny -o x.json --force", leaves="x.json", within="4 at once"
    ),
    "8 at once that fail": typed(
        "heatmap 'the train' -m truncated -o x.png",
        3,
        "incomplete metadata, file not fully covered",
        within="8 at once",
    ),
    "2 at once, cold": typed(
        "heatmap 'the train' -m tiny -o none/x.png",
        4,
        "does not exist",
        within="2 at once",
        cold=True,
    ),
}

# Images and audio: invalid, tiny, huge, damaged or unusual files.
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

# Options of the individual commands, and their errors.
_SERVE = "serve -m tiny --port"

COMMANDS = {
    "an unknown command": typed("heatmpa train", 2, "No such command 'heatmpa'"),
    "an argument of 100,000 letters": typed(
        f"heatmap train --{'x' * 100_000}", 2, "No such option"
    ),
    "the version": typed("--version", said="attnviz "),
    "steps of one token": typed("steps train -m tiny -o x.svg", leaves="x.svg"),
    "a page": typed("view 'the train left' -m tiny", leaves="view.html"),
    "a page of two texts": typed(
        "view 'the train' --compare 'a station' -m tiny", leaves="view.html"
    ),
    "a page of texts without a common word": typed(
        "view 'the train' --compare 'a ship left' -m tiny", 2, "share no word"
    ),
    "senses of a file": typed(
        "senses train --sense a=sentences.txt --sense b='a train' --sense b='mud of the train' "
        "-m tiny -o x.json",
        leaves="x.json",
    ),
    "senses of an unknown word": typed("senses xyzzy", 2, "no bundled sentences"),
    "senses without the word": typed(
        "senses bank --sense a='the river' --sense b='a bank'", 2, "is not in 'the river'"
    ),
    "senses without a name": typed("senses bank --sentences '=the bank'", 2, "NAME=SENTENCE"),
    "senses of a missing file": typed("senses bank --sense a=no.txt", 2, "no.txt"),
    "senses of a long sentence of wide letters": typed(
        f"senses bank --sense a='bank {'ы' * 150}' --sense b='a bank'",
        2,
        "tells fewer than two sentences of",
    ),
    "senses of a file in a sealed folder": typed(
        "senses bank --sense a=sealed/x.txt", 2, "Permission denied", within="no root"
    ),
    "an image in a sealed folder": typed(
        "heatmap --image sealed/x.png", 2, "Permission denied", within="no root"
    ),
    "senses with one sentence in both": typed(
        "senses bank --sense a='the bank' --sense b='the bank'",
        2,
        "reads the same tokens in 'the bank'",
    ),
    "shift of half a pair": typed(
        "shift bank 'the bank of {mud|cash' -m tiny -o x.json", leaves="x.json"
    ),
    "shift of an empty pair": typed(
        "shift bank 'the bank of {|}' -m tiny", 2, "does not have two sides"
    ),
    "shift of one word": typed("shift train train -m tiny -o x.json", leaves="x.json"),
    "shift to another length": typed(
        "shift train 'the train left' --reference 'the train' -m tiny", 2, "but the text has"
    ),
    "shift to itself": typed(
        "shift train 'the train' --reference 'the train' -m tiny", 2, "is the same as the text"
    ),
    "shift toward one region": typed(
        "shift train 'the train' --toward a=mud -m tiny", 2, "two regions"
    ),
    "shift toward one place": typed(
        "shift train 'the train' --toward a=mud --toward b=mud -m tiny", 2, "are one point"
    ),
    "shift, causally": typed(
        "shift train 'the train left' --verify-causally -m tiny -o x.json", leaves="x.json"
    ),
    "shift by a model that masks nothing": typed(
        "shift train 'the train left' -m llama -o x.json", leaves="x.json"
    ),
    "an example of one's own": typed("example --file own.json -o x.svg", leaves="x.svg"),
    "serve without starlette": typed(
        f"{_SERVE} 0", 2, "pip install 'attnviz[serve]'", within="without starlette"
    ),
    "serve at a port in use": typed(
        f"{_SERVE} {{taken}}", 2, "Address already in use", within="a port in use"
    ),
    "serve at a port of the system": typed(f"{_SERVE} 1", 2, "Permission denied", within="no root"),
    "serve no such model": typed("serve -m ./nowhere --port 0", 3, "./nowhere"),
    "serve one model twice": typed(f"{_SERVE} 0 -m ./tiny", 2, "names tiny twice"),
    "serve a model of images": typed("serve -m vit --port 0", 3, "one text"),
    "serve without time": typed(f"{_SERVE} 0 --time-limit nan", 2, "time"),
    "serve until SIGTERM": typed(f"{_SERVE} 0", 143, within="SIGTERM as it runs"),
}

GROUPS = {
    "text": TEXTS,
    "selections": SELECTIONS,
    "models": PRETRAINED,
    "numbers": NUMERIC,
    "files": PLACES,
    "streams": STREAMS,
    "devices": DEVICES,
    "images and sounds": MEDIA,
    "commands": COMMANDS,
    "several at once": SEVERAL,
}
