"""Worked examples: which printed numbers follow from the inputs, and which do not."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as attention

import attnviz

LAW = settings(deadline=None, max_examples=15, derandomize=True)


@pytest.fixture(scope="module")
def phones():
    return attnviz.example("phones")


@pytest.fixture
def make(tmp_path):
    def written(**fields):
        path = tmp_path / "own.json"
        path.write_text(json.dumps(fields), encoding="utf-8")
        return attnviz.example(file=path)

    return written


def stage(worked, key):
    (found,) = (each for each in worked.stages if each.name == key)
    return found


def states_of(found):
    return found.states.tolist()


def wrong(worked, key, way="from_printed"):
    """Return the names of the cells that do not follow."""
    found = stage(worked, key)
    cells = (~getattr(found, f"{way}_follows")).nonzero().tolist()
    return [(found.rows[i], found.columns[j]) for i, j in cells]


def test_each_cell_of_phones_is_in_one_of_four_states(phones):
    """By half a unit alone, four attention vectors do not follow from the printed weights and V."""
    vectors = stage(phones, "head output")
    weights, V = stage(phones, "weights").printed, stage(phones, "V").printed
    exact = (weights @ V - vectors.printed).abs() <= 0.0005 + 1e-12
    assert exact.sum() == 4
    assert torch.equal(vectors.from_printed_exactly, exact)
    assert states_of(vectors) == [["inherited"] * 2] * 4
    scores = states_of(stage(phones, "scores"))
    assert scores[0] == [*["inherited"] * 3, "follows exactly"]  # 1.74 is printed, and right
    assert scores[1] == scores[3] == [*["inherited"] * 3, "does not follow"]
    assert [one.key for one in stage(phones, "K").matrices()] == ["printed", "from the inputs"]
    keys = states_of(stage(phones, "K"))
    assert keys[1] == ["follows exactly", "does not follow"]
    joined = states_of(stage(phones, "concatenated"))
    assert joined == [["inherited"] * 2 + ["cannot be checked"] * 2] * 4


def test_the_counts_of_phones(phones):
    assert phones.count() == {
        "does not follow": 15, "inherited": 45, "within rounding": 0, "cannot be checked": 8,
        "follows exactly": 12,
    }  # fmt: skip
    said = "printed: 15 wrong, 45 inherited, 8 cannot be checked, 12 exact"
    assert phones.summary() == f"{said}; slips: K, V, scores"
    assert phones.slips == ("K", "V", "scores")
    assert stage(phones, "concatenated").notes == ("the matrices of the second head are not given",)


def test_a_cell_that_follows_from_the_inputs_may_follow_from_rounded_ones(make):
    """1.46² is 2.13, and 1.5 · 1.46 is 2.19: nothing is wrong."""
    printed = {"Q": [[1.5]], "scores": [[2.13]]}
    worked = make(X=[[1.46]], W_q=[[1]], W_k=[[1]], printed=printed)
    assert states_of(stage(worked, "Q")) == [["follows exactly"]]
    assert states_of(stage(worked, "scores")) == [["within rounding"]]
    assert worked.finding() == "All 2 printed numbers of the example follow from its inputs"


def test_a_stage_that_the_inputs_give_exactly_is_not_rounded(phones):
    """Printed Q is X·W_q, so that only K, with one decimal, can move a score."""
    scores, Q = stage(phones, "scores"), stage(phones, "Q").printed
    expected = 0.005 + 0.05 * Q.abs().sum(1, keepdim=True)
    torch.testing.assert_close(scores.slack_from_printed, expected.expand(4, 4))


def test_no_weight_of_likes_is_the_softmax_of_its_scores():
    likes = attnviz.example("likes")
    (weights,) = likes.stages
    assert len(wrong(likes, "weights", "from_inputs")) == 9
    assert weights.from_inputs[0].tolist() == pytest.approx([0.539, 0.242, 0.219], abs=6e-4)
    assert states_of(weights) == [["does not follow"] * 3] * 3
    assert likes.slips == ("weights",)
    assert likes.finding() == "The example has 9 errors in its weights"
    scales = torch.linspace(-30, 30, 6001).double()
    scores = likes.given[0].values
    missed = (torch.softmax(scales[:, None, None] * scores, -1) - weights.printed).abs()
    assert missed.amax((-2, -1)).min().item() > 0.05


IDENTITY = [[1, 0], [0, 1]]


def test_a_large_error_is_a_slip_despite_coarse_inputs(make):
    wrong = [[1.9, 0.9], [0.9, 1.9]]
    given = {"X": IDENTITY, "W_q": [[1.1, 0], [0, 1]], "W_k": [[1.1, 0], [0, 1]]}
    worked = make(**given, printed={"Q": IDENTITY, "K": IDENTITY, "scores": wrong})
    found = stage(worked, "scores")
    assert found.from_printed_follows.all()
    assert not found.from_inputs_follows.any()
    assert worked.slips == ("scores",)
    assert states_of(found) == [["does not follow"] * 2] * 2
    assert worked.finding() == "The example has 4 errors in its scores"


def test_consequences_of_a_slip_are_not_slips(make):
    given = {"X": [[1]], "W_q": [[1]], "W_k": [[1]]}
    worked = make(**given, printed={"Q": [[2]], "K": [[1]], "scores": [[2]]})
    assert worked.slips == ("Q",)


def test_the_slack_of_weights_is_reached_at_the_ends_of_the_scores(make):
    printed = {"scores": [[2.0, 0.0, 1.0]], "weights": [[0.7, 0.1, 0.2]]}
    found = stage(make(Q=[[1]], K=[[2.01], [0], [1]], scale=1, printed=printed), "weights")
    middle = torch.softmax(torch.tensor([2.0, 0, 1]).double(), 0)
    least = torch.softmax(torch.tensor([1.95, 0.05, 1.05]).double(), 0)
    assert found.slack_from_printed[0, 0].item() == pytest.approx(0.05 + (middle - least)[0].item())


def test_each_printed_cell_keeps_its_own_digits(tmp_path):
    path = tmp_path / "own.json"
    path.write_text('{"weights": [[1.0]], "V": [[1, 1e2]], "printed": {"head output": [[1, 1e2]]}}')
    worked = attnviz.example(file=path)
    assert [matrix.texts for matrix in worked.given] == [(("1", "1E+2"),), (("1.0",),)]
    assert worked.stages[0].texts == (("1", "1E+2"),)
    joined = stage(attnviz.example("phones"), "concatenated")
    assert joined.texts[0] == ("1.128", "1.034", "0.99", "1.03")


@pytest.mark.parametrize(("cell", "follows"), [(0.04, True), (0.05, True), (0.06, False)])
def test_half_a_unit_of_the_last_digit_is_the_limit(make, cell, follows):
    worked = make(weights=[[1.0]], V=[[1 + cell]], printed={"head output": [[1.0]]})
    assert bool(stage(worked, "head output").from_inputs_follows.all()) is follows


def test_rounding_reaches_through_what_is_not_printed(make):
    # K is not printed and Q has one decimal, so a score may be off by 0.05 · |k|.
    worked = make(
        X=[[2.01]], W_q=[[1]], W_k=[[3]], printed={"Q": [[2.0]], "scores": [[12.38]]}
    )  # fmt: skip
    found = stage(worked, "scores")
    assert found.slack_from_printed.item() == pytest.approx(0.005 + 0.05 * 6.03)
    assert found.sources == ("Q",)
    assert not found.from_printed_follows.item()
    assert not found.from_inputs_follows.item()


def random(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, dtype=torch.float64, generator=generator)
    return [[round(x, 2) for x in row] for row in numbers.tolist()]


def fields(seed, tokens=3, causal=True):
    names = {"X": (tokens, 4), "W_q": (4, 2), "W_k": (4, 2), "W_v": (4, 2)}
    found = {name: random(seed + i, *shape) for i, (name, shape) in enumerate(names.items())}
    return {**found, **({"mask": "causal"} if causal else {})}


@pytest.mark.parametrize("causal", [True, False])
def test_the_attention_is_that_of_the_formula(make, causal):
    given = fields(3, causal=causal)
    X, *matrices = (torch.tensor(given[n]).double() for n in ("X", "W_q", "W_k", "W_v"))
    expected = attention(*(X @ W for W in matrices), is_causal=causal)
    worked = make(**given)
    torch.testing.assert_close(stage(worked, "head output").from_inputs, expected)
    assert worked.stages[-1].name == "head output"


def test_an_example_can_start_with_queries_of_another_sequence(make):
    Q, K, V = random(1, 2, 3), random(2, 4, 3), random(3, 4, 2)
    worked = make(Q=Q, K=K, V=V, queries=["a", "b"], tokens=list("wxyz"), scale=0.5)
    expected = attention(*(torch.tensor(each).double() for each in (Q, K, V)), scale=0.5)
    found = stage(worked, "head output")
    torch.testing.assert_close(found.from_inputs, expected)
    assert stage(worked, "weights").rows == ("a", "b")
    assert stage(worked, "weights").columns == ("w", "x", "y", "z")


@pytest.mark.parametrize(
    ("scale", "weights", "follows"),
    [(1, 0.6, True), (1, 0.4, False), (400, 0.6, True), (400, 0.4, False), (1000, 0.4, False)],
)
def test_the_slack_of_weights_for_scores_that_are_hardly_known(make, scale, weights, follows):
    """The first score is 0 to 2 times the scale above the second."""
    printed = {"scores": [[1, 0]], "weights": [[weights, round(1 - weights, 1)]]}
    found = stage(make(Q=[[0.8]], K=[[1], [0]], scale=scale, printed=printed), "weights")
    assert bool(found.from_printed_follows.all()) is follows


def printed_of(worked, digits):
    """Return our numbers, rounded as a book would print them."""
    return {
        each.name: [[f"{x:.{digits}f}" for x in row] for row in each.from_inputs.tolist()]
        for each in worked.stages
    }


def with_print(folder, given, printed):
    # As text, because a float would lose trailing zeros.
    whole = json.dumps({**given, "printed": printed})
    for cell in {cell for cell in whole.split('"') if cell.lstrip("-")[:1].isdigit()}:
        whole = whole.replace(f'"{cell}"', cell)
    path = folder / "printed.json"
    path.write_text(whole, encoding="utf-8")
    return attnviz.example(file=path)


numbers = {"seed": st.integers(0, 10_000), "digits": st.integers(0, 7)}


@LAW
@given(**numbers, causal=st.booleans())
def test_our_rounded_numbers_are_consistent_everywhere(tmp_path_factory, seed, digits, causal):
    folder = tmp_path_factory.mktemp("own")
    given = fields(seed, causal=causal)
    (folder / "own.json").write_text(json.dumps(given))
    printed = printed_of(attnviz.example(file=folder / "own.json"), digits)
    worked = with_print(folder, given, printed)
    assert worked.slips == ()
    linked = [found.from_printed_follows for found in worked.stages]
    assert any(follows is not None for follows in linked)
    assert all(follows is None or follows.all() for follows in linked)
    counts = worked.count()
    follow = counts["follows exactly"] + counts["within rounding"]
    assert follow == sum(counts.values()) > 0


@LAW
@given(**numbers, data=st.data())
def test_a_cell_that_is_off_by_two_units_and_its_slack_is_flagged(
    tmp_path_factory, seed, digits, data
):
    folder = tmp_path_factory.mktemp("own")
    given = fields(seed)
    (folder / "own.json").write_text(json.dumps(given))
    printed = printed_of(attnviz.example(file=folder / "own.json"), digits)
    clean = with_print(folder, given, printed)
    number = data.draw(st.integers(0, len(clean.stages) - 1))
    each = clean.stages[number]
    m, n = each.from_inputs.shape
    i, j = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, n - 1))
    linked = each.from_printed is not None
    slack = (each.slack_from_printed if linked else each.slack_from_inputs)[i, j].item()
    ours = (each.from_printed if linked else each.from_inputs)[i, j].item()
    printed[each.name][i][j] = f"{ours + slack + 2 * 10**-digits:.{digits}f}"
    changed = with_print(folder, given, printed).stages[number]
    follows = changed.from_printed_follows if linked else changed.from_inputs_follows
    assert (~follows).nonzero().tolist() == [[i, j]]
