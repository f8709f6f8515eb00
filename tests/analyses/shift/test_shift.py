"""What moved a word: exact contributions, an independent causal check, and clear errors."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import matplotlib.pyplot as plt
import pytest
import torch
import transformers
from families import tiny
from figures.test_layout import check_layout
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from readable_text import check_texts
from rich.console import Console
from torch.testing import assert_close
from transformers import CLIPTextConfig, CLIPTextModel

import attnviz
from attnviz.analyses.shift import compute
from attnviz.analyses.shift.result import spearman
from attnviz.app import run
from attnviz.attribution import deeplift
from attnviz.errors import InputError, ModelError
from attnviz.figures import style

CASH = "The bank was full of cash."
PAIR = "The bank was full of {mud|cash}."
SAT = "We sat on the bank of the river."
SIDES = {"water": "Reeds grew along the muddy bank.", "money": "The bank lends money."}
SHORES = {
    "water": "The boat drifted past the bank of the lake.",
    "money": "The bank approved the loan.",
}
FRUITS = {"tech": ["I love computers", "I love laptops"], "fruit": ["I love pears", "I love plums"]}
REGIONS = {"tech": ["computer", "I love phones"], "fruit": ["banana", "I love cherries"]}


@pytest.fixture(scope="module")
def shift(model):
    """Return `attnviz.shift` with the bundled model, which computes the same shift once."""
    done = {}

    def once(word, text, **options):
        key = repr((word, text, options))
        if key not in done:
            done[key] = attnviz.shift(word, text, model=model, **options)
        return done[key]

    return once


@pytest.fixture(scope="module")
def small(tokenizer):
    """Return a tiny model."""
    return attnviz.load(tiny("bert"), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def bank(shift):
    return shift("bank", CASH)


@pytest.fixture(scope="module")
def verified(shift):
    return shift("bank", CASH, verify_causally=True)


@pytest.fixture(scope="module")
def sat(shift):
    return shift("bank", SAT, toward=SIDES)


@pytest.fixture(scope="module")
def shores(shift):
    return shift("bank", SAT, toward=SHORES)


@pytest.fixture(scope="module")
def mud(shift):
    return shift("bank", PAIR)


@pytest.fixture(scope="module")
def apple(shift):
    return shift("apple", "I love apple phones", toward=REGIONS)


@pytest.fixture
def without_changed_words():
    """Leave out what a shift measures by changing single words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute, "intervene", lambda *_: {})
        yield


def end_of(model, text, at):
    with torch.no_grad():
        ids = model.tokenizer(text, return_tensors="pt")
        return model.module(**ids).last_hidden_state[0, at].double()


def test_the_contributions_add_up(bank, apple):
    for result in (bank, apple):
        assert result.decomposition.error < 1e-5
        assert result.decomposition.credit_error < 1e-5
        assert result.residual_stream.error < 1e-5
        assert result.agreement.verdict == "verified"


def test_the_effect_of_masking_matches_the_model(model, bank):
    """Compare with plain runs of the model, without attnviz."""
    along = bank.decomposition.direction.double()
    masked = CASH.replace("cash", "[MASK]")
    lost = (end_of(model, CASH, 2) - end_of(model, masked, 2)) @ along
    assert list(bank.causal) == ["mask", "replace", "knock-out", "delete"]
    assert bank.words[6] == "cash"
    assert bank.causal["mask"][6].item() == pytest.approx(lost.item(), abs=1e-4)
    assert bank.causal["mask"][[0, 2, 8]].isnan().all()  # special tokens, and the word itself
    assert not bank.causal["mask"][bank.sources].isnan().any()


def test_the_gated_reference_is_nearly_the_word_alone(model, bank):
    """In the gated reference the word attends only to itself and to special tokens."""
    gated = (
        end_of(model, CASH, 2) - bank.decomposition.direction.double() * bank.decomposition.length
    )
    alone = end_of(model, "bank", 1)
    assert torch.cosine_similarity(gated, alone, dim=0) > 0.85


def test_every_change_and_every_head(model, verified, bank):
    assert list(verified.causal) == ["mask", "replace", "knock-out", "delete"]
    assert_close(verified.causal["mask"], bank.causal["mask"], equal_nan=True)
    at = verified.sources
    effects = torch.stack([each[at] for each in verified.causal.values()])
    size = effects.std(1, correction=0, keepdim=True)
    assert_close(verified.consensus[at], (effects * size.mean() / size).mean(0))
    assert list(verified.rank_correlations) == [*verified.causal, "consensus"]
    assert verified.direct_effect.shape == verified.total_effect.shape == (6, 12)
    direct, total = verified.head_rank_correlations.values()
    assert direct > 0.95 > total > 0.6
    assert bank.direct_effect is bank.total_effect is None
    assert bank.head_rank_correlations == {}


def test_direct_and_total_effects_are_named_alike_everywhere(verified):
    names = ["direct effect", "total effect"]
    assert list(verified.head_effects) == list(verified.head_rank_correlations) == names
    assert {"direct_effect", "total_effect"} < verified.to_arrays().keys()
    assert set(names) < set(verified.to_frame()["quantity"])
    assert list(verified.about()["head_rank_correlations"]) == names
    console = Console(width=200)
    with console.capture() as capture:
        console.print(verified)
    assert "with the effect of patching: direct effect 0.99, total effect 0." in capture.get()
    figure = attnviz.plot.shift(verified, details=True)
    shown = " ".join(text.get_text() for text, _ in check_texts(figure))
    for name, rho in verified.head_rank_correlations.items():
        assert name.capitalize() in shown
        assert f"ρ {rho:.2f}" in shown


