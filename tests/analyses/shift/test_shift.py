"""What moved a word: exact contributions, an independent causal check, and clear errors."""

from dataclasses import replace
from itertools import cycle

import matplotlib.pyplot as plt
import pytest
import torch
import transformers
from commands import run
from families import tiny
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from readable_text import check_layout
from scipy.stats import spearmanr
from torch.testing import assert_close
from transformers import CLIPTextConfig, CLIPTextModel

import attnviz
from attnviz import InputError

CASH = "The bank was full of cash."
PAIR = "The bank was full of {mud|cash}."
SAT = "We sat on the bank of the river."
SIDES = {"water": "Reeds grew along the muddy bank.", "money": "The bank lends money."}
SHORES = {
    "water": "The boat drifted past the bank of the lake.",
    "money": "The bank approved the loan.",
}
CLAIM = "#c4122f"  # the color of what the title says
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
def bank(shift):
    return shift("bank", CASH)


@pytest.fixture(scope="module")
def verified(shift):
    return shift("bank", CASH, verify_causally=True)


@pytest.fixture(scope="module")
def shores(shift):
    return shift("bank", SAT, toward=SHORES)


@pytest.fixture(scope="module")
def mud(shift):
    return shift("bank", PAIR)


@pytest.fixture(scope="module")
def apple(shift):
    return shift("apple", "I love apple phones", toward=REGIONS)


def states_of(model, text, at):
    """Return what a word is as it enters each layer and at the end, from a plain run."""
    ids = model.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        states = model.module(**ids, output_hidden_states=True).hidden_states
    return torch.stack(states)[:, 0, at].double()


def end_of(model, text, at):
    return states_of(model, text, at)[-1]


def test_the_contributions_add_up(bank, apple):
    for result in (bank, apple):
        assert result.decomposition.error < 1e-5
        assert result.decomposition.credit_error < 1e-5
        assert result.residual_stream.error < 1e-5
        assert result.agreement.verdict == "verified"


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
    assert verified.causal["mask"][[0, 2, 8]].isnan().all()  # special tokens, and the word itself
    at = verified.sources
    effects = torch.stack([each[at] for each in verified.causal.values()])
    size = effects.std(1, correction=0, keepdim=True)
    assert_close(verified.consensus[at], (effects * size.mean() / size).mean(0))
    assert list(verified.rank_correlations) == [*verified.causal, "consensus"]
    rounded = {name: lost.round(decimals=1) for name, lost in verified.causal.items()}  # with ties
    for name, lost in rounded.items():
        rho = spearmanr(verified.credit[at], lost[at]).statistic
        ranked = replace(verified, causal=rounded).rank_correlations
        assert ranked[name] == pytest.approx(rho)
    same = dict.fromkeys(rounded, torch.zeros(9).double())
    assert replace(verified, causal=same).rank_correlations == {}
    assert verified.direct_effect.shape == verified.total_effect.shape == (6, 12)
    direct, total = verified.head_rank_correlations.values()
    assert direct > 0.95 > total > 0.6
    # A head of the last layer has no other path. Elsewhere it has.
    direct, total = verified.direct_effect, verified.total_effect
    assert_close(total[-1], direct[-1], atol=1e-5, rtol=1e-4)
    assert (total - direct)[:-1].abs().max() > 0.05
    assert bank.direct_effect is bank.total_effect is None
    assert bank.head_rank_correlations == {}


def test_the_mask_as_reference(model, shift):
    result = shift("bank", CASH, reference="mask")
    alone = end_of(model, "[MASK] bank [MASK] [MASK] [MASK] [MASK] [MASK]", 2)
    delta = end_of(model, CASH, 2) - alone
    assert result.decomposition.length == pytest.approx(delta.norm().item(), rel=1e-4)
    assert result.reference == "the same text, where all other words are [MASK]"
    assert result.decomposition.error < 1e-5
    assert result.credit[[0, 2, 8]].abs().max() < 1e-5  # only masked words differ at the start


def test_a_neighbor_moves_apple_toward_its_sense(shift, apple):
    pie = shift("apple", "I love apple pie", toward=REGIONS)
    neighbor = 4
    assert apple.words[neighbor] == "phones"
    assert apple.credit[neighbor] > 0 > pie.credit[neighbor]
    assert apple.causal["mask"][neighbor] > 0 > pie.causal["mask"][neighbor]
    assert apple.place[0, -1] > pie.place[0, -1]
    assert apple.place[0, 0] == pytest.approx(
        pie.place[0, 0].item()
    )  # the static embedding is the same
    for result in (apple, pie):  # distances and the place on the axis form one triangle
        to_tech, to_fruit = result.distances[-1]
        assert_close(result.place[0, -1], (1 + to_fruit**2 - to_tech**2) / 2)


