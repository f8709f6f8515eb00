"""The agreement of our attention with the model's: each check, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from math import isnan
from operator import attrgetter
from typing import Any, Literal

from attnviz.errors import InputError, joined
from attnviz.results.base import Rules, Savable, described, doc, documented
from attnviz.results.text import listed

# The worst first.
Verdict = Literal["failed", "not verified", "not proven", "positions not verified", "verified"]
LINEAR = "linear"  # the stack of linear attention
UNITS = {"text": "tokens", "target": "tokens", "image": "patches", "audio": "frames"}
PROJECTED = ("query", "key", "value", "output")  # the stages that the module's weights make


@documented(eq=True)
class StageCheck(Savable):
    """One stage of one attention: our float64 recomputation against the model's own value.

    Stages, in order: query, key, value, scores, weights, head output, output. A long text also has
    two stages of its reduced maps: "attention vectors", in every row the sum of the features with
    random signs, against the model's own output; and "summary", as a share of the largest number of
    a kind.
    """

    stack: str = doc("The stack of the attention.")
    layer: int = doc("Its layer.")
    path: str = doc("Its module.")
    stage: str = doc("The stage that was compared.")
    differences: tuple[float, ...] = doc("The largest of each head; one for the output.")
    tolerances: tuple[float, ...] = doc("The largest difference that passes, of each head.")
    own_errors: tuple[float, ...] = doc("Of each head, of our run in the model's precision.")
    compared: int = doc("How many numbers were compared.")
    finite: bool = doc("Whether both sides are free of NaN and infinity.")
    failed_heads: tuple[int, ...] = doc("The heads that do not agree; empty if the stage agrees.")
    slope_errors: tuple[float, ...] = doc(
        "Of each head, the regression slope of the model's values on ours, minus 1; for weights, "
        "of their logarithms; for the output, of the part that each head adds. A scale that is 1 % "
        "off shows as ±0.01, in any precision.",
        default=(),
    )
    slope_tolerances: tuple[float, ...] = doc("The largest slope error that passes.", default=())
    slope_error: float | None = doc("Weights and output: over all heads.", default=None)
    slope_tolerance: float | None = doc("The largest of these that passes.", default=None)
    hidden_zero: bool = doc("Whether masked keys have weight 0, on both sides.", default=True)

    def __repr__(self) -> str:
        outcome = "agrees" if self.passed else "differs"
        return f"StageCheck({self.place}, {self.stage}, {outcome} to {self.largest_difference:.1e})"

    def _rules(self) -> Rules:
        tolerances = (*self.tolerances, *self.slope_tolerances, self.slope_tolerance)
        yield "tolerances above 0", not any(most is not None and most <= 0 for most in tolerances)
        counts = {len(self.differences), len(self.tolerances), len(self.own_errors)}
        yield "a tolerance and an error for each difference", len(counts) == 1 and 0 not in counts
        yield "a tolerance for each slope", len(self.slope_errors) == len(self.slope_tolerances)
        # Written so that NaN does not agree.
        numbers_agree = (
            self.finite
            and self.hidden_zero
            and all(d <= t for d, t in zip(self.differences, self.tolerances, strict=True))
            and all(abs(error) <= tolerance for error, tolerance in self._slopes)
        )
        yield "failed heads where numbers do not agree", bool(self.failed_heads) or numbers_agree

    @property
    def _slopes(self) -> list[tuple[float, float]]:
        """The slope error and its tolerance of each head, then those of the layer."""
        slopes = [*zip(self.slope_errors, self.slope_tolerances, strict=True)]
        if self.slope_error is not None and self.slope_tolerance is not None:
            slopes.append((self.slope_error, self.slope_tolerance))
        return slopes

    @property
    def passed(self) -> bool:
        """Whether every head agrees."""
        return not self.failed_heads

    @property
    def largest_difference(self) -> float:
        """The largest absolute difference over the heads."""
        return max(self.differences)

    @property
    def place(self) -> str:
        """The stack and the layer, in words."""
        return f"{self.stack} layer {self.layer}"

    @property
    def reason(self) -> str:
        """Why a stage does not agree, in words."""
        if not self.finite or isnan(self.strain):
            return "some numbers are not finite"
        if not self.hidden_zero:
            return "a masked key has weight"
        if self.strain <= 1 and self.slope_errors:
            strains = [abs(error) / tolerance for error, tolerance in self._slopes]
            head = strains.index(max(strains[: len(self.slope_errors)]))
            kinds = {"weights": "its log weights", "output": f"what head {head} adds"}
            values = kinds.get(self.stage, "its values")
            return f"the slope of {values} is off by {self.slope_errors[head]:.1e}"
        return f"by {self.largest_difference:.1e}, {self.strain:.1f} × what rounding explains"

    @property
    def strain(self) -> float:
        """The largest difference as a fraction of what passes; above 1 a head fails."""
        return max(d / t for d, t in zip(self.differences, self.tolerances, strict=True))


class _Bounded:
    """A check that passes if its difference is within its tolerance."""

    difference: float
    tolerance: float

    @property
    def strain(self) -> float:
        """The difference as a fraction of what passes."""
        return self.difference / self.tolerance

    @property
    def passed(self) -> bool:
        """Whether the difference is small enough; NaN is not."""
        return self.strain <= 1


@documented(eq=True)
class OutputCheck(_Bounded, Savable):
    """The output of the recorded run, against that of the model as it was loaded.

    The model as loaded runs with its own attention implementation and modes. Only the outputs of
    its attention modules are read. What was not measured is None.
    """

    difference: float = doc(
        "The norm of the difference relative to that of the output; of the output of the first "
        "attention if that alone does not agree."
    )
    tolerance: float = doc("The largest difference that passes.")
    repeated: float | None = doc("Between two runs, if the output does not agree.", default=None)
    tokens: int | None = doc("How many tokens of a long text were read; None: all.", default=None)
    moved: float | None = doc(
        "The least difference that another attention in one layer makes (in all layers, where "
        "there is only one run for them).",
        default=None,
    )
    blind: tuple[str, ...] = doc("Modules of which another attention makes none.", default=())
    eager: bool = doc("Whether the model gives this one under eager attention.", default=False)

    @property
    def reason(self) -> str:
        """Why the output does not agree, in words."""
        if self.repeated is not None and not self.repeated <= self.tolerance:
            return (
                f"two runs of the model differ {_amount(self.repeated)}: it draws random "
                "numbers, or changes from run to run"
            )
        helps = (
            " (its eager attention, which is recorded, computes something else: load it with "
            'from_pretrained(…, attn_implementation="eager") and give that model)'
        )
        return (
            "the recorded run is not the model's: its output differs from that of the model as "
            f"loaded {_amount(self.difference)}{helps * self.eager}"
        )


@documented(eq=True)
class PositionCheck(Savable):
    """Whether another token, patch or frame at a position changes the key of this position."""

    tokens: int = doc("How many tokens were changed.", default=0)
    patches: int = doc("How many patches.", default=0)
    frames: int = doc("How many frames.", default=0)
    failed: tuple[tuple[str, int, int], ...] = doc(
        "The place of an attention, the position of a change, and the key that moved, for each "
        "that does not move its own key most, or that moves an earlier one of a causal model; -1 "
        "for the key if that of the recorded run is another one than in a batch of another size.",
        default=(),
    )
    layers: int = doc("Of how many attentions the keys were compared.", default=1)
    doubt: str | None = doc("Why labels may not be tokens: nothing was compared.", default=None)
    of: int = doc("How many positions there are; 0 in older files.", default=0)

    @classmethod
    def joined(cls, checks: Sequence[PositionCheck]) -> PositionCheck:
        """Return one check of several texts."""
        counted = (*dict.fromkeys(UNITS.values()), "of")
        return cls(
            **{name: sum(getattr(check, name) for check in checks) for name in counted},
            failed=tuple(failure for check in checks for failure in check.failed),
            layers=min(check.layers for check in checks),
            doubt=next((check.doubt for check in checks if check.doubt), None),
        )

    @property
    def passed(self) -> bool:
        """Whether every change moved the key of its own position."""
        return not self.failed

    @property
    def reason(self) -> str:
        """Why the positions do not agree, in words."""
        place, token, key = self.failed[0]
        if key < 0:
            return f"key {token} in {place} is another one in a batch of another size"
        return (
            f"the rows are not the {' and '.join(self.changed)}: a change at position {token} "
            f"moves key {key} in {place}"
        )

    @property
    def changed(self) -> dict[str, int]:
        """How many positions of each kind were changed."""
        kinds = {units: getattr(self, units) for units in UNITS.values()}
        return {units: count for units, count in kinds.items() if count}


@documented(eq=True)
class InputCheck(Savable):
    """What reached the model, beside the tokenizer's, the processor's or the model's own call."""

    equal: bool | None = doc("Whether all arguments are equal; None: not compared.", default=None)
    differs: tuple[str, ...] = doc("What differs, was dropped or has a default.", default=())
    unknown: tuple[str, ...] = doc("Words that were read as unknown tokens ([UNK]).", default=())
    uncovered: tuple[str, ...] = doc("Parts of the text that no token covers.", default=())
    words: int = doc("How many words the text has; 0 if it is not known.", default=0)

    @classmethod
    def joined(cls, checks: Sequence[InputCheck]) -> InputCheck:
        """Return one check of several texts."""
        equal = {check.equal for check in checks}
        parts = {
            name: tuple(dict.fromkeys(part for check in checks for part in getattr(check, name)))
            for name in ("differs", "unknown", "uncovered")
        }
        is_equal = False if False in equal else None if None in equal else True
        return cls(is_equal, **parts, words=sum(check.words for check in checks))

    @property
    def reason(self) -> str:
        """What a reader should know of the input, in words; empty where it is as expected."""
        of = f" of {self.words}" if self.words else ""
        count = len(self.unknown)
        parts = [f"not as the model's own call: {listed(self.differs)}"] if self.differs else []
        if self.unknown:
            plural = "words" if count > 1 or of else "word"
            parts.append(f"{count}{of} {plural} unknown to the tokenizer: {listed(self.unknown)}")
        if self.uncovered:
            parts.append(f"no token covers {listed(self.uncovered)}")
        return "; ".join(parts)