def test_the_total_effect_of_the_last_layer_is_its_direct_effect(verified):
    """A head of the last layer has no other path. Elsewhere it has."""
    direct, total = verified.direct_effect, verified.total_effect
    assert_close(total[-1], direct[-1], atol=1e-5, rtol=1e-4)
    assert (total - direct)[:-1].abs().max() > 0.05


def test_the_mask_as_reference(model, shift):
    result = shift("bank", CASH, reference="mask")
    alone = end_of(model, "[MASK] bank [MASK] [MASK] [MASK] [MASK] [MASK]", 2)
    delta = end_of(model, CASH, 2) - alone
    assert result.decomposition.length == pytest.approx(delta.norm().item(), rel=1e-4)
    assert result.reference == "the same text, where all other words are [MASK]"
    assert result.decomposition.error < 1e-5
    assert result.credit[[0, 2, 8]].abs().max() < 1e-5  # only masked words differ at the start


def test_rank_correlation():
    """By hand: 1 - 6 Σd² / n (n² - 1), with mean ranks for ties."""
    a = torch.tensor([0.1, 0.4, 0.3, 0.9, 0.2])
    assert spearman(a, torch.tensor([1.0, 4.0, 3.0, 2.0, 5.0])) == pytest.approx(
        1 - 6 * (0 + 0 + 0 + 9 + 9) / 120
    )
    assert spearman(a[:3], torch.tensor([1.0, 2.0, 2.0])) == pytest.approx(0.75**0.5)
    assert spearman(a[:2], a[:2]) is None
    assert spearman(a, torch.zeros(5)) is None


def test_a_neighbor_moves_apple_toward_its_sense(shift, apple):
    pie = shift("apple", "I love apple pie", toward=REGIONS)
    neighbor = 4
    assert apple.words[neighbor] == "phones"
    assert apple.credit[neighbor] > 0 > pie.credit[neighbor]
    assert apple.causal["mask"][neighbor] > 0 > pie.causal["mask"][neighbor]
    assert apple.path[-1] > pie.path[-1]
    assert apple.path[0] == pytest.approx(pie.path[0].item())  # the static embedding is the same
    for result in (apple, pie):  # distances and the place on the axis form one triangle
        to_tech, to_fruit = result.distances[-1]
        assert_close(result.path[-1], (1 + to_fruit**2 - to_tech**2) / 2)


