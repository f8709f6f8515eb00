"""The verdict, the source, and other sentences that all results share."""

from datetime import date

from figures.sentences.reading import Noise, OneOf, Patterns, agrees, clipped

COMMON = Patterns()
PROJECTED = {"query", "key", "value", "output"}
UNITS = ("tokens", "patches", "frames")

PARTS = (
    "[[; <parts:*> <verb:agrees|agree>]][[; not compared: <missing:*>]][[; input: <read:*>]][[.]]"
)


def reports_of(facts):
    """Return the reports of a result: one, or one of each model."""
    if facts.type in ("AgreementReport", "verify"):
        return [getattr(facts, "agreement", facts)]
    return getattr(facts, "agreements", None) or [facts.agreement]


def heads_of(report):
    if report.checks is None:
        return report.heads
    counted = {
        (one.path, one.stack, one.layer): len(one.differences)
        for one in report.checks
        if one.stage == "weights"
    }
    return sum(counted.values())


def largest(report, stage="weights"):
    """Return the largest difference of a stage over all heads of all layers; NaN without any."""
    if report.checks is None:
        found = [report.largest_differences.get(stage, float("nan"))]
    else:
        found = [max(one.differences) for one in report.checks if one.stage == stage]
    return of_machine(report, max(found, default=float("nan")))


def of_machine(report, value):
    return Noise(value) if getattr(report, "measured_again", False) else value


def missing(report):
    """Return the stages that were not compared somewhere."""
    stages = [*dict.fromkeys(stage for _, stage, _ in report.not_compared)]
    stages += ["positions"] if report.positions is None else []
    return ", ".join(stages) or None


def parts(report, *, short):
    """Return what agrees beside the weights, and whether that is one thing."""
    compared = {one.stage for one in report.checks or ()} | set(
        () if report.checks else report.coverage["compared"]
    )
    left_out = {stage for _, stage, _ in report.not_compared}
    found = []
    if not short and report.input is not None and report.input.equal and not report.input.differs:
        found.append("input")
    if compared & PROJECTED and not left_out & PROJECTED:
        found.append("projections")
    if (tried := report.positions) is not None and not tried.doubt and not tried.failed:
        changed = sum(getattr(tried, unit) for unit in UNITS)
        some = f"{changed} of {tried.of} " if changed < tried.of else ""
        where = "first layer" if tried.layers == 1 else f"{tried.layers} layers"
        the = "the " * (tried.layers == 1)
        found.append(f"{some}positions ({where})" if short else f"{some}positions in {the}{where}")
    found += [one.name for one in report.analysis]
    output = ""
    if report.output is not None:
        read = report.output.tokens  # None, or all: the whole text
        is_part = read is not None and read != (report.rows or (0, 0))[1]
        start = f" for the first {read:,} tokens" if is_part else ""
        output = f"output{start}" if short else f"the output of the model as loaded{start}"
        found.append(output)
    return found


def tail(report, said, *, short):
    """Return what the end of a verdict should say."""
    names, output = parts(report, short=short), report.output
    if not short and output is not None:  # its difference is read as a number
        ours = of_machine(report, output.difference)
        names[-1] += f" ({measured(said.get('parts'), ours)})"
    phrase = " and ".join([part for part in (", ".join(names[:-1]), *names[-1:]) if part])
    return {
        "parts": phrase or None,
        "verb": None if not phrase else "agree" if len(names) > 1 else "agrees",
        "missing": missing(report),
        "read": None,
    }


def measured(said, ours):
    """Return the difference of outputs as it is said, if this is right; else as it should be."""
    end = (said or "").rpartition("(")[2].rstrip(")")
    if end == "exactly":
        value = ours.value if isinstance(ours, Noise) else ours
        return "exactly" if value == 0 or isinstance(ours, Noise) else f"to {value:.1e}"
    value = end.removeprefix("to ")
    right = end.startswith("to ") and value and agrees(value, ours)
    return end if right else f"to {ours.value if isinstance(ours, Noise) else ours:.1e}"