@documented(eq=True)
class AnalysisCheck(_Bounded, Savable):
    """Numbers that an analysis adds to the attention, beside what they should be."""

    name: str = doc('The numbers in words, in the plural: "hidden states".')
    difference: float = doc("As a share of their size.")
    tolerance: float = doc("The largest that passes.")

    @property
    def reason(self) -> str:
        """Why the numbers do not agree, in words."""
        return f"the {self.name} are off by {_percent(self.difference)}"


@documented(eq=True)
class AgreementReport(Savable):
    """Whether our attention is the model's: every stage of every head, and the canary.

    The canary is a scale 1 % off, planted on purpose. A check that cannot fail proves nothing. What
    was not compared is None.

    Examples
    --------
    >>> import attnviz
    >>> report = attnviz.attend("the train left the station").agreement
    >>> report.verdict, report.heads
    ('verified', 72)
    >>> [check.stage for check in report.checks if check.layer == 5]
    ['query', 'key', 'value', 'scores', 'weights', 'head output', 'output']
    >>> all(check.passed for check in report.checks)
    True
    """

    checks: tuple[StageCheck, ...] = doc("One per layer and stage, in the order of execution.")
    not_compared: tuple[tuple[str, str, str], ...] = doc(
        '(place, stage, reason) where the model shows no reference; a place is "decoder layer 3".'
    )
    unproven: tuple[str, ...] = doc("The places at which the canary went unnoticed.")
    dtype: str = doc("The precision of the model.")
    device: str = doc("Its device.")
    versions: dict[str, str] = doc("Of the libraries, by name.")
    weights_sha256: str = doc("The digest of its weights.")
    texts: int = doc("How many texts were read.", default=1)
    rows: tuple[int, int] | None = doc("Compared queries, of how many; None: all.", default=None)
    output: OutputCheck | None = doc("That of the run beside the model's own.", default=None)
    positions: PositionCheck | None = doc("Whether the rows are the tokens.", default=None)
    analysis: tuple[AnalysisCheck, ...] = doc("Of other runs, or calculations.", default=())
    digests: dict[str, str] = doc("Of each attention, by module and call.", default_factory=dict)
    digest: str | None = doc("Of the numbers of the result that has the report.", default=None)
    altered: bool = doc("Whether they are others now.", default=False)
    saved: str | None = doc("The day on which it was saved, if read from a file.", default=None)
    recomputed: tuple[str, ...] = doc("Stages that were recomputed from the file.", default=())
    given: bool = doc("Whether the user gave the weights: nothing was compared.", default=False)
    input: InputCheck | None = doc("What reached the model, beside its own call.", default=None)

    def __repr__(self) -> str:
        return f"AgreementReport({self.verdict}, {self.heads} heads, {len(self.checks)} checks)"

    @classmethod
    def joined(cls, reports: Iterable[AgreementReport]) -> AgreementReport:
        """Return one report of several texts that the same model read: all of them must agree.

        Raises
        ------
        InputError
            There is no report, or they are of different models, precisions or devices.
        """
        several = tuple(reports)
        of = {(r.weights_sha256, r.dtype, r.device, *sorted(r.versions.items())) for r in several}
        if len(of) != 1:
            count = f"{len(of)} models, precisions or devices" if several else "no model"
            raise InputError(f"Only reports of one model can be joined, not of {count}.")
        rows = [report.rows for report in several if report.rows is not None]

        def of_all(name: str, join: Callable[[list[Any]], Any]) -> Any:
            parts = [getattr(report, name) for report in several]
            return None if None in parts else join(parts)

        return replace(
            several[0],
            checks=tuple(check for report in several for check in report.checks),
            not_compared=tuple(dict.fromkeys(n for report in several for n in report.not_compared)),
            unproven=tuple(dict.fromkeys(place for report in several for place in report.unproven)),
            texts=sum(report.texts for report in several),
            rows=(sum(some for some, _ in rows), sum(of for _, of in rows)) if rows else None,
            output=of_all("output", lambda outputs: max(outputs, key=attrgetter("strain"))),
            positions=of_all("positions", PositionCheck.joined),
            input=of_all("input", InputCheck.joined),
            analysis=tuple(_worst([report.analysis for report in several])),
            saved=max((report.saved for report in several if report.saved), default=None),
            recomputed=(),
            digests={},
            digest=None,
            altered=any(report.altered for report in several),
        )

    @property
    def verdict(self) -> Verdict:
        """Return "verified", "failed", or "not proven" when a canary was not caught.

        It is "positions not verified" if only the labels are in doubt. Weights that the user gave
        are "not verified".
        """
        return self._finding[0]

    @property
    def parts(self) -> dict[str, str]:
        """Whether each part of the proof is verified, failed or not compared.

        "weights" follow from Q and K. "projections" make Q, K, V and the output of a module from
        its input. "positions" say which token a row is. "output" is that of the whole model.
        "input" is what reached the model: "differs" from its own call, where it does.
        """
        left_out = {stage for _, stage, _ in self.not_compared}
        of_projections = [check for check in self.checks if check.stage in PROJECTED]
        of_weights = [check for check in self.checks if check.stage not in PROJECTED]

        def state(checks: Sequence[Any], *, complete: bool = True) -> str:
            if self.given:
                return "not compared"
            if self.altered or not all(check.passed for check in checks):
                return "failed"
            return "verified" if checks and complete else "not compared"

        weights = state(of_weights, complete="weights" not in left_out)
        unproven = (self.unproven or not self.checks) and weights == "verified"
        equal = None if self.given or self.input is None else self.input.equal
        positions = [] if self.positions is None or self.positions.doubt else [self.positions]
        output = state([] if self.output is None else [self.output])
        return {
            "weights": "not proven" if unproven else weights,
            "projections": state(of_projections, complete=not left_out & {*PROJECTED}),
            "positions": state(positions),
            "output": "not proven" if self.output is not None and self.output.blind else output,
            "input": {True: "verified", False: "differs", None: "not compared"}[equal],
        }

    @property
    def coverage(self) -> dict[str, Any]:
        """What the verdict is about, as types of JSON.

        The stages that were compared and those that were not; the number of heads; the positions
        that were tried, of how many, and in how many layers; the words that the tokenizer does not
        know; and whether another attention would have shown in the output (None: not tried).
        """
        tried, output = self.positions, self.output
        shows = None if output is None or output.moved is None else not output.blind
        return {
            "compared": [*dict.fromkeys(check.stage for check in self.checks)],
            "not_compared": self._left_out,
            "heads": self.heads,
            "positions": tried and [sum(tried.changed.values()), tried.of, tried.layers],
            "unknown_words": [] if self.input is None else [*self.input.unknown],
            "output_shows_attention": shows,
        }

    @property
    def _left_out(self) -> list[str]:
        unknown = self.positions is None and not self.given
        stages = dict.fromkeys(stage for _, stage, _ in self.not_compared)
        return [*stages, *(["positions"] if unknown else [])]

    @property
    def first_difference(self) -> StageCheck | None:
        """The first stage that does not agree, in the order of execution."""
        return next((check for check in self.checks if not check.passed), None)

    @property
    def heads(self) -> int:
        """The number of heads whose weights were compared."""
        return sum(self._heads)

    @property
    def _heads(self) -> tuple[int, int]:
        """How many of them have a softmax, and how many are of linear attention."""
        checks = {(c.path, c.stack, c.layer): c for c in self.checks if c.stage == "weights"}
        heads = [(check.stack == LINEAR, len(check.differences)) for check in checks.values()]
        linear = sum(count for is_linear, count in heads if is_linear)
        return sum(count for _, count in heads) - linear, linear

    def _match(self, weights: str, heads: str = "heads") -> str:
        """Return what matches the model, in words: its weights, or what its matrices mix."""
        softmax, linear = self._heads
        matching = f"{softmax} {heads}{self._on_texts} match the model's {weights}"
        mixing = f"{linear} heads of linear attention{self._on_texts} mix random values"
        if softmax and linear:
            mixing = f"{matching}, and {linear} of linear attention mix values"
        how = f"{mixing} as the model does," if linear else matching
        return f"{how} to {self.largest_difference():.1e}"

    @property
    def _on_texts(self) -> str:
        return f" on {self.texts} texts" if self.texts > 1 else ""

    def largest_difference(self, stage: str = "weights") -> float:
        """Return the largest difference of a stage over all layers; NaN if not compared."""
        differences = [check.largest_difference for check in self.checks if check.stage == stage]
        return max(differences, default=float("nan"))

    def summary(self, *, short: bool = False) -> str:
        """Return the verdict as one sentence. short : as captions carry it.

        The short one names the same checks, without the differences that they found beside those of
        the weights.
        """
        if doubt := self._finding[1]:
            return doubt
        weights = f"own {self.dtype} weights"
        others, doubts = self._of_other_parts(short=short), self._of_doubts()
        if not self.checks:  # no map is shown
            return f"{self._start}: {others.removeprefix('; ')}{doubts}"
        if short or self._heads[1]:
            compared = self._match(weights, "heads" if self._heads[1] else "recomputed heads")
        else:
            compared = (
                f"{self.heads} heads{self._on_texts} recomputed in float64 differ from the model's "
                f"{weights} by at most {self.largest_difference():.1e}"
            )
        return (
            f"{self._start}: {compared}"
            + self._of_rows(short=short)
            + others
            + doubts
            + (f"; recomputed now: {', '.join(self.recomputed)}" if self.recomputed else "")
        )

    def captions(self) -> list[str]:
        """Return the verdict for a caption, the longest first; all name what is in doubt."""
        longest = self.summary(short=True)
        if self._finding[1] or self.recomputed or not self.checks:
            return [longest]
        brief = f"{self._start}: {self._match('weights')}" + self._of_rows(short=True)
        doubts = self._of_doubts()
        return [longest, brief + self._of_other_parts(short=True) + doubts, brief + doubts]

    @property
    def _finding(self) -> tuple[Verdict, str]:
        """The verdict, and its sentence where the weights are not verified; else ""."""
        if self.given:
            return "not verified", "weights given by the user, not verified"
        for check in (self.output, self.positions, *self.analysis):
            if check is not None and not check.passed:
                return "failed", f"NOT VERIFIED: {check.reason}"
        if (first := self.first_difference) is not None:
            heads = listed([*map(str, first.failed_heads)])
            head = f", head {heads}" if len(first.differences) > 1 else ""
            # A number too large for float16 becomes infinite, and NaN after that.
            is_narrow = self.dtype == "float16" and "finite" in first.reason
            hint = "; try bfloat16 or float32" if is_narrow else ""
            return "failed", (
                "NOT VERIFIED: differs from the model's own attention first at "
                f"{first.place}, {first.stage}{head} ({first.reason}{hint})"
            )
        if self.altered:
            return "failed", "NOT VERIFIED: these numbers are not those that were checked"
        if self.output is not None and self.output.blind:
            modules = listed(self.output.blind)
            return "not proven", (
                f"NOT PROVEN: the output would show no other attention in {modules}"
            )
        shows = self.output is not None and self.output.moved is not None
        if self.unproven or not (self.checks or shows):
            places = ", ".join(self.unproven) or "any layer"
            return "not proven", f"NOT PROVEN: a scale 1 % off would go unnoticed in {places}"
        in_doubt = self.positions is not None and self.positions.doubt
        return "positions not verified" if in_doubt else "verified", ""

    def about(self) -> dict[str, Any]:
        """Return the verdict, then every stage of every head, as types of JSON."""
        first, fields = self.first_difference, asdict(self)
        first_difference = first and {
            **described(first, "stack layer stage"),
            "heads": list(first.failed_heads),
        }
        for name in ("checks", "not_compared", "digests", "digest", "given"):
            del fields[name]
        stages = dict.fromkeys(check.stage for check in self.checks)
        return {
            "verdict": self.verdict,
            "parts": self.parts,
            "coverage": self.coverage,
            "summary": self.summary(),
            "heads": self.heads,
            "first_difference": first_difference,
            **fields,
            "analysis": [{"passed": check.passed, **asdict(check)} for check in self.analysis],
            "output": self.output and {"passed": self.output.passed, **asdict(self.output)},
            "largest_differences": {stage: self.largest_difference(stage) for stage in stages},
            "not_compared": [
                {"place": place, "stage": stage, "reason": reason}
                for place, stage, reason in self.not_compared
            ],
            "checks": [{"passed": check.passed, **asdict(check)} for check in self.checks],
        }

    def _of_other_parts(self, *, short: bool) -> str:
        """Return what agrees beside the weights, in words."""
        is_own = not short and self.input is not None and not self.input.differs
        names = ("input", "projections", "positions") if is_own else ("projections", "positions")
        parts = [part for part in names if self.parts[part] == "verified"]
        if parts and parts[-1] == "positions" and (tried := self.positions) is not None:
            changed = sum(tried.changed.values())
            some = f"{changed} of {tried.of} " if changed < tried.of else ""
            where = f"{tried.layers} layers" if tried.layers > 1 else "first layer"
            where = where if tried.layers > 1 or short else f"the {where}"
            parts[-1] = f"{some}positions" + (f" ({where})" if short else f" in {where}")
        parts += [check.name for check in self.analysis]
        if (output := self.output) is not None:
            how = f"to {output.difference:.1e}" if output.difference else "exactly"
            is_part = output.tokens is not None and output.tokens != (self.rows or (0, 0))[1]
            start = f" for the first {output.tokens:,} tokens" if is_part else ""
            whole = f"the output of the model as loaded{start} ({how})"
            if output.moved is not None and output.moved <= output.tolerance:
                moved = _percent(output.moved)
                whole = f"{whole[:-1]}, of {moved} by another attention in a layer)"
            parts.append(f"output{start}" if short else whole)
        return f"; {joined(parts)} {'agree' if len(parts) > 1 else 'agrees'}" if parts else ""

    @property
    def _start(self) -> str:
        """The verdict in words, why the positions are not verified, and its day."""
        when = f" when saved on {self.saved}" if self.saved else ""
        if self.verdict != "positions not verified" or self.positions is None:
            return f"verified{when}"
        return f"POSITIONS NOT VERIFIED: {self.positions.doubt}; all that was compared agrees{when}"

    def _of_doubts(self) -> str:
        left_out = ", ".join(self._left_out)
        reason = "" if self.input is None else self.input.reason
        doubts = {"not compared": left_out, "input": reason}
        return "".join(f"; {what}: {text}" for what, text in doubts.items() if text)

    def _of_rows(self, *, short: bool) -> str:
        if self.rows is None:
            return ""
        some, every = self.rows
        which = f"{some:,} of {every:,} rows ({_percent(some / every)} of the weights)"
        which = f"all {every:,} rows" if some == every else which
        if short:
            return f" in {which}"
        share = self.largest_difference("summary")
        return (
            f" in {which}; the stored summaries differ by at most {share:.1e} of the largest "
            "number of their kind, in these and one row of cells"
        )


def _worst(checks: Sequence[tuple[AnalysisCheck, ...]]) -> Iterator[AnalysisCheck]:
    """Yield of each kind of numbers that all reports have the check with the largest strain."""
    every = [check for several in checks for check in several]
    for name in dict.fromkeys(check.name for check in every):
        same = [check for check in every if check.name == name]
        if len(same) >= len(checks):
            yield max(same, key=lambda check: (not check.passed, check.strain))


def _amount(share: float) -> str:
    return "in shape" if share == float("inf") else f"by {_percent(share)}"


def _percent(share: float) -> str:
    """Return a share with two significant digits: "44 %", "0.008 %"."""
    percent = 100 * share
    digits = f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"
    return f"{digits}\N{NO-BREAK SPACE}%"
