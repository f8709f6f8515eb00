"""The reports of results from files, which say on which day they were saved."""

from dataclasses import is_dataclass

from attnviz.results import AgreementReport


def forget_day(value):
    """Return a loaded result, or a part of one, whose reports are as they were before."""
    if isinstance(value, AgreementReport):
        assert value.saved is not None
        object.__setattr__(value, "saved", None)
    for item in vars(value).values() if is_dataclass(value) else value:
        if isinstance(item, tuple) or is_dataclass(item):
            forget_day(item)
    return value
