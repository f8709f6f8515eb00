"""Every command and every plotting snippet of the guides is followed by the picture it draws."""

from pathlib import Path

import guide_pictures
import pytest
from PIL import Image

GUIDES = Path(__file__).parents[2] / "gallery" / "guides"
COMMAND = 'attnviz heatmap "the train left" -o a.pdf\n'
SHOWN = "\n![The map of one head on three words](images/a.png)\n"
MODEL = 'attnviz explain "It is in" --model smollm2\n'


def test_every_block_that_draws_has_its_picture():
    assert not guide_pictures.problems(GUIDES)


def test_pictures_are_small():
    for path in (GUIDES / "images").glob("*.png"):
        with Image.open(path) as picture:
            assert picture.width <= 1200, path.name
        assert path.stat().st_size < 200_000, path.name


@pytest.fixture
def guides(tmp_path):
    """Return a folder of guides, and a function that writes one of them as if it were drawn."""

    def write(text):
        guide = tmp_path / "maps.md"
        guide.write_text(text, encoding="utf-8")
        return list(guide_pictures.drawings(guide))

    (tmp_path / "images").mkdir()
    (drawing,) = write(f"```bash\n{COMMAND}```\n{SHOWN}")
    (tmp_path / "images" / "a.png").touch()
    guide_pictures._write_index(tmp_path, {"a.png": {"code": drawing.sha256, "package": ""}})
    return tmp_path, write


def test_a_drawn_guide_has_no_problem(guides):
    assert not guide_pictures.problems(guides[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"```bash\n{COMMAND}```\n", "no picture follows it"),
        (f"```bash\n{COMMAND}{COMMAND}```\n{SHOWN}", "no picture follows it"),
        (f"```text\n{MODEL}```\n", "no picture follows it"),
        ("```python\nattnviz.plot.heatmap(result)\n```\n", "no picture follows it"),
        (f"```bash\n{COMMAND}```\n{SHOWN}{SHOWN.replace('a.png', 'b.png')}", "more than one"),
        (f"```bash\n{COMMAND.replace('left', 'came')}```\n{SHOWN}", "drawn by other code"),
        (f"```bash\n{COMMAND}```\n{SHOWN.replace('a.png', 'b.png')}", "b.png is not drawn"),
        (f"```bash\n{COMMAND}```\n\nText.\n{SHOWN}", "a.png belongs to no block"),
        (f"```bash\n{COMMAND}```\n\n![map](images/a.png)\n", "no text that says what is seen"),
    ],
)
def test_a_picture_that_rots_is_found(guides, text, said):
    folder, write = guides
    write(text)
    assert any(said in problem for problem in guide_pictures.problems(folder))


def test_what_draws_nothing_or_is_not_here_needs_none(guides):
    folder, write = guides
    drawn = f"```bash\n{COMMAND}```\n{SHOWN}"
    elsewhere = "".join(
        f"```{language}\n{line}\n```\n"
        for language, line in (
            ("bash", 'attnviz verify "the train left"'),
            ("bash", "attnviz compare ./before ./after corpus.txt -o a.png"),
            ("text", "attnviz explore photos/ -o a.html --model dinov2-small"),
            ("text", 'attnviz explain "[MASK]" --model google-bert/bert-base-uncased'),
            ("sh", 'attnviz heatmap "the train left" --device cuda'),
            ("python", 'attnviz.attend("the train left")'),
        )
    )
    write(drawn + elsewhere)
    assert not guide_pictures.problems(folder)