def head(report, said, name):
    when = None if report.saved is None else str(report.saved)
    assert when is None or date.fromisoformat(when)
    rows = report.rows
    return {
        "verdict": OneOf([report_word(report), report_word(report).capitalize()]),
        "day": when,
        "heads": heads_of(report),
        "texts": report.texts if report.texts > 1 else None,
        "largest": largest(report),
        "rows": None if rows is None or rows[0] < rows[1] else rows[1],
        "some": None if rows is None or rows[0] == rows[1] else rows[0],
        "every": None if rows is None or rows[0] == rows[1] else rows[1],
        "share": None if rows is None or rows[0] == rows[1] else rows[0] / rows[1],
    }


def report_word(report):
    """Return the verdict: every number within its tolerance, and a canary that was noticed."""
    checks = report.checks or ()
    for one in checks:
        pairs = zip(one.differences, one.tolerances, strict=True)
        if one.failed_heads or not all(d <= t for d, t in pairs):
            return "not verified"
    whole = [one for one in (report.output, *report.analysis) if one is not None]
    if any(not one.difference <= one.tolerance for one in whole) or report.unproven:
        return "not verified"
    return "verified"


ROWS = " in [[all <rows> rows]][[<some> of <every> rows (<share> of the weights)]]"
START = "<verdict:verified|Verified>[[ when saved on <day:*>]]: <heads> "


@COMMON.sentence(
    START + "recomputed heads[[ on <texts> texts]] match the model's own <dtype:*> weights to "
    "<largest>[[" + ROWS + "]]" + PARTS,
)
def short_verdict(facts, said):
    return [
        {**head(one, said, "short"), "dtype": one.dtype, **tail(one, said, short=True)}
        for one in reports_of(facts)
    ]


@COMMON.sentence(
    START
    + "heads[[ on <texts> texts]] match the model's weights to <largest>[["
    + ROWS
    + "]]"
    + PARTS
)
def shorter_verdict(facts, said):
    whole = [
        {**head(one, said, "short"), **tail(one, said, short=True)} for one in reports_of(facts)
    ]
    return whole + [one | {"parts": None, "verb": None} for one in whole]


@COMMON.sentence(
    "[[attnviz's own weights: ]][[the other model: ]][[The other model: ]]"
    + START
    + "heads[[ on <texts> texts]] recomputed in float64 differ from the model's own <dtype:*> "
    "weights by at most <largest>[[" + ROWS + "; the stored summaries differ by at most <summary> "
    "of the largest number of their kind, in these and one row of cells]]" + PARTS,
)
def whole_verdict(facts, said):
    return [
        {
            **head(one, said, "whole"),
            "dtype": one.dtype,
            "summary": None if one.rows is None else largest(one, "summary"),
            **tail(one, said, short=False),
        }
        for one in reports_of(facts)
    ]


def source_of(facts, said):
    """Return what was read, and the model, of a caption."""
    provenance = facts.provenance
    return {
        "text": clipped(provenance.text, said.get("text"), 60 if "target" not in said else None),
        "model": OneOf([provenance.model, getattr(provenance, "model_name", provenance.model)]),
    }


@COMMON.sentence("“<text:w>”, read by <model:*>.")
def text_source(facts, said):
    if facts.provenance.text is None or getattr(facts.provenance, "target", None):
        return []
    return source_of(facts, said)


@COMMON.sentence("“<text:w>”, read by <model:*> to say “<target:w>”.")
def pair_source(facts, said):
    return source_of(facts, said) | {"target": facts.provenance.target}


@COMMON.sentence("too few texts to name heads: <texts>, at least <least>")
def too_few_texts(facts, said):
    """Names take 16 texts: half of them to find a role, half to confirm it."""
    survey = getattr(facts, "survey", facts)
    assert survey.texts < 16
    assert not any(survey.roles)
    return {"texts": survey.texts, "least": 16}


@COMMON.sentence("<what:Image|Sound> (<size:*>), read by <model:*>.")
def media_source(facts, said):
    given = facts.provenance.image or facts.provenance.audio
    what, _, size = given.partition(" (")
    return {"what": what.capitalize(), "size": size.rstrip(")"), "model": facts.provenance.model}
