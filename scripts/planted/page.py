"""The page of planted faults: Markdown, from the results of all cases."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import chain
from typing import Any

from planted.cases import Case, Result
from planted.rules import ATTNVIZ, RULES

DTYPES = ("float32", "bfloat16", "float16")
TITLES = {
    "minilm": "MiniLM (pretrained)",
    "bert": "BERT",
    "gpt2": "GPT-2",
    "llama": "Llama, grouped queries",
    "mistral": "Mistral, window",
    "gemma2": "Gemma 2, soft cap",
    "gpt-oss": "GPT-OSS, sinks",
    "t5": "T5, position bias",
    "t5/encoder": "T5 encoder",
    "t5/decoder": "T5 decoder",
    "t5/cross": "T5 cross-attention",
    "bart": "BART",
    "bart/cross": "BART cross-attention",
    "vit": "ViT",
}
INTRODUCTION = """\
# Planted faults

A check that cannot fail proves nothing. So faults are planted, one at a time, and attnviz has to
find them. Three common rules judge the same numbers.

Written by `scripts/planted_faults.py` on a CPU, with torch {torch} and transformers {transformers}.

## What is planted, and what is compared

- Faults **of the formula** are in attnviz' own recomputation of one layer: a wrong scale, mask,
  head, matrix or rotation. Faults **in the model** are hooks and patched code that attnviz does not
  know of. They are in all runs of the model.
- Each fault is planted in several models, in three dtypes, and in two texts of which the second one
  is padded (one image for ViT). A fault that changes no number by more than 10⁻⁶ of the largest is
  left out.
- All rules see the same numbers, stage by stage, for a whole layer: Q, K, V, scores, weights, the
  output of each head, the output of the module. *Ours* is the recomputation in float64, *the
  model's* is its own number, and *plain* is our recomputation in the model's dtype. Padded queries
  and hidden scores are 0.
- **{attnviz}**: the verdict on the stage ([what verified means](../concepts/verified.md)). Every
  position is checked (`--positions all`) where the attention interface shows the keys. The
  words "positions not verified", where labels do not fit the tokens, count as caught.
- **{cosine}**: the cosine similarity of ours and the model's, all heads together.
- **{close}**: `torch.testing.assert_close` of the model's and ours, both in the model's dtype, with
  the default tolerances of this dtype.
- **{flash}**: `(model - ours).abs().max() <= 2 * (plain - ours).abs().max()`. It takes the float64
  recomputation and the plain run that attnviz makes.
- The output of the whole model, recorded and as loaded, is one more stage. There the reference of
  {flash} is a copy of the model in float64.

A rule **catches** a fault if it rejects a stage that it accepts without the fault. It **misses**
the fault if it accepts all stages. It **says nothing** if it rejects the same stages without the
fault, if no number shows the fault, if attnviz no longer compares a stage, or if its verdict is
"not proven". A **false alarm** is a rejected stage where no fault is planted.

