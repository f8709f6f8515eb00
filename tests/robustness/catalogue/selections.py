"""Selections: layers, heads, words, regions and widths that do not exist or are invalid."""

from robustness.catalogue.case import called, typed

_RESULT = "attnviz.attend('the train left the station', model='tiny')"
_THE = "'the train left the station' -m tiny"

SELECTIONS = {
    "layer past the last": typed(f"heatmap {_THE} --layer 2", 2, "layer 2 is out of range"),
    "layer below 0": typed(f"heatmap {_THE} --layer -1", 2, "layer -1 is out"),
    "layer of steps": typed(f"steps {_THE} --layer 2", 2, "layer 2 is out of range"),
    "layer of a page": typed(f"view {_THE} --layer 7", 2, "layer 7 is out of range"),
    "layer beyond any number": typed(f"heatmap {_THE} --layer {10**30}", 2, "is out of range"),
    "layer a word": typed(f"heatmap {_THE} --layer two", 2, "'--layer'"),
    "layers in a list": typed(f"heatmap {_THE} --layer 0,1", 2, "'0,1' is not a whole number"),
    "heads in a range": typed(f"heatmap {_THE} --head 0-3", 2, "'0-3' is not a whole number"),
    "a head in a range": typed(f"view {_THE} --head 0-3", 2, "'0-3' is not a whole number"),
    "width a word": typed(f"heatmap {_THE} --width wide", 2, "a valid number, not 'wide'"),
    "axes that are a number": called(
        f"attnviz.plot.heatmap({_RESULT}, ax=5)", 2, "ax must be axes of matplotlib, not 5"
    ),
    "a figure that is None": called(
        "attnviz.plot.save(None, 'x.png')", 2, "figure must be a figure of matplotlib"
    ),
    "layer without a number": typed(f"heatmap {_THE} --layer", 2, "requires an argument"),
    "layer a word, called": called(
        f"attnviz.plot.heatmap({_RESULT}, layer='two')", 2, "a whole number"
    ),
    "layer True": called(
        f"attnviz.attention_map({_RESULT}, layer=True, head=0)", 2, "whole number"
    ),
    "layer of weights": called(
        f"{_RESULT}.weights(layer=-1, head=0)", 2, "layer -1 is out of range"
    ),
    "head past the last": typed(f"heatmap {_THE} --layer 0 --head 2", 2, "head 2 is out of range"),
    "one head twice": typed(
        f"heatmap {_THE} --layer 0 --head 1 --head 1 -o x.json", leaves="x.json"
    ),
    "no heads": called(f"attnviz.plot.heatmap({_RESULT}, layer=0, head=[])", 2, "head"),
    "head of steps": typed(f"steps {_THE} --layer 0 --head 5", 2, "head 5 is out of range"),
    "two heads of steps": called(f"attnviz.steps({_RESULT}, layer=0, head=[0, 1])", 2, "head"),
    "word that is absent": typed(f"heatmap {_THE} --find trian:left", 2, "Did you mean train"),
    "word that is like none": typed(f"heatmap {_THE} --find qqq:left", 2, "a word of the text"),
    "word that occurs twice": typed(f"heatmap {_THE} --find train:the", 2, "the#1 or the#2"),
    "the#0": typed(f"heatmap {_THE} --find 'the#0:train'", 2, "out of range: 'the' occurs 2 times"),
    "the#1": typed(f"heatmap {_THE} --find 'the#1:the#2' -o x.json", leaves="x.json"),
    "the#²": typed(f"heatmap {_THE} --find 'the#²:train'", 2, "the#²"),
    "the# and 5,000 digits": typed(
        f"heatmap {_THE} --find 'the#{'9' * 5000}:train'", 2, "'the#999"
    ),
    "other case": typed(f"heatmap {_THE} --find TRAIN:Left -o x.json", leaves="x.json"),
    "word in pieces": typed(
        "heatmap 'the trains left' -m tiny --find trains:left -o x.json", leaves="x.json"
    ),
    "piece of a word": typed("heatmap 'the trains left' -m tiny --find '##s:left'", 2, "##s"),
    "word to itself": typed(f"heatmap {_THE} --find train:train -o x.json", leaves="x.json"),
    "word of many letters": typed(
        f"heatmap {_THE} --find {'x' * 10_000}:train", 2, "is not a word of the text"
    ),
    "no key": typed(f"heatmap {_THE} --find train:", 2, "QUERY:KEY, not 'train:'"),
    "three words": typed(f"heatmap {_THE} --find train:left:station", 2, "left:station"),
    "steps of no word": typed(f"steps {_THE} --word absent", 2, "'absent' is not a word"),
    "steps of an empty word": typed(f"steps {_THE} --word ''", 2, "'' is not a word of"),
    "steps of a position": called(
        f"attnviz.steps({_RESULT}, word=99)", 2, "token 99 is out of range"
    ),
    "rows past the end": typed(f"heatmap {_THE} --rows 90:99", 2, "Rows 90:99 are not part"),
    "rows of none": typed(f"heatmap {_THE} --rows 2:2", 2, "Rows 2:2 are not part"),
    "rows the wrong way round": typed(f"heatmap {_THE} --rows 4:1", 2, "Rows 4:1 are not part"),
    "rows that end past the end": typed(f"heatmap {_THE} --rows 1:99", 2, "START:STOP from 0 to 7"),
    "rows of one number": typed(f"heatmap {_THE} --rows 3", 2, "START:STOP"),
    "rows of other digits": typed(f"heatmap {_THE} --rows ٠:٣ -o x.json", leaves="x.json"),
    "rows beyond any number": typed(f"heatmap {_THE} --rows 0:{'9' * 5000}", 2, "rows"),
    "all rows": typed(f"heatmap {_THE} --rows : -o x.json", leaves="x.json"),
    "columns of a step": called(
        f"attnviz.plot.heatmap({_RESULT}, columns=slice(0, 4, 2))", 2, "Columns 0:4"
    ),
    "stack that is not there": typed(
        f"heatmap {_THE} --stack vision", 2, "'vision' is not a stack"
    ),
    "layer of a stack": typed(
        "heatmap train --target left -m t5 --stack cross --layer 1", 2, "layer 1 is out of range"
    ),
    "patch of a text": typed(f"heatmap {_THE} --patch 1,2", 2, "The patch (1, 2) cannot be used"),
    "special tokens hidden, none left": typed(
        "heatmap train -m tiny --special remove -o x.json", leaves="x.json"
    ),
    "special of no kind": typed(f"heatmap {_THE} --special drop", 2, "'keep', 'hide'"),
    "width nan": typed(f"heatmap {_THE} --width nan", 2, "40"),
    "width too small, called": called(f"attnviz.plot.heatmap({_RESULT}, width=3)", 2, "40"),
    "width too large": typed(f"heatmap {_THE} --width 1e9", 2, "40"),
    "generate 0": typed("heatmap train -m gpt --generate 0", 2, "must be 1 or more"),
    "generate 0, called": called(
        "attnviz.attend('a', model='gpt', generate=0)", 2, "must be 1 or more"
    ),
    "generate beyond": typed(
        "heatmap train -m gpt --generate 900", 2, "it can generate at most 62"
    ),
    "generate and a target": typed(
        "verify a --target b --generate 2 -m t5", 2, "exclude each other"
    ),
    "mode of no kind": typed(f"heatmap {_THE} --mode fast", 2, "'auto', 'full', 'streamed'"),
    "mode of no kind, called": called(
        "attnviz.attend('a', model='tiny', mode='x')", 2, "auto, full"
    ),
    "two results in a list": called(
        "attnviz.plot.heatmap(attnviz.attend(['a', 'b'], model='tiny'))",
        2,
        "A list of 2 is not one result",
    ),
    "no result": called("attnviz.plot.heatmap('the train')", 2, "str is not a result of attend"),
    "layers that exact has not": called(
        "attnviz.attend('a', model='tiny', mode='streamed', layers=[0], exact=[1])", 2, "exact"
    ),
}