def places_of(states, centers):
    """Return the places of states (L, d) between two centers (L, 2, d), and those of the centers.

    By hand, layer by layer, with vectors of one mean norm.
    """
    places, rails, end = [], [], centers[-1].norm(dim=-1).mean()
    way = (centers[-1, 0] - centers[-1, 1]).norm()
    for state, pair in zip(states, centers, strict=True):
        scale = end / pair.norm(dim=-1).mean()
        (first, second), state = pair * scale, state * scale
        gap = first - second
        middle = (first + second) / 2
        off = (state - middle) @ gap / gap.norm() if gap.norm() > 1e-6 * end else 0.0 * way
        places.append(0.5 + off / way)
        rails.append([0.5 + gap.norm() / 2 / way, 0.5 - gap.norm() / 2 / way])
    return torch.stack(places), torch.tensor(rails).double().T


@pytest.mark.usefixtures("without_changed_words")
def test_a_decoder_has_the_same_definition_of_place(tokenizer):
    """It begins in the middle, where both regions are one point, and ends as the shift does."""
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    regions = {"one": "we saw the bank", "other": "sell their bank"}
    moved = attnviz.shift("bank", "cash filled the bank", toward=regions, model=model)
    middle = torch.full((2,), 0.5).double()
    assert_close(moved.place[:, 0], middle)
    assert_close(moved.rails[:, 0], middle)
    here, other = moved.place[:, -1]
    assert (here - other).item() == pytest.approx(moved.share(moved.decomposition.total), rel=1e-4)
    ends = [states_of(model, text, at) for text, at in zip(regions.values(), (4, 3), strict=True)]
    centers, states = torch.stack(ends, 1), states_of(model, "cash filled the bank", 4)
    places, rails = places_of(states[1:], centers[1:])
    assert_close(moved.place[0, 1:], places, atol=1e-5, rtol=1e-5)
    assert_close(moved.rails[:, 1:], rails, atol=1e-5, rtol=1e-5)


def test_without_regions_the_place_is_along_the_shift_in_units_of_the_norm(model, shift):
    moved = shift("bank", SAT)
    states = states_of(model, SAT, moved.positions[moved.at][0])
    along = moved.decomposition.direction.double()
    here, other = moved.place
    assert_close(other, torch.zeros_like(other))
    assert [here[0].item(), here[-1].item()] == pytest.approx([0, 1], abs=1e-6)
    assert moved.size == pytest.approx(states[-1].norm().item(), rel=1e-5)
    assert moved.way == moved.decomposition.total
    # The reference of the first layer reads nothing else: its norm is that of the text.
    assert moved.rails is None
    assert (here[1:-1] * (states[-1] @ along)).abs().max() < 2 * moved.size


def printed(share):
    """Return a share as it is printed: .34, or 1.02."""
    return f"{share:.2f}".removeprefix("0")


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
    assert moved.place[0, -1].item() == pytest.approx(place.item(), rel=1e-4)
    same = {"tech": "I love it", "fruit": "we love it"}  # no content word differs: each counts
    assert "“love”" in attnviz.shift("apple", text, toward=same, model=small).notes[0]
    figure = attnviz.plot.shift(moved)
    assert "in no text of tech" in " ".join(one.get_text() for one in figure.texts)
    plt.close(figure)


def altered(result, index, *effects):
    """Return a result in which changing a word has other effects, by the kind of change."""
    causal = {}
    for (name, effect), other in zip(result.causal.items(), effects, strict=True):
        causal[name] = effect.clone()
        causal[name][index] = other
    return replace(result, causal=causal)


def credited(result, **shares):
    """Return a result in which words have other credits, in shares of the way; the rest is last."""
    credit = torch.zeros_like(result.decomposition.credit)
    for name, share in shares.items():
        (position,) = result.positions[result.names.index(name)]
        credit[position] = share * result.way
    total = float(credit.sum())
    place = result.place.clone()
    place[0, -1] = place[1, -1] + total / result.way
    split = replace(result.decomposition, credit=credit, total=total)
    return replace(result, decomposition=split, place=place)


