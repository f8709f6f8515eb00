"""Words that the model read as [UNK]: labels say so, and no sentence makes a claim about them."""

import io
import json

import pytest
from rich.console import Console

import attnviz

INK, MUTED, GRAY = "#1a1a1a", "#5c5c5c", "#8f8f8f"
TEXTS = {"火车准时离开了车站": "车准时离开了站", "I love 🍕 and 🐈, but not 🚗!": "🍕🐈🚗"}
pytestmark = pytest.mark.filterwarnings("ignore:No installed font")
DRAWN = {
    "heatmap": attnviz.plot.heatmap,
    "heatmap of pieces": lambda result: attnviz.plot.heatmap(result, words=False),
    "heads": lambda result: attnviz.plot.heads(result, layer=2, width=400),
    "steps": attnviz.plot.steps,
    "attention vector": attnviz.plot.attention_vector,
}


@pytest.fixture(scope="module", params=TEXTS)
def read(request, model):
    """Return the attention of a text, and the words of which the model read [UNK]."""
    return model.attend(request.param), set(TEXTS[request.param])


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_figures_show_what_was_not_read(draw, read):
    result, words = read
    drawn = draw(result)
    figure = getattr(drawn, "figure", drawn)
    title, *others = [text.get_text() for text in figure.texts if text.get_text()]
    assert not any(word in title for word in (*words, "UNK"))
    assert f"it read [UNK] for them: {result.agreement.input.unknown[0]}" in " ".join(others)
    labels = [
        label for ax in figure.axes for label in (*ax.get_yticklabels(), *ax.get_xticklabels())
    ]
    unread = [label for label in labels if "UNK" in label.get_text()]
    assert {label.get_text() for label in unread} == {f"{word} [UNK]" for word in words}
    texts = [(label, label.get_text()) for label in labels]
    read = [label for label, text in texts if text.isalpha() and text not in words]
    looks = [{(one.get_style(), one.get_color()) for one in some} for some in (unread, read)]
    assert looks[0] in ({("italic", MUTED)}, {("normal", GRAY)})
    assert looks[1] <= {("normal", INK)}


def test_terminal_and_files_show_what_was_not_read(read, tmp_path):
    result, words = read
    for shown in (attnviz.attention_map(result, layer=2, head=8), attnviz.steps(result)):
        console = Console(file=io.StringIO(), width=150)
        console.print(shown)
        assert all(f"{word} [UNK]" in console.file.getvalue() for word in words)
        names = next(iter(shown.labels().values()))
        assert {name for name in names if "UNK" in name} == {f"{word} [UNK]" for word in words}
        shown.save(tmp_path / "shown.json", force=True)
        side = next(iter(shown.labels()))
        assert json.loads((tmp_path / "shown.json").read_text())[side] == names
        shown.save(tmp_path / "shown.safetensors", force=True)
        again = attnviz.load_result(tmp_path / "shown.safetensors")
        assert again.sides == shown.sides
        assert again.checked_agreement.verdict == "verified"


def test_no_map_makes_a_claim_about_what_was_not_read(read):
    """Whatever head is drawn, with special tokens or without."""
    result, words = read
    for head in range(0, 72, 11):
        for special in ("keep", "remove"):
            layer, head = divmod(head, 12)
            ax = attnviz.plot.heatmap(result, layer=layer, head=head, special=special)
            title = ax.figure.texts[0].get_text()
            assert not any(word in title for word in (*words, "UNK")), title
    if len(words) == 7:  # a single word was read
        assert attnviz.plot.heads(result).texts[0].get_text() == "All 72 heads"


def test_pages_show_what_was_not_read(read):
    result, words = read
    (axis,) = attnviz.view(result).data()["payload"]["results"][0]["axes"]
    unread = {axis["labels"][n] for n in axis["unknown"]}
    assert unread == {f"{word} [UNK]" for word in words}
    assert unread < set(axis["wordLabels"])
