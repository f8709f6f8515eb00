"""Options of the individual commands, and their errors."""

from robustness.catalogue.case import called, typed

_SERVE = "serve -m tiny --port"

COMMANDS = {
    "an unknown command": typed("heatmpa train", 2, "No such command 'heatmpa'"),
    "an unknown option": typed("heatmap train --hed 3", 2, "No such option"),
    "two texts": typed("heatmap the train", 2, "unexpected extra argument"),
    "an option of another command": typed("verify train --width 89", 2, "No such option"),
    "an argument of 100,000 letters": typed(
        f"heatmap train --{'x' * 100_000}", 2, "No such option"
    ),
    "an option with escapes": typed("heatmap train --'\x1b[31mred'", 2, "No such option"),
    "the version": typed("--version", said="attnviz "),
    "heads": typed("heads 'the train left' -m tiny", leaves="heads.png"),
    "steps of one token": typed("steps train -m tiny -o x.svg", leaves="x.svg"),
    "a page": typed("view 'the train left' -m tiny", leaves="view.html"),
    "a page of two texts": typed(
        "view 'the train' --compare 'a station' -m tiny", leaves="view.html"
    ),
    "a page of two lengths": typed(
        "view 'the train' --compare 'the train left' -m tiny", leaves="view.html"
    ),
    "a page of texts without a common word": typed(
        "view 'the train' --compare 'a ship left' -m tiny", 2, "share no word"
    ),
    "a page of one text and none": typed(
        "view 'the train' --compare '' -m tiny", 2, "at least one word"
    ),
    "a page that compares nothing": typed(
        "view --compare train --image photo.png -m vit", 2, "needs a text to compare with"
    ),
    "a page that shows what is not": typed("view train --show all", 2, "'grid', 'head'"),
    "a page of no such view": called(
        "attnviz.view(attnviz.attend('a', model='tiny'), show='all')", 2, "grid, head"
    ),
    "verify": typed("verify 'the train left' -m tiny"),
    "senses of a file": typed(
        "senses train --sense a=sentences.txt --sense b='a train' --sense b='mud of the train' "
        "-m tiny -o x.json",
        leaves="x.json",
    ),
    "senses of no word": typed("senses ''", 2, "The word is empty"),
    "senses of an unknown word": typed("senses xyzzy", 2, "no bundled sentences"),
    "senses of one sense": typed("senses bank --sense a='the bank'", 2, "two senses"),
    "senses of one sentence each": typed(
        "senses bank --sense a='the bank' --sense b='a bank'", 2, "fewer than two different"
    ),
    "senses without the word": typed(
        "senses bank --sense a='the river' --sense b='a bank'", 2, "is not in 'the river'"
    ),
    "senses without a name": typed("senses bank --sentences '=the bank'", 2, "NAME=SENTENCE"),
    "senses without a sentence": typed("senses bank --sense a=", 2, "NAME=SENTENCE"),
    "senses of a missing file": typed("senses bank --sense a=no.txt", 2, "no.txt"),
    "senses of a folder": typed("senses bank --sense a=folder.txt", 2, "folder.txt"),
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
    "an image that is not there": typed("heatmap --image no.png", 2, "check the path"),
    "senses of an empty file": typed("senses bank --sense a=empty.txt --sense b=b", 2, "empty.txt"),
    "senses with one sentence in both": typed(
        "senses bank --sense a='the bank' --sense b='the bank'", 2, "is listed under 'a' and 'b'"
    ),
    "senses of a number": called("attnviz.senses(3)", 2, "word must be a string, not 3"),
    "shift": typed("shift train 'the train left' -m tiny", leaves="shift.png"),
    "shift as JSON": typed("shift train 'the train left' -m tiny --json"),
    "shift of an absent word": typed(
        "shift bank 'the train left' -m tiny", 2, "'bank' is not a word"
    ),
    "shift of an empty text": typed("shift bank '' -m tiny", 2, "at least one word"),
    "shift of an empty word": typed("shift '' 'the train' -m tiny", 2, "The word is empty"),
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
    "an example": typed("example likes -o x.png", leaves="x.png"),
    "an example as JSON": typed("example likes --json"),
    "an example of one's own": typed("example --file own.json -o x.svg", leaves="x.svg"),
    "an unknown example": typed("example phone", 2, "Did you mean phones"),
    "no example": typed("example", 2, "Name one example (cat, likes, phones), or one file."),
    "two examples": typed(
        "example cat --file own.json", 2, "Name one example (cat, likes, phones), or one file."
    ),
    "an example that does not fit": typed("example --file misfit.json", 2, "W_v"),
    "an example that is broken": typed("example --file broken.json", 2, "broken.json"),
    "an example that is a list": typed("example --file list.json", 2, "is not a JSON object"),
    "an example that is deep": typed(
        "example --file deep.json", 2, "is not a worked example in JSON"
    ),
    "an example that is nowhere": typed("example --file no.json", 2, "no.json"),
    "models": typed("models bert", said="agree"),
    "models as JSON": typed("models bert --json"),
    "models of an unknown name": typed("models nonesuch", 2, "no model 'nonesuch'"),
    "models of an unknown state": typed("models --state fine", 2, "'agrees'"),
    "models of no name": typed("models ''", said="agree"),
    "serve without starlette": typed(
        f"{_SERVE} 0", 2, "pip install 'attnviz[serve]'", within="without starlette"
    ),
    "a table without pyarrow": typed(
        "heatmap train -m tiny -o x.parquet", 2, "attnviz[parquet]", within="without pyarrow"
    ),
    "a widget without anywidget": called(
        "attnviz.view(attnviz.attend('a', model='tiny')).widget()",
        2,
        "attnviz[widget]",
        within="without anywidget",
    ),
    "serve at no port": typed("serve --port 70000", 2, "'--port'"),
    "serve at a port in use": typed(
        f"{_SERVE} {{taken}}", 2, "Address already in use", within="a port in use"
    ),
    "serve at a port of the system": typed(f"{_SERVE} 1", 2, "Permission denied", within="no root"),
    "serve elsewhere": typed(f"{_SERVE} 0 --host 203.0.113.7", 2, "203.0.113.7"),
    "serve at no host": typed(f"{_SERVE} 0 --host 'no host'", 2, "no host"),
    "serve at a host of 300 letters": typed(f"{_SERVE} 0 --host {'h' * 300}", 2, "hhh"),
    "serve no such model": typed("serve -m ./nowhere --port 0", 3, "./nowhere"),
    "serve one model twice": typed(f"{_SERVE} 0 -m ./tiny", 2, "names tiny twice"),
    "serve a model of images": typed("serve -m vit --port 0", 3, "one text"),
    "serve no tokens": typed(f"{_SERVE} 0 --max-tokens 0", 2, "'--max-tokens'"),
    "serve without time": typed(f"{_SERVE} 0 --time-limit nan", 2, "time"),
    "serve until SIGTERM": typed(f"{_SERVE} 0", 143, within="SIGTERM as it runs"),
}