def test_the_title_follows_the_credit_and_what_masking_takes(shores):
    """Each rule of the title, in their order."""
    way, words = shores.way, [shores.names.index(name) for name in ("river", "of", "sat")]

    def title(credits, river=0.0, of=0.0, sat=0.0):
        result = credited(shores, **credits)
        nothing = {name: 0 * effect for name, effect in result.causal.items()}
        result = replace(result, causal=nothing)
        for index, lost in zip(words, (river, of, sat), strict=True):
            result = altered(result, index, *[lost * way] * 4)
        return result.headline, result.strongest

    river = words[0]
    small = {"river": 0.3, "of": -0.25}
    assert title(small, 0.3) == ("Nothing here moves “bank” far toward water or money", None)
    many = {"river": 0.09, "of": 0.09, "sat": 0.08}
    assert title(many, 0.3) == ("No single word moves “bank” toward water", None)
    most = {"river": 0.4, "of": 0.2}
    more = "“river” is credited most, but masking “of” moves “bank” more"
    assert title(most, river=0.2, of=0.31) == (more, None)
    assert title(most, river=0.03, of=0.11) == (more, None)
    little = "“river” gets the most credit for moving “bank”, but masking it changes little"
    assert title(most, river=0.09, of=0.09) == (little, None)
    assert title(most, river=-0.4) == (little, None)
    assert title(most, river=0.11, of=0.16) == ("“river” pulls “bank” toward water", river)
    back = {"river": -0.4, "of": -0.1, "sat": 0.1}
    assert title(back, river=-0.2) == ("“river” pulls “bank” toward money", river)
    tie = {"river": 0.301, "of": 0.304}
    alike = "“of” and “river” get the most credit for moving “bank” toward water, and alike"
    assert title(tie, river=0.3) == (alike, None)


def test_a_word_that_hardly_moves_is_moved_by_none(shift):
    """Without regions each share is one of the shift itself, however short that is."""
    result = shift("bank", CASH)
    assert result.strongest is not None
    small = replace(result, size=300 * result.way)
    assert small.headline == "Nothing here moves “bank” far"
    assert small.strongest is small.credited is None


def test_of_two_differences_no_word_is_named_as_a_cause(shift):
    pair = shift("bank", "The {muddy|rich} bank was full of {mud|cash}.")
    assert pair.entries == [2, 7]
    assert pair.strongest is None
    rich, cash = (pair.share(pair.credit[n]) for n in pair.entries)
    assert pair.headline.startswith(
        "“rich” and “cash” in place of “muddy” and “mud” move “bank” by"
    )
    starts = f"{printed(rich)} starts at “rich” and {printed(cash)} starts at “cash”."
    assert starts in pair.conclusion()
    assert pair.is_all_paths


def test_a_pair_of_the_word_itself_has_what_it_starts_with(shift):
    pair = shift("bank", "the {river|bank} of cash")
    assert pair.entries == [pair.at]
    own = pair.decomposition.start / pair.decomposition.total
    assert pair.headline == f"{own:.0%} of what parts “bank” from “river” is in the words alone"
    assert f", besides {printed(own)} that it starts with." in pair.conclusion()
    assert pair.is_all_paths
    assert "the reference has another word in this place" in pair.notes[0]


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("text", [SAT, CASH, "He robbed the bank.", "bank bank the bank"])
@pytest.mark.parametrize("reference", ["gate", "mask"])
def test_the_word_itself_is_never_credited(shift, text, reference):
    given = {} if reference == "gate" else {"reference": reference}
    result = shift("bank#1" if "bank bank" in text else "bank", text, **given)
    credit = result.decomposition.credit.clone()
    credit[list(result.positions[result.at])] = 100.0
    loud = replace(result, decomposition=replace(result.decomposition, credit=credit))
    assert loud.headline == result.headline
    assert loud.strongest != result.at


PLACES = [
    (SAT, {}), (SAT, {"toward": SIDES}), (PAIR, {}), (PAIR, {"toward": SIDES}),
    (CASH, {"reference": "mask"}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "given"), PLACES)
def test_the_paths_end_where_the_shift_ends(model, shift, text, given):
    """Both ends again from plain runs; between them is the total of the decomposition."""
    result = shift("bank", text, **given)
    (here, other), total = result.place[:, -1].tolist(), result.share(result.decomposition.total)
    assert here - other == pytest.approx(total, abs=1e-5)
    assert result.place.shape == (2, 7)
    assert_close(result.place[0, 0], result.place[1, 0])  # the same static vector
    read = result.provenance.text
    end = end_of(model, read, result.positions[result.at][0])
    assert result.size == pytest.approx(end.norm().item(), rel=1e-5)
    assert result.along(result.parts) == pytest.approx(
        [abs(total) / total * share for share in result.shares(result.parts)]
    )
    assert sum(result.along(result.parts)) == pytest.approx(abs(total), abs=1e-5)


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
    text = "It was unbelievably late"
    ends = torch.stack([states_of(small, text, at)[-1] for at in range(3, 8)])
    assert result.size == pytest.approx(ends.mean(0).norm().item(), rel=1e-5)
    assert result.notes == ("“unbelievably” is 5 pieces, averaged",)
    assert result.decomposition.error < 1e-5


