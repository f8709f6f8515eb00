"""Selections: layers, heads, words, regions and widths that do not exist or are invalid."""

from robustness.catalogue.case import called, typed

_RESULT = "attnviz.attend('the train left the station', model='tiny')"
_THE = "'the train left the station' -m tiny"

SELECTIONS = {
    "heads in a range": typed(f"heatmap {_THE} --head 0-3", 2, "'0-3' is not a whole number"),
    "axes that are a number": called(
        f"attnviz.plot.heatmap({_RESULT}, ax=5)", 2, "ax must be axes of matplotlib, not 5"
    ),
    "a figure that is None": called(
        "attnviz.plot.save(None, 'x.png')", 2, "figure must be a figure of matplotlib"
    ),
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
        f"attnviz.plot.heatmap({_RESULT}, columns=slice(0, 4, 2))", 2, "Columns 0:4"
    ),
    "layer of a stack": typed(
        "heatmap train --target left -m t5 --stack cross --layer 1", 2, "layer 1 is out of range"
    ),
    "special tokens hidden, none left": typed(
        "heatmap train -m tiny --special remove -o x.json", leaves="x.json"
    ),
    "generate and a target": typed(
        "verify a --target b --generate 2 -m t5", 2, "exclude each other"
    ),
    "two results in a list": called(
        "attnviz.plot.heatmap(attnviz.attend(['a', 'b'], model='tiny'))",
        2,
        "A list of 2 is not one result",
    ),
    "no result": called("attnviz.plot.heatmap('the train')", 2, "str is not a result of attend"),
}
