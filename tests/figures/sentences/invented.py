"""Results with invented numbers, whose sentences must be right, too: signs, other branches."""

from dataclasses import replace

import torch

from figures.sentences.cases import RUNS, Case, in_terminal
from figures.sentences.corpus import COLUMNS, COMPARE, EXPLORE, SURVEY
from figures.sentences.effects import ABLATE, EXPLAIN
from figures.sentences.facts import facts_of
from figures.sentences.proof import COMMON
from figures.sentences.sources import saved
from figures.sentences.words import SENSES, SHIFT


def ablate(generator):
    result = saved("ablate")
    numbers = {name: draw(generator, getattr(result, name)) for name in ("lost", "estimate")}
    yield in_terminal("ablate", ABLATE, *both(altered(result, **numbers)))


def explain(generator):
    """Contributions sum to the difference; interventions agree in some draws, and not in others."""
    result = saved("explain")
    split, common = result.decomposition, draw(generator, result.causal["mask"])
    credit = draw(generator, split.credit)
    mixed = torch.rand((), generator=generator)
    causal = {
        name: common + mixed * draw(generator, lost) for name, lost in result.causal.items()
    }  # fmt: skip
    total = float(credit.sum())
    value = result.value if generator.initial_seed() % 2 else split.value * (total / split.total)
    parts = {"value": value} if isinstance(value, torch.Tensor) else {}
    split = replace(split, credit=credit, total=total, **parts)
    numbers = {"number": "log-probability", "against": None} if parts else {}
    numbers |= {"causal": causal, "decomposition": split, "value": result.baseline + total}
    yield in_terminal("explain", EXPLAIN, *both(altered(result, **numbers)))
    if not numbers.get("number"):
        yield in_figure("explain", EXPLAIN, *both(altered(result, **numbers)))


def shift(generator):
    for name in ("shift", "shift-causally"):
        result = saved(name)
        common, mixed = draw(generator, result.causal["mask"]), torch.rand((), generator=generator)
        causal = {key: common + mixed * draw(generator, of) for key, of in result.causal.items()}
        changed = altered(result, causal={key: 0.4 * of for key, of in causal.items()})
        yield in_terminal(name, SHIFT, *both(changed))


def senses(generator):
    """Right ones are drawn, and the scores are theirs; some states tell the senses apart."""
    result = saved("senses")
    share = 0.5 + 0.5 * torch.rand((), generator=generator)
    right = (torch.rand(result.right.shape, generator=generator) < share).float()
    others = (torch.rand(right.shape[1:], generator=generator) < 0.5).float()
    seed = generator.initial_seed()
    if seed % 3 == 0:  # clearly better than the other words, from the first layer on or at the end
        first = -1 if seed % 2 else 1
        right[:first], right[first:], others = 0.0, 1.0, torch.zeros_like(others)
    own = torch.tensor(
        [[one.sense == name for one in result.occurrences] for name in result.senses]
    )
    scores = []
    for score, of_state in zip(result.scores, right, strict=True):
        is_sure = seed % 3 == 0 or torch.rand((), generator=generator) < (seed % 3) - 0.3
        accuracy = float(of_state.mean())
        recalls = tuple(float(of_state[of].mean()) for of in own)
        ends = {"low": 0.65 * accuracy, "high": 0.4 + 0.6 * accuracy}
        p = 0.001 if accuracy > 0.8 and is_sure else 0.3
        scores.append(replace(score, accuracy=accuracy, recalls=recalls, p_value=p, **ends))
    context = replace(result.context, accuracy=float(others.mean()), low=0.0, high=1.0)
    accuracies = [one.accuracy for one in scores]
    best = accuracies.index(max(accuracies))
    changed = altered(result, right=right, context_right=others, scores=tuple(scores), best=best,
                      context=context)  # fmt: skip
    yield in_terminal("senses", SENSES, *both(changed))


def survey(generator):
    changed = with_roles(saved("survey"), generator)
    yield in_terminal("survey", SURVEY, *both(changed))
    if generator.initial_seed() < 2:
        yield in_figure("survey", SURVEY, *both(changed))


def with_roles(result, generator):
    """Return a survey whose heads have drawn roles, and as much weight there as roles need."""
    roles, mean = [*result.roles], result.mean.clone()
    for n in range(len(roles)):
        role = [*COLUMNS, ""][int(torch.randint(len(COLUMNS) + 1, (), generator=generator))]
        roles[n] = role
        if role:
            column = result.statistics.index(COLUMNS[role])
            mean[n, column] = result.even[n, column] + 0.3 + 0.01 * n
    return altered(result, roles=tuple(roles), mean=mean)


def explore(generator):
    result = RUNS.explored
    changed = with_roles(result.survey, generator)
    notes = tuple(note for note in changed.notes if not note.startswith("too few"))
    yield in_terminal(
        "explore", EXPLORE, *both(altered(result, survey=altered(changed, notes=notes)))
    )


def compare(generator):
    result = saved("compare")
    mean = result.mean + 0.1 * torch.rand(result.mean.shape, generator=generator)
    p_value = torch.rand(result.p_value.shape, generator=generator) * 0.3
    apart = torch.rand(result.apart.shape, generator=generator).double()
    numbers = {"mean": mean, "change": mean.diff(dim=0), "p_value": p_value, "apart": apart}
    changed = altered(result, **numbers)
    yield in_terminal("compare", COMPARE, *both(changed))
    if generator.initial_seed() < 2:
        yield in_figure("compare", COMPARE, *both(changed))


def altered(result, **fields):
    """Return a result with other numbers, of which the verdict is said to be."""
    for name in ("agreement", "agreements"):
        reports = vars(result).get(name)
        if isinstance(reports, tuple):
            fields[name] = tuple(replace(one, digest=None) for one in reports)
        elif reports is not None:
            fields[name] = replace(reports, digest=None)
    return replace(result, **fields)


def draw(generator, like):
    """Return drawn numbers of the same shape; those that are not known stay so."""
    numbers = torch.randn(like.shape, generator=generator, dtype=like.dtype)
    return torch.where(like.isnan(), like, numbers)


def both(result):
    return facts_of(result), result


def in_figure(name, patterns, facts, result):
    """Return what a drawn figure says beside its axes, in the order in which it was written."""
    lines = tuple(text.get_text() for text in result.plot().texts if text.get_text().strip())
    return Case(f"drawn {name}", facts, [*patterns, *COMMON], groups=(lines,))


INVENTED = {one.__name__: one for one in (ablate, explain, shift, senses, survey, explore, compare)}