@pytest.mark.parametrize(
    ("word", "given", "message"),
    [
        ("bnak", {}, "'bnak' is not a word of the text. Did you mean bank"),
        ("bank", {"toward": {"one": ["river"], "two": []}}, "The region 'two' has no text"),
        ("bank", {"reference": "gates"}, "Did you mean gate?"),
        ("bank", {"target": "x"}, "shift reads text only. Leave target out"),
        ("bank", {"reference": [CASH, CASH]}, "The other text is a list of texts"),
        ("bank", {"reference": 7}, "In the other text: The text must be a string, not int"),
    ],
)
def test_invalid_input_is_one_line(model, word, given, message):
    with pytest.raises(InputError, match=message):
        attnviz.shift(word, CASH, model=model, **given)


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
        "one word": shift("bank", "bank closed"),
    }


def test_nothing_overlaps_and_a_column_is_no_taller_than_a_page(several):
    """Those with long words and texts in a narrow column."""
    for name, result in several.items():
        width = 89 if name in ("verified", "apple", "pair", "unmeasured") else 40
        figure = attnviz.plot.shift(result, width=width)
        check_layout(figure)
        plt.close(figure)
        assert width < 89 or figure.get_size_inches()[1] * 25.4 <= 247, name


def picture_of(result, **options):
    """Read a figure: its bricks (x, middle, height), the rows of its table, inches of the way."""
    figure = attnviz.plot.shift(result, **options)
    check_layout(figure)
    plt.close(figure)
    ax = figure.axes[-1]
    bricks = [one for one in ax.patches if isinstance(one, Rectangle) and one.get_zorder() == 3]
    bricks = [(b.get_x(), b.get_y() + b.get_height() / 2, b.get_height()) for b in bricks]
    right = max(x for x, *_ in bricks)
    rows, zoom = {}, 1.0
    for text in ax.texts:
        x, y = text.get_position()
        if text.get_text().startswith("× "):
            zoom = float(text.get_text()[2:])
        elif x > right + 0.05 and text.get_text():
            rows.setdefault(round(y, 4), []).append((x, text.get_text()))
    table = [(y, [text for _, text in sorted(row)]) for y, row in sorted(rows.items())]
    left = min(x for x, *_ in bricks)
    places = [(t.get_text(), t.get_position()) for t in ax.texts if t.get_ha() == "right"]
    heights = {text: y for text, (x, y) in places if x < left and text in ("0", "1")}
    return bricks, table, (heights["0"] - heights["1"]) * zoom, ax


def number(text):
    return float(text.replace("\N{MINUS SIGN}", "-"))


def as_drawn(name):
    """Return a numbered word as it is drawn: the² for the#2."""
    word, _, number = name.partition("#")
    return word + number.translate(str.maketrans("123456789", "¹²³⁴⁵⁶⁷⁸⁹"))


@pytest.fixture(scope="module")
def pictured(several, shores, bank, mud, shift):
    """Return results by name, with words that push back, and a gap that is enlarged."""
    back = {"water": ["We sat by the bank of a lake."], "money": ["The bank lends money."]}
    lent = shift("bank", "The bank by the river lent money to the boat company.", toward=back)
    sat = shift("bank", SAT, toward=SIDES)
    return {**several, "sat": sat, "shores": shores, "bank": bank, "mud": mud, "back": lent}


NAMES = ("sat", "shores", "bank", "mud", "back", "apple", "long", "german", "causal")