## Summary
"""
REASONS = {
    "wrong rotary base": (
        "In the code of all layers of a model. Then the projections give the queries of no layer, "
        "so the verdict says that queries and keys are not compared. The weights are the model's."
    ),
    "labels shifted by one": "The labels of patches follow from the size of the image.",
    "scale of one head 1 % off": (
        "One head of a short text in bfloat16 has too few numbers to tell this from rounding."
    ),
}
WIDTH = 99


def page(results: dict[Case, Result]) -> str:
    """Return the page."""
    parts = [
        INTRODUCTION.format(
            **{name: version(name).partition("+")[0] for name in ("torch", "transformers")},
            **dict(zip(("attnviz", "cosine", "close", "flash"), RULES, strict=True)),
        ),
        summary(results),
        "\n## What attnviz does not catch\n",
        missed(results),
        "\n## By model\n",
        by_place(results),
    ]
    for part, title in (("formula", "Faults of the formula"), ("model", "Faults in the model")):
        parts += [f"\n## {title}\n", by_fault(results, part), "\nIn each model, caught by "
                  f"{', '.join(RULES[:-1])} and {RULES[-1]}, of how many:\n",
                  by_fault_and_place(results, part)]  # fmt: skip
    parts += ["\n## Fifteen architectures\n", architectures(results)]
    return "\n".join([*parts, "\n## Without a fault\n", unplanted(results)]) + "\n"


# ---------------------------------------------------------------------------------- the tables
def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def rows_of(results: dict[Case, Result], *parts: str) -> list[dict[str, Any]]:
    """Return the rows of all planted faults, with their place and dtype."""
    return [
        {"part": case.part, "place": case.place, "dtype": case.dtype, **row}
        for case, result in results.items()
        if case.part in (parts or ("formula", "model"))
        for row in result["planted"]
    ]


def summary(results: dict[Case, Result]) -> str:
    """Return the counts of each rule in each dtype."""
    rows = rows_of(results)
    lines = []
    for rule in RULES:
        for dtype in DTYPES:
            outcomes = Counter(row[rule] for row in rows if row["dtype"] == dtype)
            alarms, stages = alarms_of(results, rule, dtype)
            total, found, lost = outcomes.total(), outcomes["caught"], outcomes["missed"]
            lines.append(
                [rule, dtype, f"{total:,}", f"{found:,}", f"{lost:,}", f"{total - found - lost:,}",
                 f"{alarms:,} of {stages:,} ({share(alarms, stages)})"]
            )  # fmt: skip
    heads = ["rule", "dtype", "planted", "caught", "missed", "says nothing", "false alarms"]
    return table(heads, lines)


def alarms_of(results: dict[Case, Result], rule: str, dtype: str) -> tuple[int, int]:
    """Return how many stages without a fault a rule rejects, and how many there are."""
    counts: Counter[str] = Counter()
    for case, result in results.items():
        if case.dtype == dtype:
            for of_text in result["unplanted"]:
                counts.update(of_text)
    return counts[rule], counts["stages"]


def share(part: int, whole: int) -> str:
    """Return a share in percent."""
    if not part or not whole:
        return "0 %"
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1g} %"


def missed(results: dict[Case, Result]) -> str:
    """Return what attnviz does not catch, with the reason."""
    places: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    counts: Counter[str] = Counter()
    totals = Counter(row["fault"] for row in rows_of(results))
    for row in rows_of(results):
        if row[ATTNVIZ] != "caught":
            places[row["fault"]][TITLES[row["place"]]].add(row["dtype"])
            counts[row["fault"]] += 1
    lines = []
    for fault, of_fault in places.items():
        where = "; ".join(
            place if len(dtypes) == len(DTYPES) else f"{place} in {', '.join(sorted(dtypes))}"
            for place, dtypes in of_fault.items()
        )
        line = (
            f"- **{fault}** ({counts[fault]} of {totals[fault]}: {where}). {REASONS.get(fault, '')}"
        )
        lines += textwrap.wrap(line, WIDTH, subsequent_indent="  ")
    return "\n".join(lines) or "Nothing."


def by_place(results: dict[Case, Result]) -> str:
    """Return how many faults each rule catches in each model."""
    rows = rows_of(results)
    places = list(dict.fromkeys(row["place"] for row in rows))
    lines = []
    for place in places:
        chosen = [row for row in rows if row["place"] == place]
        lines.append([TITLES[place], len(chosen), *caught(chosen)])
    return table(["model", "planted", *RULES], lines)


def caught(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Return how many of some faults each rule catches."""
    return [sum(row[rule] == "caught" for row in rows) for rule in RULES]


def by_fault(results: dict[Case, Result], part: str) -> str:
    """Return how many times each rule catches each fault."""
    rows = rows_of(results, part)
    lines = []
    for fault in dict.fromkeys(row["fault"] for row in rows):
        chosen = [row for row in rows if row["fault"] == fault]
        lines.append([fault, len(chosen), *caught(chosen)])
    return table(["fault", "planted", *RULES], lines)


def by_fault_and_place(results: dict[Case, Result], part: str) -> str:
    """Return the same for each model."""
    rows = rows_of(results, part)
    places = list(dict.fromkeys(row["place"] for row in rows))
    lines = []
    for fault in dict.fromkeys(row["fault"] for row in rows):
        cells = []
        for place in places:
            chosen = [row for row in rows if (row["fault"], row["place"]) == (fault, place)]
            counts = " ".join(map(str, caught(chosen)))
            cells.append(f"{counts} of {len(chosen)}" if chosen else "")
        lines.append([fault, *cells])
    return table(["fault", *(TITLES[place] for place in places)], lines)