@pytest.mark.usefixtures("without_changed_words")
def test_the_path_ends_at_0_and_1_in_the_regions_themselves(model):
    regions = {"one": ["I love apple pie"], "other": ["I love apple phones"]}
    moved = attnviz.shift("apple", "I love apple cake", toward=regions, model=model)
    one, other = moved.plane.region_ends
    assert one[0, 0].item() == pytest.approx(1.0, abs=1e-5)
    assert other[0, 0].item() == pytest.approx(0.0, abs=1e-5)

    def states_in(text):
        ids = model.tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            states = model.module(ids, output_hidden_states=True).hidden_states
        return torch.stack(states)[:, 0, 3].double()

    start, end = (states_in(regions[name][0])[-1] for name in ("other", "one"))
    places = (states_in("I love apple cake") - start) @ (end - start) / (end - start).norm() ** 2
    assert_close(moved.path, places, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("without_changed_words")
def test_a_minimal_pair(small):
    result = attnviz.shift("bank", CASH, reference=CASH.replace("cash", "mud"), model=small)
    assert result.reference == "“The bank was full of mud.”"
    assert result.decomposition.credit.abs().argmax() == 6
    assert result.decomposition.credit[6].item() == pytest.approx(
        result.decomposition.total, rel=1e-4
    )


def texts_of(result, **options):
    return [text.get_text() for text, _ in check_texts(attnviz.plot.shift(result, **options))]


def words_of(result, **options):
    return " ".join(texts_of(result, **options))


def test_the_headline_is_the_word_with_the_largest_measured_effect(model, shift, shores):
    """Each claim again from the plain arrays and from a plain run."""
    result = shores
    assert [*result.causal] == ["mask", "replace", "knock-out", "delete"]
    river = result.strongest
    assert result.names[river] == "river"
    bank = model.tokenizer.convert_tokens_to_ids("bank")
    first, second = (
        end_of(model, text, model.tokenizer(text).input_ids.index(bank)) for text in SHORES.values()
    )
    way = (first - second).norm().item()
    assert result.way == pytest.approx(way, rel=1e-4)
    masked, deleted = SAT.replace("river", "[MASK]"), SAT.replace("river", "")
    for name, text in (("mask", masked), ("delete", deleted)):
        lost = (end_of(model, SAT, 5) - end_of(model, text, 5)) @ (first - second) / way**2
        assert result.share(result.causal[name][river]) == pytest.approx(lost.item(), abs=1e-4)
    several = [result.share(effect[river]) for effect in result.causal.values()]
    lost, credit = sum(several) / 4, result.credit[river].item() / way
    assert result.headline == f"“river” pulled “bank” {lost:.2f} of the way from money to water"
    assert (
        f"Changing “river” moves it {lost:.2f} of the way toward money ({min(several):.2f} to "
        f"{max(several):.2f} by the kind of change); the split credits “river” with {credit:.2f}."
        in result.conclusion()
    )
    place = (end_of(model, SAT, 5) - second) @ (first - second) / way**2
    assert result.path[-1].item() == pytest.approx(place.item(), rel=1e-4)
    assert_close(result.path, result.plane.path[:, 0])  # printed as drawn
    assert f"It ends at {place:.2f}, where money is 0 and water is 1." in result.conclusion()
    alone = shift("bank", SAT)
    share = alone.effect.nan_to_num().max().item() / alone.decomposition.total
    assert alone.headline == (
        f"“river” moved “bank” {share:.2f} of the way from its place alone to its place here"
    )


@pytest.mark.usefixtures("without_changed_words")
def test_in_texts_of_regions_without_the_word_those_that_differ_count(model, small):
    """Not “I” and “love”, which both regions have."""
    regions = {"tech": ["I love computers", "my laptop"], "fruit": ["I love fruit", "an apple pie"]}
    text = "I love apple phones"
    moved = attnviz.shift("apple", text, toward=regions, model=model)
    assert moved.notes[:2] == (
        "“apple” is in no text of tech, where others count: “computers”, “laptop”",
        "“apple” is not in 1 of 2 texts of fruit, where others count: “fruit”",
    )
    ends = [
        end_of(model, *read)
        for read in (
            ("I love computers", 3), ("my laptop", 2), ("I love fruit", 3), ("an apple pie", 2),
        )
    ]  # fmt: skip
    tech, fruit = (ends[0] + ends[1]) / 2, (ends[2] + ends[3]) / 2
    place = (end_of(model, text, 3) - fruit) @ (tech - fruit) / (tech - fruit).norm() ** 2
    assert moved.path[-1].item() == pytest.approx(place.item(), rel=1e-4)
    same = {"tech": "I love it", "fruit": "we love it"}  # no content word differs: each counts
    assert "“love”" in attnviz.shift("apple", text, toward=same, model=small).notes[0]
    figure = attnviz.plot.shift(moved)
    assert "in no text of tech" in " ".join(one.get_text() for one in figure.texts)
    plt.close(figure)


@pytest.mark.long  # by hand: test_interventions_must_agree_on_the_word_and_on_its_sign
def test_the_headline_names_the_direction_of_the_movement(model):
    result = attnviz.shift("apple", "I love apple pie", toward=FRUITS, model=model)
    assert result.names[result.strongest] == "pie"
    share = -result.effect[result.strongest].item() / result.way
    assert share > 0
    assert result.headline == f"“pie” pulled “apple” {share:.2f} of the way from tech to fruit"


def altered(result, index, *effects):
    """Return a result in which changing a word has other effects, by the kind of change."""
    causal = {}
    for (name, effect), other in zip(result.causal.items(), effects, strict=True):
        causal[name] = effect.clone()
        causal[name][index] = other
    return replace(result, causal=causal)


def test_interventions_must_agree_on_the_word_and_on_its_sign(shores):
    result = shores
    river, of, way = result.names.index("river"), result.names.index("of"), result.way
    most = altered(result, river, 0.1 * way, 0.5 * way, 0.5 * way, 0.5 * way)
    assert most.names[most.strongest] == "river"
    assert most.headline.startswith("“river” pulled “bank” 0.40 of the way from money")
    assert (
        "Changing “river” moves it 0.40 of the way toward money (0.10 to 0.50 by the kind of "
        "change)" in most.conclusion()
    )
    back = altered(result, river, -0.5 * way, -0.5 * way, -0.5 * way, -0.5 * way)
    assert back.headline == "“river” pulled “bank” 0.50 of the way from water to money"
    opposed = altered(result, river, -0.1 * way, 0.9 * way, 0.9 * way, 0.9 * way)
    others = altered(altered(result, river, *[0.5 * way] * 4), of, *[0.4 * way] * 2, *[way] * 2)
    for split in (opposed, others):
        assert split.strongest is None
        assert split.headline == "Interventions disagree on what moved “bank” most"
        assert "On average, changing “" in split.conclusion()
    canceled = altered(result, river, *[-0.9 * way] * 2, *[0.9 * way] * 2)
    assert "No word" not in canceled.headline


def test_a_tie_is_called_a_tie_and_a_single_change_by_its_name(shores):
    result = shores
    river, of, way = result.names.index("river"), result.names.index("of"), result.way
    tied = altered(altered(result, river, *[0.301 * way] * 4), of, *[0.304 * way] * 4)
    assert tied.strongest is None
    assert tied.headline == "“of” and “river” moved “bank” most and alike, 0.30 of the way each"
    masked = replace(
        result, causal={"mask": altered(result, river, *[0.5 * way] * 4).causal["mask"]}
    )
    assert masked.headline == "Masking “river” moves “bank” most, 0.50 of the way"
    assert "by the kind of change" not in masked.conclusion()


def test_what_the_split_credits_is_named_where_it_differs_or_nothing_is_measured(shores):
    result = shores
    river, of = result.names.index("river"), result.names.index("of")
    credit = result.decomposition.credit.clone()
    credit[list(result.positions[of])] = -2 * result.credit[river]
    other = replace(result, decomposition=replace(result.decomposition, credit=credit))
    assert other.headline == result.headline
    shares = [other.share(other.credit[n]) for n in (river, of)]
    assert (
        f"the split credits “river” with {shares[0]:.2f}, and “of” most, with \N{MINUS SIGN}"
        f"{-shares[1]:.2f}." in other.conclusion()  # as the bars are
    )
    nothing = {name: torch.full_like(effect, torch.nan) for name, effect in result.causal.items()}
    assert replace(result, causal=nothing).headline == replace(result, causal={}).headline
    unmeasured = replace(result, causal={})
    assert unmeasured.headline.startswith(f"The split credits “river” with {shares[0]:.2f} of the")
    assert unmeasured.headline.endswith("; no effect was measured")
    assert "What the split credits each word with" in words_of(unmeasured)
    assert "lost by" not in words_of(unmeasured)
    for each in (other, unmeasured):
        assert each.headline in " ".join(texts_of(each, width=89))


def test_of_two_differences_no_word_is_named_as_a_cause(shift):
    pair = shift("bank", "The {muddy|rich} bank was full of {mud|cash}.")
    assert pair.entries == [2, 7]
    assert pair.strongest is None
    rich, cash = (pair.share(pair.credit[n]) for n in pair.entries)
    share = pair.decomposition.length / pair.plane.size
    assert pair.headline == (
        f"“rich” and “cash” in place of “muddy” and “mud” move “bank” by {pair.way:.2f}, "
        f"{share:.0%} of its length"
    )
    assert f"{rich:.2f} starts at “rich” and {cash:.2f} starts at “cash”." in pair.conclusion()
    assert pair.contributions[0] == "all paths"


def test_small_effects_between_two_regions_are_no_pull(sat):
    result = sat
    kinds = torch.stack([*result.causal.values()]).nan_to_num()
    factor = 0.083 * result.way / kinds.abs().max()
    small = replace(result, causal={n: each * factor for n, each in result.causal.items()})
    assert small.headline == (  # no kind of change moves it more, and the bound is rounded up
        "No word moved “bank” more than 0.09 of the way between money and water"
    )


def test_a_pair_credits_no_word_because_all_others_are_the_same(model, mud):
    """The whole shift starts at “cash” by construction; who passes it on is not fixed."""
    pair = mud
    assert pair.replaced == ("", "", "", "", "", "", "mud", "", "")
    assert pair.entries == [6]
    direct = pair.decomposition.table.sum((0, 1)) / pair.decomposition.total
    cash, itself = direct[6].item(), direct[2].item()
    rest = direct.sum().item() - cash - itself
    assert cash + itself + rest == pytest.approx(1, rel=1e-5)
    by_head = pair.decomposition.table.sum(-1) / pair.decomposition.total
    assert by_head.sum(1).argmax() == 5
    assert divmod(by_head.argmax().item(), 12) == (5, 11)
    size = pair.decomposition.length / end_of(model, CASH, 2).norm()
    assert (
        pair.headline == f"“cash” in place of “mud” moves “bank” by 4.18, {size:.0%} of its length"
    )
    assert (
        pair.conclusion()
        == pair.about()["conclusion"]
        == (
            f"{pair.headline}. All of it starts at “cash” (“mud” in the reference), the only "
            f"difference. Of the whole, “bank” takes {cash:.2f} directly from “cash”, {itself:.2f} "
            f"from itself and {rest:.2f} from other tokens. The strongest layer is 5 "
            f"({by_head[5].sum():.2f}), the strongest head 11 of layer 5 ({by_head[5, 11]:.2f})."
        )
    )
    assert pair.about()["replaced"] == {"cash": "mud"}
    name, bars = pair.contributions
    assert name == "direct parts"
    assert_close(bars, direct * pair.decomposition.total)
    console = Console(width=1000)
    with console.capture() as capture:
        console.print(pair)
    assert pair.conclusion() in capture.get()
    shown = words_of(pair, width=89)
    assert pair.headline in shown
    assert "What is lost by changing each word" in shown
    assert "read from it" in shown
    assert "split" not in shown
    assert "Directly, by word" in words_of(pair, width=183, details=True)


def test_a_pair_between_two_regions_may_move_either_way(shift):
    pair = shift("bank", PAIR, toward=SIDES)
    share = pair.share(pair.decomposition.total)
    assert share < 0
    assert pair.headline == (
        f"“cash” in place of “mud” moves “bank” {-share:.2f} of the way from water to money"
    )
    assert f"Of {-share:.2f}, “bank” takes " in pair.conclusion()
    back = shift("bank", "The bank was full of {cash|mud}.", toward=SIDES)
    assert back.headline == (
        f"“mud” in place of “cash” moves “bank” {-share:.2f} of the way from money to water"
    )


def test_a_pair_of_the_word_itself_has_what_it_starts_with(shift):
    pair = shift("bank", "the {river|bank} of cash")
    assert pair.entries == [pair.at]
    own = pair.decomposition.start / pair.decomposition.total
    assert pair.headline == f"{own:.0%} of what parts “bank” from “river” is in the words alone"
    assert f", besides {own:.2f} that it starts with." in pair.conclusion()
    assert pair.contributions[0] == "all paths"


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("text", [SAT, CASH, "He robbed the bank.", "bank bank the bank"])
@pytest.mark.parametrize("reference", ["gate", "mask"])
def test_the_word_itself_is_never_credited(shift, text, reference):
    given = {} if reference == "gate" else {"reference": reference}
    result = shift("bank#1" if "bank bank" in text else "bank", text, **given)
    credit = result.decomposition.credit.clone()
    credit[list(result.positions[result.at])] = 100.0
    loud = replace(result, decomposition=replace(result.decomposition, credit=credit))
    assert loud.headline.partition(" moved ")[0] != f"“{result.word}”"
    assert loud.headline == result.headline


PLACES = [
    (SAT, {}), (SAT, {"toward": SIDES}), (PAIR, {}), (PAIR, {"toward": SIDES}),
    (CASH, {"reference": "mask"}),
    pytest.param(SAT, {"toward": SIDES, "reference": "mask"}, marks=pytest.mark.long),
]  # fmt: skip


@pytest.mark.parametrize(("text", "given"), PLACES)
def test_the_path_in_the_plane_ends_where_the_shift_ends(model, shift, text, given):
    """Both ends again from plain runs; between them is the total of the decomposition."""
    result = shift("bank", text, **given)
    plane, split = result.plane, result.decomposition
    gap = (plane.path[-1] - plane.reference_path[-1])[0].item()
    assert gap == pytest.approx(split.total / result.way, abs=1e-5)
    assert_close(plane.path[0], plane.reference_path[0])  # the same static vector
    read = result.provenance.text
    end, static = end_of(model, read, result.positions[result.at][0]), plane.path[0]
    assert plane.size == pytest.approx(end.norm().item(), rel=1e-5)
    assert static[1] == pytest.approx(0, abs=1e-9)
    assert plane.path.shape == plane.reference_path.shape == (7, 2)
    assert 0 < plane.explained < 1
    if "toward" not in given:
        assert plane.reference_path[-1, 0] == pytest.approx(0, abs=1e-6)
        assert plane.path[-1, 0] == pytest.approx(1, abs=1e-5)
    else:
        water, money = (ends[:, 0].mean() for ends in plane.region_ends)
        assert_close(torch.stack([water, money]), torch.tensor([1.0, 0.0]).double())
        assert plane.path[-1, 0] == pytest.approx(result.path[-1].item(), abs=1e-5)


def test_distances_in_the_plane_are_those_of_the_states(model, shift):
    """A plane in which nothing is stretched: no distance grows, and along the axis all is kept."""
    result = shift("bank", SAT)
    with torch.no_grad():
        ids = model.tokenizer(SAT, return_tensors="pt")
        states = model.module(**ids, output_hidden_states=True).hidden_states
    states = torch.stack(states)[:, 0, 5].double() / result.way
    plane = result.plane.path
    assert (torch.cdist(plane, plane) <= torch.cdist(states, states) + 1e-6).all()
    along = states @ result.decomposition.direction.double()
    assert_close(plane[:, 0] - plane[-1, 0], along - along[-1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("count", [pytest.param(3, marks=pytest.mark.long), 5, 6])
def test_fewer_than_six_words_have_no_rank_correlation(small, count):
    words = ["lend", "gold", "and", "silver", "to", "nobody"][:count]
    result = attnviz.shift("banks", f"banks {' '.join(words)}", verify_causally=True, model=small)
    assert len(result.sources) == count
    assert bool(result.rank_correlations) == (count >= 6)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(result)
    assert ("rank correlation ρ of all paths" in capture.get()) == (count >= 6)
    assert ("mask, ρ" in words_of(result, details=True)) == (count >= 6)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("texts", [CASH, [CASH], ["The bank lends.", CASH], CASH.upper()])
@pytest.mark.parametrize("name", ["money", "river"])
def test_a_region_with_the_text_itself_is_refused(model, texts, name):
    """The word would define the axis on which it is measured."""
    toward = {"money": "The bank lends.", "river": "The bank floods.", name: texts}
    message = f"The region '{name}' has the text itself, so “bank” would be measured against itself"
    with pytest.raises(InputError, match=message):
        attnviz.shift("bank", CASH, toward=toward, model=model)
    with pytest.raises(InputError, match=message):
        attnviz.shift("bank", CASH.replace("cash", "{mud|cash}"), toward=toward, model=model)


@pytest.mark.usefixtures("without_changed_words")
def test_a_word_of_several_pieces_is_their_mean(small):
    result = attnviz.shift("unbelievably", "It was unbelievably late", model=small)
    assert result.positions[result.at] == (3, 4, 5, 6, 7)
    assert result.words == ("[CLS]", "It", "was", "unbelievably", "late", "[SEP]")
    assert_close(result.credit[3], result.decomposition.credit[3:8].sum())
    assert_close(result.credit.sum(), result.decomposition.credit.sum())
    assert result.notes == ("“unbelievably” is 5 pieces, averaged",)
    assert result.decomposition.error < 1e-5


@pytest.mark.parametrize(  # test_attribution.py has the others
    "family", ["llama", *(pytest.param(one, marks=pytest.mark.long) for one in ("gpt2", "roberta"))]
)
def test_models_of_other_kinds(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    result = attnviz.shift("bank", "cash filled the bank", model=model)
    assert result.decomposition.error < 1e-5
    assert result.decomposition.credit_error < 1e-5
    assert result.residual_stream.error < 1e-5


@pytest.mark.parametrize(
    ("word", "given", "message"),
    [
        ("bnak", {}, "'bnak' is not a word of the text. Did you mean bank"),
        (
            "bank",
            {"reference": "The bank was full."},
            "The reference has 7 tokens, but the text has 9",
        ),
        ("bank", {"toward": {"one": ["river"]}}, "An axis needs two regions, not 1"),
        ("bank", {"toward": {"one": ["river"], "two": []}}, "The region 'two' has no text"),
        (
            "bank",
            {"toward": {"one": ["x"], "two": "x"}},
            "The regions 'one' and 'two' are one point",
        ),
        ("bank", {"reference": CASH}, "The reference is the same as the text"),
        ("bank", {"reference": "gates"}, "Did you mean gate?"),
        ("bank", {"target": "x"}, "shift reads text only. Leave target out"),
        ("bank", {"reference": [CASH, CASH]}, "The other text is a list of texts"),
        ("bank", {"reference": 7}, "In the other text: The text must be a string, not int"),
        (7, {}, "word must be a string, not 7"),
    ],
)
def test_invalid_input_is_one_line(model, word, given, message):
    with pytest.raises(InputError, match=message):
        attnviz.shift(word, CASH, model=model, **given)


def test_an_encoder_decoder_is_refused(tokenizer):
    model = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    with pytest.raises(ModelError, match="does not read one text and nothing else"):
        attnviz.shift("bank", CASH, model=model)


def panels(figure):
    """Return the titles of the panels, which are bold and smaller than that of the page."""
    size = style.TEXT_SIZE
    bold = [t for t in figure.texts if t.get_fontweight() == "bold" and t.get_fontsize() == size]
    return [text.get_text() for text in bold if " " in text.get_text()]


LONG = (
    "After a long week in the office the tired accountant walked slowly down to the bank of the "
    "river, where she sat in the wet grass, watched two small boats drift past, ate her sandwich, "
    "and thought about money."
)
GERMAN = "Die Donaudampfschifffahrtsgesellschaftskapitänin saß am Ufer der Bank und las"


@pytest.fixture(scope="module")
def several(tokenizer, shift, small, verified, apple):
    """Return results that are hard to draw."""
    causal = attnviz.load(tiny("gpt2"), tokenizer=tokenizer)
    return {
        "verified": verified,
        "apple": apple,
        "long": shift("bank", LONG, toward=SIDES),
        "longer": attnviz.shift("bank#1", f"{LONG} " * 3, model=small),
        "german": attnviz.shift("Bank", GERMAN, model=small),
        "pair": shift("bank", PAIR, toward=SIDES),
        "causal": attnviz.shift("bank", SAT, model=causal),
        "unmeasured": replace(apple, causal={}),
        "of an older version": replace(apple, plane=None),
        "one word": shift("bank", "bank closed"),
    }


@pytest.fixture(scope="module")
def drawn(several):
    """Return the figure of a result by its name, which is drawn once."""

    def draw(name, width, details):
        figure = attnviz.plot.shift(several[name], width=width, details=details)
        plt.close(figure)  # which takes its canvas
        return FigureCanvasAgg(figure).figure

    return cache(draw)


# Those with long words and texts are drawn in a narrow column, the others with their details.
WORDY = ("long", "longer", "german", "causal", "one word")
DETAILED = ("verified", "apple", "pair", "unmeasured", "of an older version")
SHAPES = [
    (40, False, WORDY),
    (89, True, DETAILED),
    *(
        pytest.param(width, details, WORDY + DETAILED, marks=pytest.mark.long)
        for width in (40, 60, 89, 120, 183, 300)
        for details in (False, True)
    ),
]


@pytest.mark.parametrize(("width", "details", "names"), SHAPES)
def test_nothing_overlaps_and_a_column_is_no_taller_than_a_page(
    several, drawn, width, details, names
):
    assert {*several} == {*WORDY, *DETAILED}
    for name in names:
        figure = drawn(name, width, details)
        check_layout(figure)
        assert width < 89 or figure.get_size_inches()[1] * 25.4 <= 247, name


def test_two_panels_by_default_and_all_others_with_details(several, drawn):
    for name in DETAILED:
        result = several[name]
        titles = panels(drawn(name, 89, details=False))
        assert len(titles) == 2 - (result.plane is None), name
        assert titles[-1].startswith("What ")
        others = panels(drawn(name, 89, details=True))
        assert {"By word", "Directly, by head", "Residual stream"} < set(others)
        assert ("Between the regions" in others) == (result.path is not None)
        assert ("Total effect" in others) == ("Direct effect" in others) == (name == "verified")
        assert not set(others) & set(titles)


def test_every_panel_of_the_details_has_a_name_on_its_horizontal_axis(drawn):
    for figure in (drawn("verified", 89, details=True), drawn("apple", 183, details=True)):
        panels = [ax for ax in figure.axes if ax.axison and ax.get_label().isdigit()]
        bars = [ax for ax in panels if ax.get_ylabel() == "contribution"]
        assert all(ax.get_xlabel() for ax in panels if ax not in bars)


def test_the_bars_are_the_measured_numbers(sat):
    result = sat
    figure = attnviz.plot.shift(result)
    heights = [
        bar.get_height() for ax in figure.axes for bar in ax.patches if bar.get_width() < 0.5
    ]
    brought = [result.share(n) for n in result.credit[1:-1]]
    lost = [result.share(n) for n in result.effect[result.sources]]
    assert sorted(heights) == pytest.approx(sorted([*brought, *lost]), abs=1e-9)
    shown = texts_of(result)
    top, most = max(brought), max(lost)
    assert {f"{top:.2f}"[1:], f"{most:.2f}"[1:]} <= set(shown)
    assert "[CLS]" not in shown  # in this reference special tokens can always be read
    assert {"← 0: money", "1: water →", "static", "alone", "here", "layer 1"} <= set(shown)


def test_long_bars_have_their_whole_number(shores):
    result = shores
    river = result.names.index("river")
    long = 10.25 * result.way
    assert "10.25" in texts_of(altered(result, river, *[long] * 4))
    assert "\N{MINUS SIGN}10.25" in texts_of(altered(result, river, *[-long] * 4))


def test_words_that_do_not_fit_are_counted_with_their_sum(several):
    result = several["longer"]
    shown = texts_of(result, width=89)
    skipped = [text for text in shown if text.startswith("… ")]
    counts = [int(text.split()[1]) for text in skipped]
    sums = [float(text.split()[4].replace("\N{MINUS SIGN}", "-")) for text in skipped]
    figure = attnviz.plot.shift(result, width=89)
    bars = [bar for ax in figure.axes for bar in ax.patches if bar.get_width() < 0.5]
    brought = [bar.get_height() for bar in bars if to_hex(bar.get_facecolor()) == "#ffffff"]
    lost = [bar.get_height() for bar in bars if to_hex(bar.get_facecolor()) != "#ffffff"]
    assert len(skipped) > 1
    assert sum(counts) + len(brought) == len(result.words) - sum(result.special)
    rest = result.share(result.credit.sum()) - sum(brought)
    assert sum(sums) == pytest.approx(rest, abs=0.005 * len(sums))
    assert max(lost) == pytest.approx(result.share(result.effect.nan_to_num().max()))


@pytest.mark.parametrize("width", [89, pytest.param(183, marks=pytest.mark.long)])
def test_a_caption_has_two_lines_and_all_is_in_the_description(several, drawn, width):
    for name, result in several.items():
        figure = drawn(name, width, details=False)
        source = "read by"
        lines = [t.get_text() for t in figure.texts if t.get_fontsize() == style.SMALL_SIZE]
        first = next(n for n, line in enumerate(lines) if source in line)
        verdict = next(n for n, line in enumerate(lines) if "verified" in line.lower())
        assert verdict - first <= 2
        assert "completeness error" in figure.get_label()
        assert ("what is lost in" in figure.get_label()) == (result.effect is not None)


def test_the_caption_explains_only_what_is_shown(bank, mud):
    for result, is_ranked in ((bank, True), (mud, False)):
        shown = words_of(result, details=True, caption="full")
        assert ("ρ" in shown) == is_ranked == bool(result.rank_correlations)
        assert "units of the hidden state" in shown


def test_the_command_draws_the_details(tmp_path):
    path = tmp_path / "x.svg"
    for option in ([], ["--details"]):
        assert run(["shift", "bank", CASH, "-o", str(path), *option]) == 0
        svg = path.read_text()
        assert ("Residual stream" in svg) == bool(option)
        assert ("through the layers" in svg) != bool(option)


@pytest.mark.parametrize(
    "suffix",
    [
        ".json",
        *(pytest.param(one, marks=pytest.mark.long) for one in (".png", ".npz", ".safetensors")),
    ],
)
def test_the_command_writes_each_format(tmp_path, capsys, suffix):
    path = tmp_path / f"x{suffix}"
    assert run(["shift", "bank", PAIR, "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert "compared with “The bank was full of mud.”" in out
    out = " ".join(out.split())
    assert "“cash” in place of “mud” moves “bank” by 4.18" in out
    assert "All of it starts at “cash” (“mud” in the reference), the only difference." in out
    assert "correlation" not in out  # only one word differs, so there is no ranking
    assert "by raw attention" in out
    assert [*tmp_path.iterdir()] == [path]
    if suffix == ".json":
        data = json.loads(path.read_text())
        assert data["completeness_error"] < 1e-5
        assert data["tokens"][6] == "cash"
        assert data["causal_mask"][0] is None
        assert data["agreement"]["verdict"] == "verified"


def test_a_text_that_is_too_long_is_not_truncated(model):
    with pytest.raises(InputError, match=r"has 605 tokens, and .* at most 512\. Shorten"):
        attnviz.shift("bank", "the bank " + "and " * 601, model=model)


@pytest.mark.parametrize("text", ["the bank of {a|b|c}", "the bank of {|b}"])
def test_braces_without_two_sides(model, text):
    with pytest.raises(InputError, match="does not have two sides"):
        attnviz.shift("bank", text, model=model)


def test_a_pair_in_python_too(shift):
    result = shift("bank", "The {muddy|rich} bank was full of {mud|cash}.")
    assert result.provenance.text == "The rich bank was full of cash."
    assert result.reference == "“The muddy bank was full of mud.”"
    assert result.decomposition.credit_error < 1e-5
    assert repr(result).startswith("ShiftResult('bank' in 'The rich bank")
    assert len(repr(result.decomposition)) + len(repr(result.residual_stream)) < 200


def test_only_words_that_can_be_read_are_ranked(tokenizer):
    """In a causal model, words after the target have no effect."""
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    text = "the bank was full of cash that old farmers brought"
    result = attnviz.shift("full", text, model=model)
    assert [result.words[at] for at in result.sources] == ["the", "bank", "was"]
    later = result.causal["knock-out"][result.at + 1 : -1]
    assert later.abs().max() < 1e-4
    few = attnviz.shift("was", text, model=model)
    assert few.rank_correlations == {}


@pytest.mark.usefixtures("without_changed_words")
def test_regions_that_are_one_point_at_first_have_no_distance_there(small):
    regions = {"money": "the bank lends", "river": "the bank floods"}
    result = attnviz.shift("bank", "the bank of cash", toward=regions, model=small)
    assert result.distances[0].isnan().all()
    assert not result.path.isnan().any()


@pytest.mark.usefixtures("without_changed_words")
def test_inflections_count_in_regions_and_texts_without_the_word_are_named(small):
    def end(texts):
        regions = {"one": texts, "two": ["the river bank"]}
        return attnviz.shift("bank", CASH, toward=regions, model=small)

    assert end(["Two banks merged."]).notes == ()
    (note,) = end(["Two banks merged.", "No such thing."]).notes
    assert "“bank” is not in 1 of 2 texts of one" in note


def test_a_reference_with_another_word_is_reported(shift):
    (note,) = shift("bank", "the {river|bank} of cash").notes
    assert "the reference has another word in this place" in note


def test_threads_wait_for_each_other(small, anew):
    alone = attnviz.shift("bank", CASH, model=small).decomposition.credit
    with ThreadPoolExecutor(3) as pool:
        both = list(pool.map(lambda _: attnviz.shift("bank", CASH, model=small), range(3)))
    for result in both:
        assert_close(result.decomposition.credit, alone)


@pytest.mark.parametrize("family", ["qwen3-next", "afmoe"])
def test_a_gate_on_attention_is_no_mlp(family, tokenizer):
    result = attnviz.shift("bank", CASH, model=attnviz.load(tiny(family), tokenizer=tokenizer))
    assert (result.residual_stream.attention.abs().sum((1, 2)) > 1e-3).all()
    assert result.residual_stream.error < 1e-5


def test_experts_that_are_not_traced_are_named(tokenizer):
    result = attnviz.shift("bank", CASH, model=attnviz.load(tiny("mixtral"), tokenizer=tokenizer))
    assert "only 0 MLPs were found in 2 layers" in " ".join(result.notes)


def test_a_word_that_nothing_moves_is_refused(tokenizer):
    model = attnviz.load(tiny("gpt2"), tokenizer=tokenizer)
    with pytest.raises(InputError, match=r"Nothing moves '\[CLS\]'"):
        attnviz.shift("[CLS]", CASH, model=model)


@pytest.mark.usefixtures("without_changed_words")
def test_a_narrower_dtype_only_adds_rounding():
    result = attnviz.shift("bank", CASH, model=attnviz.load(dtype="bfloat16"))
    assert "rounding in bfloat16; use float32" in result.notes[0]
    assert result.agreement.parts["weights"] == "verified"
    assert "NOT VERIFIED: the sums of the parts are off by" in result.agreement.summary()


def test_a_pair_with_a_reference_is_refused(capsys):
    assert run(["shift", "bank", "the bank of {mud|cash}", "--reference", "the bank of sand"]) == 2
    assert "and a reference are given. Give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "Olmoe", "DeepseekV3"])
def test_parts_add_up_where_a_token_has_other_experts_in_the_reference(
    name, tokenizer, monkeypatch
):
    torch.manual_seed(0)
    model_class = getattr(transformers, f"{name}Model")
    module = model_class(model_class.config_class(
        vocab_size=30522, hidden_size=32, intermediate_size=32, moe_intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, num_experts=8,
        num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=0, pad_token_id=0,
        q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=8, qk_nope_head_dim=8,
    )).eval()  # fmt: skip
    chosen, mixture = [], deeplift._mixture

    def watched(experts, x, top_k_index, top_k_weights):
        chosen.append(top_k_index.sort(-1).values)
        return mixture(experts, x, top_k_index, top_k_weights)

    monkeypatch.setattr(deeplift, "_mixture", watched)
    result = attnviz.shift("bank", CASH, model=attnviz.load(module, tokenizer=tokenizer))
    assert any(not torch.equal(*one.chunk(2)) for one in chosen)
    assert result.decomposition.error < 1e-5
    assert result.agreement.verdict == "verified"


def test_contributions_that_do_not_add_up_are_reported(tokenizer):
    """Its experts multiply by up + 1, which is no sum of parts once the gate is frozen."""
    result = attnviz.shift("bank", CASH, model=attnviz.load(tiny("gpt-oss"), tokenizer=tokenizer))
    assert result.residual_stream.error > 1e-3
    assert "the parts miss the whole by" in result.notes[0]
    assert "the sums of the parts are off by" in result.agreement.summary()


def test_a_split_of_other_runs_is_not_verified(small, monkeypatch):
    """The ends of the split are those of the model as loaded, or the shift is not verified."""
    assert "off by" not in attnviz.shift("bank", CASH, model=small).agreement.summary()
    honest = compute.split_stream

    def other_ends(*args, **options):
        stream = honest(*args, **options)
        return replace(stream, total=stream.total + 0.01, bias=stream.bias + 0.01)

    monkeypatch.setattr(compute, "split_stream", other_ends)
    report = attnviz.shift("bank", CASH, model=small).agreement
    assert "the lengths of the shift are off by" in report.summary()


def test_a_model_that_cannot_be_traced_is_refused_in_one_line(tokenizer):
    with pytest.raises(ModelError, match="The blocks of FunnelModel cannot be traced"):
        attnviz.shift("bank", CASH, model=attnviz.load(tiny("funnel"), tokenizer=tokenizer))


def test_a_region_without_a_name_gets_an_example(capsys):
    assert run(["shift", "bank", CASH, "--toward", "river"]) == 2
    assert 'Write --toward river="We sat on the bank.", for example.' in capsys.readouterr().err


def test_a_model_whose_states_end_before_its_last_norm_is_verified(tokenizer):
    config = CLIPTextConfig(
        vocab_size=30522, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, bos_token_id=101, eos_token_id=102, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = attnviz.load(CLIPTextModel(config).eval(), tokenizer=tokenizer)
    report = attnviz.shift("bank", CASH, model=model).agreement
    assert "off by" not in report.summary()


def test_gradients_may_be_off_outside(small):
    with torch.no_grad():
        result = attnviz.shift("bank", "bank closed", model=small)
        assert not torch.is_grad_enabled()
    assert result.decomposition.error < 1e-5


def test_words_of_a_long_text_are_changed_in_one_way(several):
    assert list(several["longer"].causal) == ["mask"]
    assert several["longer"].lost == "lost by masking it"