@pytest.mark.parametrize(("name", "width"), [*zip(NAMES, cycle((89, 183)), strict=False)])
def test_the_bricks_are_what_words_add_and_sum_to_the_gap(pictured, name, width):
    """In inches of the page, and as printed; a second stack leads back."""
    result = pictured[name]
    bricks, table, way, _ = picture_of(result, width=width)
    columns = sorted({round(x, 4) for x, *_ in bricks})
    first, *second = (sum(h for x, _, h in bricks if round(x, 4) == one) for one in columns)
    gap = abs(result.decomposition.total / result.way)
    rounded = 0.01 * first  # the enlargement is printed with one digit
    assert first - sum(second) == pytest.approx(gap * way, abs=0.6 / 25.4 + rounded)
    header, *rows, total = [row for _, row in table]
    assert header == ["adds", *result.changed[:1]]
    assert total == ["gap", printed(gap)]
    adds = sum(number(row[1]) for row in rows)
    assert adds == pytest.approx(gap, abs=0.005 * (len(rows) + 1) + 0.6 / 25.4 / way)
    # Each brick is as tall as what its word adds, and beside it stands what masking it takes.
    sign = 1 if result.decomposition.total > 0 else -1
    credit = result.credit if result.is_all_paths else result.direct
    takes = next(iter(result.causal.values()))
    labels = {as_drawn(word): n for n, word in enumerate(result.names)}
    tall = [height for _, _, height in sorted(bricks, key=lambda b: b[1])]
    for height, (label, *numbers) in zip(tall, rows, strict=True):
        if label.endswith(("other", "others", "itself")):
            continue
        (index,) = [n for one, n in labels.items() if one == label or is_shortened(label, one)]
        added, taken = (sign * of[index].item() / result.way for of in (credit, takes))
        assert height == pytest.approx(abs(added) * way, rel=0.02)
        assert [number(text) for text in numbers] == pytest.approx([added, taken], abs=0.006)


def is_shortened(label, word):
    start, dots, end = label.partition("…")
    return bool(dots) and word.startswith(start) and word.endswith(end)


def test_the_claim_is_red_in_its_bar_its_numbers_and_its_frame(shores):
    bricks, table, _, ax = picture_of(shores)
    red = [text.get_text() for text in ax.texts if to_hex(text.get_color()) == CLAIM]
    assert red == ["river", printed(shores.share(shores.causal["mask"][shores.strongest]))]
    bars = [bar for container in ax.containers for bar in container]
    (bar,) = [one for one in bars if to_hex(one.get_facecolor()) == CLAIM]
    claim = [one for one in ax.patches if to_hex(one.get_edgecolor()) == CLAIM]
    assert [one.get_zorder() for one in claim] == [5]  # the frame, of one brick
    middle = claim[0].get_y() + claim[0].get_height() / 2
    row = table[[text[0] for _, text in table].index("river")][0]
    assert bar.get_y() + bar.get_height() / 2 == pytest.approx(row, abs=1e-3)
    assert min(bricks, key=lambda b: abs(b[1] - middle))[1] == pytest.approx(middle)
    assert abs(row - middle) < 0.1


def test_a_claim_that_is_not_confirmed_has_no_frame(shores):
    weak = altered(shores, shores.names.index("river"), *[0.0] * 4)
    _, _, _, ax = picture_of(weak)
    assert not [one for one in ax.patches if to_hex(one.get_edgecolor()) == CLAIM]
    assert 0.55 in [one.get_alpha() for one in ax.patches]


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
    assert not result.place.isnan().any()
    assert_close(result.place[:, 0], torch.full((2,), 0.5).double())


@pytest.mark.usefixtures("without_changed_words")
def test_inflections_count_in_regions_and_texts_without_the_word_are_named(small):
    def end(texts):
        regions = {"one": texts, "two": ["the river bank"]}
        return attnviz.shift("bank", CASH, toward=regions, model=small)

    assert end(["Two banks merged."]).notes == ()
    (note,) = end(["Two banks merged.", "No such thing."]).notes
    assert "“bank” is not in 1 of 2 texts of one" in note


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
    assert result.agreement.verdict == "verified"


def test_a_pair_with_a_reference_is_refused(capsys):
    assert run(["shift", "bank", "the bank of {mud|cash}", "--reference", "the bank of sand"]) == 2
    assert "and a reference are given. Give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "Olmoe", "DeepseekV3"])
def test_parts_add_up_where_a_token_has_other_experts_in_the_reference(name, tokenizer):
    torch.manual_seed(0)
    model_class = getattr(transformers, f"{name}Model")
    module = model_class(model_class.config_class(
        vocab_size=30522, hidden_size=32, intermediate_size=32, moe_intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, num_experts=8,
        num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=0, pad_token_id=0,
        q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=8, qk_nope_head_dim=8,
    )).eval()  # fmt: skip
    chosen = []

    def watch(_, x, top_k_index, top_k_weights):
        chosen.append(top_k_index.sort(-1).values)

    for path, part in module.named_modules():
        if path.endswith(".experts"):
            part.register_forward_pre_hook(lambda of, args: watch(of, *args))
    result = attnviz.shift("bank", CASH, model=attnviz.load(module, tokenizer=tokenizer))
    pairs = [one.chunk(2) for one in chosen if len(one) % 2 == 0]
    assert any(not torch.equal(*both) for both in pairs)
    assert result.decomposition.error < 1e-5
    assert result.agreement.verdict == "verified"


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