def architectures(results: dict[Case, Result]) -> str:
    """Return how many faults each rule catches in each architecture."""
    rows = rows_of(results, "architectures")
    text = (
        "Tiny random models of `scripts/check_architectures.py`, in float32. In the last "
        "attention: a scale that is 1 % off, two heads swapped, the weights of the next head, a "
        "mask shifted by one, a wrong rotary base. In the model's own code, where it has these "
        "functions: the scale of all heads or of one 1 % off, the queries or the outputs of two "
        "heads swapped, a mask shifted by one, a wrong rotary base. "
        f"attnviz catches {caught(rows)[0]:,} of {len(rows):,}."
    )
    lines = []
    for place in dict.fromkeys(row["place"] for row in rows):
        chosen = [row for row in rows if row["place"] == place]
        lines.append([f"`{place}`", len(chosen), *caught(chosen)])
    lost = Counter(
        f"- **{row['fault']}** in `{row['place']}`, text {row['text']}"
        for row in rows
        if row[ATTNVIZ] != "caught"
    )
    parts = [
        "\n".join(textwrap.wrap(text, WIDTH)),
        "",
        table(["architecture", "planted", *RULES], lines),
    ]
    return "\n".join([*parts, *(["\nNot caught:\n", *lost] if lost else [])])


# ------------------------------------------------------------------------------ without a fault
CAUSES = {
    "bigbird": "transformers itself fails when it leaves block-sparse attention for a short text.",
    "funnel": (
        "The weights differ by what the rounding of the scores explains. The output of the head, "
        "which follows from them, is compared more strictly."
    ),
}
UNPLANTED = """\
`attnviz.attend` reads batches of one to four sentences, with no fault anywhere: the bundled
example sentences and those of these guides. A false alarm of attnviz is a text that is "not
verified". The other rules judge the stages of the first 20 batches; their columns count those that
they reject.
"""
VERDICTS = ("verified", "not proven", "refused", "failed")


def unplanted(results: dict[Case, Result]) -> str:
    """Return the counts of the runs without a fault, and what is not verified."""
    chosen = {case: result for case, result in results.items() if case.part == "unplanted"}
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for case, result in chosen.items():
        _, _, setting = case.place.partition(": ")
        if case.place == "minilm":
            groups["MiniLM (pretrained)", case.dtype].append(result)
        elif setting:
            groups[f"MiniLM and a tiny Llama, {setting}", "all"].append(result)
        else:
            groups["tiny random models", case.dtype].append(result)
    lines = []
    for (title, dtype), of_group in groups.items():
        verdicts: Counter[str] = Counter()
        alarms: Counter[str] = Counter()
        for result in of_group:
            verdicts.update(result["verdicts"])
            alarms.update(result["unplanted"][0])
        title = f"{len(of_group)} {title}" if title.startswith("tiny") else title
        counts = [sum(result[kind] for result in of_group) for kind in ("batches", "texts")]
        lines.append(
            [title, dtype, *counts, *(verdicts[v] for v in VERDICTS),
             alarms["stages"], *(alarms[rule] for rule in RULES[1:])]
        )  # fmt: skip
    heads = ["model", "dtype", "batches", "texts", "verified", "not proven", "refused",
             "false alarms", "stages", *(f"{rule}: rejected" for rule in RULES[1:])]  # fmt: skip
    parts = [UNPLANTED, table(heads, lines)]
    reasons: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for case, result in chosen.items():
        for other in result["others"]:
            kind = other["why"].partition(":")[0]
            if kind != "NOT PROVEN":
                reasons[case.place, kind].append((case.dtype, other))
    why = [
        f"- `{place}`, {kind.lower()} {len(found)} times. The first in {dtype}: “{one['text']}”, "
        f"{one['why'].rstrip('.')}. {CAUSES.get(place, '')}"
        for (place, kind), found in reasons.items()
        for dtype, one in found[:1]
    ]
    if why:
        lines = (textwrap.wrap(one, WIDTH, subsequent_indent="  ") for one in why)
        parts += ["\nFalse alarms and refusals of attnviz:\n", *chain(*lines)]
    return "\n".join(parts)
