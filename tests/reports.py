"""The reports of results: what binds them to numbers, and the day of results from files."""

from dataclasses import is_dataclass, replace

from attnviz import AgreementReport
from attnviz.results import digests_of
from attnviz.results.base import digests


def forget_day(value):
    """Return a loaded result, or a part of one, whose reports are as they were before."""
    if isinstance(value, AgreementReport):
        assert value.saved is not None
        object.__setattr__(value, "saved", None)
    for item in vars(value).values() if is_dataclass(value) else value:
        if isinstance(item, tuple) or is_dataclass(item):
            forget_day(item)
    return value


def forged(report, records):
    """Return a report that is bound to other records."""
    return replace(report, digests=digests_of(records))


def digest(tensor):
    """Return the digest by which a report knows a tensor."""
    return digests([{"x": tensor}])[0]
