"""The exact public API. Adding a name is a promise; removing one is a breaking change."""

import inspect
import operator
import pickle
import re
from pathlib import Path

import pytest

import attnviz

PUBLIC = """
    AblationResult AgreementReport Architecture AttentionMap AttentionRecord AttentionResult
    AttnvizError AttnvizWarning CheckResult CompareResult DoctorResult ExampleResult
    ExplainResult ExploreResult HeadMaps HeadMatches HeadRanking InputError MapSummary Model
    ModelError OutputError Recording Savable SensesResult ShiftResult StepsResult StreamedAttention
    SurveyResult View ablate architectures attend attention_map check compare doctor
    example explain explain_generation explore find_heads from_weights head_maps load
    load_result plot rank_heads record save_result senses shift steps survey verify view
""".split()  # noqa: SIM905
PLOT = """
    ablate add_caption attention_vector check compare example explain heads heatmap save senses
    shift steps style survey text
""".split()  # noqa: SIM905


def test_the_public_names():
    assert sorted(attnviz.__all__) == PUBLIC
    assert set(attnviz.__all__) <= set(dir(attnviz))
    assert attnviz.plot.__all__ == dir(attnviz.plot) == PLOT
    with pytest.raises(AttributeError, match="no attribute 'waterfall'"):
        attnviz.plot.waterfall  # noqa: B018


def test_every_public_name_is_in_the_program_that_mypy_reads():
    program = Path(__file__).with_name("release") / "every_name.py"
    source = program.read_text(encoding="utf-8")
    assert {*re.findall(r"attnviz\.(\w+)", source), "plot"} == {*PUBLIC, "__version__"}
    assert set(re.findall(r"\bplot\.(\w+)", source)) == set(PLOT)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.islower() and name != "plot"])
def test_what_a_function_returns_is_public(name):
    hint = str(getattr(attnviz, name).__annotations__["return"])
    assert set(re.findall(r"[A-Z]\w+", hint)) <= {*PUBLIC, "Any", "None"}


@pytest.mark.parametrize("name", PLOT)
def test_a_drawing_function_can_be_pickled(name):
    function = getattr(attnviz.plot, name)
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("name", [*PUBLIC, *(f"plot.{name}" for name in PLOT)])
def test_every_public_name_exists_and_is_documented(name):
    assert inspect.getdoc(operator.attrgetter(name)(attnviz))


@pytest.mark.parametrize("name", [*PUBLIC, *(f"plot.{name}" for name in PLOT)])
def test_one_positional_argument_the_rest_by_keyword(name):
    thing = operator.attrgetter(name)(attnviz)
    if not inspect.isfunction(thing):
        return
    positional = [
        parameter.name
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
    ]
    several = {
        "plot.save": ["figure", "path"],
        "save_result": ["result", "path"],
        "check": ["weights", "text", "model"],
        "load_result": ["path", "kind"],
        "from_weights": ["weights", "tokens", "keys"],
        "shift": ["word", "text"],
        "senses": ["word", "sentences"],
    }
    assert positional == several.get(name, positional[:1])


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="attnviz attribute heatmpa"):
        attnviz.heatmpa  # noqa: B018
