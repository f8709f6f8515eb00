"""Compare several checkpoints: the changed head is found, and when it changed."""

import copy
import gc
import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

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
def found(texts_read, folders):
    plain, changed = folders
    models = {"start": plain, "same": plain, "altered": changed, "end": plain}
    return attnviz.compare(texts_read, models=models)


def test_the_changed_head_is_named_with_its_step(found):
    heads = [str(head) for head in found.heads]
    turns = found.turns()
    assert [heads[turn.head] for turn in turns] == [HEAD]
    assert turns[0].step == 1
    assert found.describe(turns[0]).startswith("Between same and altered, ")
    assert f"head {HEAD} " in found.describe(turns[0])
    others = [n for n, head in enumerate(heads) if head != HEAD]
    assert found.change[:, others].nan_to_num(0).abs().max() == 0
    assert found.change[0].nan_to_num(0).abs().max() == 0
    torch.testing.assert_close(
        found.change, found.mean.diff(dim=0), atol=1e-6, rtol=0, equal_nan=True
    )


def test_intervals_and_roles_are_those_of_two_models_and_of_a_survey(found, texts_read, folders):
    pair = attnviz.compare(texts_read, models=folders)
    survey = attnviz.survey(texts_read, model=folders[1])
    for ours, theirs in (
        (found.mean[1:3], pair.mean),
        (found.low[1:3], pair.low),
        (found.high[1:3], pair.high),
        (found.change[1:2], pair.change),
        (found.change_low[1:2], pair.change_low),
        (found.change_high[1:2], pair.change_high),
        (found.p_value[1:2], (pair.p_value * 3).clamp(max=1)),
        (found.mean[2], survey.mean),
        (found.high[2], survey.high),
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0, equal_nan=True)
    assert found.roles[2] == survey.roles
    assert found.agreement.verdict == pair.agreement.verdict == "verified"


def test_one_model_is_in_memory_at_a_time(texts_read, folders):
    alive = []

    def load():
        gc.collect()
        assert not [one for one in alive if one() is not None]
        model = attnviz.load(folders[0])
        alive.append(weakref.ref(model.module))
        return model

    found = attnviz.compare(iter(texts_read[:1]), models=[load] * 3)
    assert (len(alive), found.texts) == (3, 1)
    assert found.turns() == []
    figure = found.plot()
    assert figure.texts[0].get_text() == "No head changed significantly over 3 checkpoints"
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
        attnviz.compare(texts_read[:1], models=[folders[0], model, folders[0]])
    with pytest.raises(InputError, match="Name two models or more"):
        attnviz.compare(texts_read, models=folders[:1])


def test_a_pair_is_a_table_with_distances(texts_read, folders):
    pair = attnviz.compare(texts_read, models=folders)
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


def test_the_command_takes_any_number_in_any_order(
    folders, texts_read, tmp_path, monkeypatch, capsys, once
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(texts_read))
    plain, changed = map(str, folders)
    # The second and the third checkpoint are exchanged: the head changes one step earlier.
    assert run(["compare", plain, changed, plain, "corpus.txt", "-o", "x.safetensors"]) == 0
    assert "in 3 checkpoints, 12 texts" in capsys.readouterr().out
    result = attnviz.load_result("x.safetensors")
    assert [(str(result.heads[turn.head]), turn.step) for turn in result.turns()] == [(HEAD, 0)]
    names = (Path(plain).name, Path(changed).name, Path(plain).name)
    assert result.checkpoints == tuple(f"{n}. {name}" for n, name in enumerate(names, 1))
    assert run(["compare", plain, "corpus.txt"]) == 2
    assert "Name two models or more" in capsys.readouterr().err
    assert run(["compare", plain, changed, "none", "corpus.txt", "--json"]) == 3


@pytest.mark.parametrize(("layers", "heads", "count", "width"), [(80, 64, 4, 183), (30, 9, 20, 89)])
def test_the_figure_of_many_heads_and_checkpoints_is_readable(found, layers, heads, count, width):
    names = [
        replace(found.heads[0], layer=layer, head=head)
        for layer in range(layers)
        for head in range(heads)
    ]
    paths = torch.rand(count, len(names), len(found.statistics)).cumsum(0) / count
    change = paths.diff(dim=0)
    many = replace(
        found,
        heads=tuple(names),
        checkpoints=tuple(f"a folder/step-{n}000" for n in range(count)),
        mean=paths,
        low=paths - 0.02,
        high=paths + 0.02,
        change=change,
        change_low=change - 0.01,
        change_high=change + 0.01,
        p_value=torch.zeros_like(change),
        roles=(("induction", *("previous token",) * (len(names) - 1)),) * count,
        agreements=(replace(found.agreements[0], digest=None),) * count,
        provenances=found.provenances[:1] * count,
    )
    figure = many.plot(width=width)
    check_texts(figure)
    plt.close(figure)
