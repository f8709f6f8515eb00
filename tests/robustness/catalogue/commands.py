"""Options of the individual commands, and their errors."""

from robustness.catalogue.case import typed

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
        "fewer than two different",
    ),
    "senses of a file in a sealed folder": typed(
        "senses bank --sense a=sealed/x.txt", 2, "Permission denied", within="no root"
    ),
    "an image in a sealed folder": typed(
        "heatmap --image sealed/x.png", 2, "Permission denied", within="no root"
    ),
    "senses with one sentence in both": typed(
        "senses bank --sense a='the bank' --sense b='the bank'", 2, "is listed under 'a' and 'b'"
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
    "serve elsewhere": typed(f"{_SERVE} 0 --host 203.0.113.7", 2, "203.0.113.7"),
    "serve at no host": typed(f"{_SERVE} 0 --host 'no host'", 2, "no host"),
    "serve no such model": typed("serve -m ./nowhere --port 0", 3, "./nowhere"),
    "serve one model twice": typed(f"{_SERVE} 0 -m ./tiny", 2, "names tiny twice"),
    "serve a model of images": typed("serve -m vit --port 0", 3, "one text"),
    "serve without time": typed(f"{_SERVE} 0 --time-limit nan", 2, "time"),
    "serve until SIGTERM": typed(f"{_SERVE} 0", 143, within="SIGTERM as it runs"),
}
