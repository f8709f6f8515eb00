"""A head of a text rests in its ranking if it does in the titles and in a survey, and only then."""

import numpy as np
import pandas as pd
import pytest
import torch
from fetched import load

import attnviz
from attnviz.analyses.survey.aggregate import assign_roles
from attnviz.heads import NAMES, RESTING_ROLES, head_families

pytestmark = pytest.mark.real
TEXTS = (  # of words that are one token each and occur once: a survey has no roles of others there
    "the train left station on time",
    "children saw a dog in the garden",
    "king gave his queen an old ring of gold",
    "she put some books on the table near our window",
    "men who lost that war became heads of state",
    "one bird in hand is better than two",
    "we went to town by car and came back again",
    "cold water ran down from the high mountain",
    "my sister bought a house near London last year",
    "students read their first page",
)


@pytest.mark.parametrize("name", ["minilm", pytest.param("smollm2", marks=pytest.mark.long)])
def test_ranking_titles_and_survey_name_the_same_resting_heads_of_ten_texts(name, tmp_path):
    model = load(name, torch.float32)
    heads = attnviz.survey(TEXTS, model=model, out=tmp_path).heads
    table = pd.read_parquet(tmp_path / "texts.parquet")
    table["excess"] = table.value - table.even
    counts = set()
    for number, (text, result) in enumerate(zip(TEXTS, model.attend([*TEXTS]), strict=True)):
        of_heads = table[table.sentence == number].pivot_table(
            "excess", ["layer", "head"], "statistic", observed=True
        )
        excess = of_heads.reindex(columns=NAMES).to_numpy()
        roles = assign_roles(excess, np.zeros_like(excess))
        named = [role in RESTING_ROLES for role in roles]
        families = head_families(attnviz.head_maps(result))
        assert named == [found is not None and found[0].resting for found in families], text
        last = text.split()[-1]
        for found in attnviz.rank_heads(result), attnviz.find_heads(result, query=last, key=last):
            resting = {(one.layer, one.head): one.resting for one in found}
            assert named == [resting[one.layer, one.head] for one in heads], text
        counts.add(sum(named))
    assert len(counts) > 3
    assert all(0 < count < len(heads) for count in counts)


def test_a_survey_of_many_texts_names_the_resting_heads_of_each():
    surveyed = attnviz.survey([TEXTS[0]] * 40)
    named = [(one.layer, one.head) for one, role in zip(surveyed.heads, surveyed.roles, strict=True)
             if role in RESTING_ROLES]  # fmt: skip
    ranked = attnviz.rank_heads(attnviz.attend(TEXTS[0]))
    assert named == sorted((one.layer, one.head) for one in ranked if one.resting)
