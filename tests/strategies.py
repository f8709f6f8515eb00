"""Hypothesis strategies for unexpected inputs, and the number of examples of a property."""

from hypothesis import settings
from hypothesis import strategies as st

from attnviz.errors import InputError

AWKWARD = [
    *" \t\n\r\0\x07\x1b\x7f\x85\xa0\xad\u200b\u200d\u200e\u200f\u2028\u2029",
    *"\u202e\u2066\u3000\ufeff",
    *"#'’\"<>&$%\\{}|=:;,/.-_`~^*+()[]@!?",
    "the", "The", "THE", "bank", "banks", "don't", "naïve", "straße", "STRASSE", "İ", "ﬁne",
    "cafe\u0301s", "\u0301", "e\u0301\u0327\u0304", "שלום", "مرحبا", "漢字",
    "テスト", "ไทย", "नमस्ते",
    "👩‍👩‍👧", "🇩🇪", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "\U0010ffff", "\ue000", "\u0378",
    "a" * 200, "0", "12", "٣", "²", "1e9",
    "the#2", "#1", "##ing", "{a|b}", "{|}", "{a|b|c}", "NAME=", "0:20", "-1", "--json",
    "$\\frac{a}{b}$",
    "%s", "{0}", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "<s>", "</s>", "<|endoftext|>", "▁", "Ġ",
    "</script>", "</SCRIPT >", "<!--", "-->", "<script>", "]]>", "<![CDATA[", "</title>",
    "</style>",
    "&amp;", "&#60;", "&lt", "&notin;", '" onload="', "' x='", "\\u003c", "\\", "null", "NaN",
]  # fmt: skip

# Text as read from a file or a terminal: every script and plane, and strings that are often
# mistaken for something else.
texts = st.lists(
    st.one_of(st.sampled_from(AWKWARD), st.text(max_size=6), st.just(" ")), max_size=7
).map("".join)
# The same with lone surrogates, which file names may contain.
strings = st.one_of(texts, st.text(st.characters(), max_size=12)).map(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
)


def slower(times):
    """Return settings for a property that takes `times` as long per example as a cheap one."""
    return settings(max_examples=max(2, int(settings().max_examples / times)))


REFUSED = object()


def value_or_refused(read, *arguments, **options):
    """Return the value, or REFUSED if reading raised an error of attnviz."""
    try:
        return read(*arguments, **options)
    except InputError as error:
        message = str(error)
        assert message.startswith("Expected ") or message.endswith((".", "?"))
        assert len(message) < 2000
        return REFUSED
