"""Streams, locales, terminals, signals, and compute devices."""

from robustness.catalogue.case import called, typed

_TRAIN = "heatmap 'the train left' -m tiny -o x.json"
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
    "closed standard output": typed(_TRAIN, leaves="x.json", within="stdout closed"),
    "closed standard error": typed(_TRAIN, leaves="x.json", within="stderr closed"),
    "closed standard error, and an error": typed(
        "heatmap ''", 2, within="stderr closed", cold=True
    ),
    "all closed": typed(
        _TRAIN, leaves="x.json", within="stdin closed, stdout closed, stderr closed"
    ),
    "a terminal": typed(_TRAIN, said="the", leaves="x.json", within="a terminal"),
    "a terminal of 1 column": typed(_TRAIN, leaves="x.json", within="a terminal, COLUMNS=1"),
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
