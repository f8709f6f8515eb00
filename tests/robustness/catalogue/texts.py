"""Texts: empty and very long ones, and text that resembles other syntax."""

from robustness.catalogue.case import called, typed

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
