"""Compare two checkpoints: the changed head is found."""

import copy
import json
import shutil
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import torch
from commands import run
from families import tiny
from readable_text import check_texts

import attnviz
from attnviz import InputError

HEAD = "2.2"  # of the last layer: no head depends on it


def altered(module):
    """Return a copy with larger query weights of one head."""
    module = copy.deepcopy(module)
    layer, head = map(int, HEAD.split("."))
    query = module.get_submodule(f"layers.{layer}.self_attn.q_proj")
    width = query.out_features // module.config.num_attention_heads
    with torch.no_grad():
        query.weight[head * width : (head + 1) * width] *= -3
    return module


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """Return two folders, the second with an altered head."""
    place = tmp_path_factory.mktemp("checkpoints")
    module = tiny("mistral", torch.float32)
    for name, one in (("plain", module), ("altered", altered(module))):
        one.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    return place / "plain", place / "altered"


@pytest.fixture(scope="module")
def texts_read(texts):
    return texts[:12]


@pytest.fixture(scope="module")
def pair(texts_read, folders):
    return attnviz.compare(texts_read, models=folders)


def test_only_the_changed_head_differs(pair):
    changed = [str(head) for head in pair.heads].index(HEAD)
    assert int(pair.apart.argmax()) == changed
    assert (pair.p_value[0, changed] < 0.01).any()
    others = [n for n in range(len(pair.heads)) if n != changed]
    assert pair.change[:, others].nan_to_num(0).abs().max() == pair.apart[others].max() == 0
    torch.testing.assert_close(
        pair.change, pair.mean.diff(dim=0), atol=1e-6, rtol=0, equal_nan=True
    )


def test_means_and_intervals_are_those_of_a_survey(pair, texts_read, folders):
    for number, folder in enumerate(folders):
        survey = attnviz.survey(texts_read, model=folder)
        for name in ("mean", "low", "high"):
            ours, theirs = getattr(pair, name)[number], getattr(survey, name)
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0, equal_nan=True)
    assert pair.agreement.verdict == "verified"


def test_equal_models_have_no_change(texts_read, folders):
    found = attnviz.compare(texts_read[:1], models=[folders[0]] * 2)
    assert (found.texts, found.checkpoints) == (1, ("1. plain", "2. plain"))
    figure = found.plot()
    said = figure.texts[0].get_text()
    assert " ".join(said.split()) == "No head changed significantly from 1. plain to 2. plain"
    assert "<img" in found._repr_html_()
    plt.close("all")


def test_models_that_cannot_be_compared_are_refused(
    texts_read, folders, model, tokenizer, tmp_path
):
    two_sided = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    with pytest.raises(InputError, match="reads one text"):
        attnviz.compare(texts_read[:1], models=[model, two_sided])
    shutil.copytree(folders[0], tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    content = json.loads(file.read_text())
    ids = content["model"]["vocab"]
    ids["train"], ids["cat"] = ids["cat"], ids["train"]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="make different tokens of text"):
        attnviz.compare(texts_read[:3], models=(folders[0], tmp_path / "other"))
    with pytest.raises(InputError, match=r"The heads differ: .* has \d+, all-MiniLM.* has 72, "):
        attnviz.compare(texts_read[:1], models=[folders[0], model])
    for count in (0, 1, 3):
        with pytest.raises(InputError, match=f"takes two models, not {count}. Compare two at a"):
            attnviz.compare(texts_read, models=["none"] * count)


def test_a_pair_is_a_table_with_distances(pair):
    assert pair.checkpoints == ("plain", "altered")
    table = pair.to_frame()
    assert len(table) == pair.mean.numel()
    rows = table[(table.checkpoint == "altered") & (table.statistic == "entropy")]
    assert rows.apart.tolist() == pytest.approx(pair.apart.tolist())
    changed = int(pair.apart.argmax())
    assert str(pair.heads[changed]) == HEAD
    assert 0 < pair.apart_low[changed] < pair.apart[changed]
    assert table[table.checkpoint == "plain"].apart.isna().all()
    assert "role" not in table


def test_the_command_takes_two(folders, texts_read, tmp_path, monkeypatch, capsys, once):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(texts_read))
    plain, changed = map(str, folders)
    assert run(["compare", plain, changed, "corpus.txt", "-o", "x.safetensors"]) == 0
    assert "heads of altered beside those of plain, 12 texts" in capsys.readouterr().out
    result = attnviz.load_result("x.safetensors")
    assert result.checkpoints == ("plain", "altered")
    assert result.checked_agreement.verdict == "verified"
    for models in ([plain], [plain, changed, plain]):
        assert run(["compare", *models, "corpus.txt"]) == 2
        assert f"two models, not {len(models)}. Compare two at a time" in capsys.readouterr().err
    assert run(["compare", plain, "none", "corpus.txt", "--json"]) == 3


@pytest.mark.parametrize(("layers", "heads", "width"), [(80, 64, 183), (30, 9, 89)])
def test_the_figure_of_many_heads_is_readable(pair, layers, heads, width):
    names = [
        replace(pair.heads[0], layer=layer, head=head)
        for layer in range(layers)
        for head in range(heads)
    ]
    means = torch.rand(2, len(names), len(pair.statistics))
    change, apart = means.diff(dim=0), torch.rand(len(names))
    many = replace(
        pair,
        heads=tuple(names),
        checkpoints=("a folder/step-1000", "a folder/step-2000"),
        mean=means,
        low=means - 0.02,
        high=means + 0.02,
        change=change,
        change_low=change - 0.01,
        change_high=change + 0.01,
        p_value=torch.zeros_like(change),
        apart=apart,
        apart_low=apart,
        apart_high=apart,
        agreements=tuple(replace(one, digest=None) for one in pair.agreements),
    )
    figure = many.plot(width=width)
    check_texts(figure)
    plt.close(figure)
