"""What is public is exactly this. Adding a name is a promise; removing one breaks it."""

import inspect

import pytest

import attnviz

PUBLIC = {
    "AgreementReport",
    "Architecture",
    "AttentionMap",
    "AttentionRecord",
    "AttentionResult",
    "AttentionSteps",
    "AttnvizError",
    "AttnvizWarning",
    "Census",
    "Comparison",
    "HeadMaps",
    "InputError",
    "Model",
    "ModelError",
    "OutputError",
    "SenseResult",
    "ShiftResult",
    "StreamedAttention",
    "Summary",
    "View",
    "WorkedExample",
    "add_caption",
    "architectures",
    "attend",
    "attention_vector",
    "census",
    "compare",
    "comparison",
    "disambiguation",
    "example",
    "find_heads",
    "head_grid",
    "heatmap",
    "load",
    "load_data",
    "make_example",
    "make_map",
    "make_maps",
    "make_steps",
    "rank_heads",
    "save_figure",
    "save_data",
    "senses",
    "steps",
    "shift",
    "style",
    "survey",
    "verify",
    "view",
    "waterfall",
}


def test_the_public_names():
    assert set(attnviz.__all__) == PUBLIC
    assert set(attnviz.__all__) <= set(dir(attnviz))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_can_be_had_and_is_documented(name):
    assert inspect.getdoc(getattr(attnviz, name))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_one_positional_argument_the_rest_by_keyword(name):
    thing = getattr(attnviz, name)
    if inspect.isclass(thing):
        return
    positional = [
        parameter.name
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    several = {
        "save_figure": ["figure", "path"],
        "save_data": ["drawn", "path"],
        "shift": ["word", "text"],
        "senses": ["word", "sentences"],
    }
    assert positional == several.get(name, positional[:1])


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'heatmpa'"):
        attnviz.heatmpa  # noqa: B018
