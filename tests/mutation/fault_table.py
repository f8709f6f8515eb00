"""The table at the end of `pytest tests/mutation`: planted faults, caught faults, and margins.

Tests store their measurements as report properties, which xdist workers transmit.
"""

from collections import defaultdict
from math import isfinite


class FaultTable:
    """Record the measurements of one test.

    All errors are relative to the tolerance: a check fails at 1 or more.
    """

    def __init__(self, record_property):
        self._record = record_property

    def fault(self, place):
        """Record a fault planted at `where`; it is caught if the test passes."""
        self._record("fault", place)

    def equivalent(self, name):
        """Record a change that is not a fault; this is confirmed if the test passes."""
        self._record("equivalent", name)

    def elsewhere(self, test):
        """Record a test in another folder that also plants faults."""
        self._record("elsewhere", test)

    def figure(self, kind, stage, dtype, strain):
        """Record the relative error of a stage; `kind` is "honest" or "planted"."""
        if isfinite(strain):
            self._record(kind, (stage, str(dtype).removeprefix("torch."), float(strain)))

    def honest(self, checks, dtype):
        """Record the largest relative error of each stage without a fault."""
        largest = defaultdict(float)
        for check in checks:
            largest[check.stage] = max(largest[check.stage], strain_of(check))
        for stage, strain in largest.items():
            self.figure("honest", stage, dtype, strain)

    def planted(self, checks, dtype):
        """Record the errors of checks that caught a fault, except for weight on hidden keys."""
        for check in checks:
            if check.hidden_zero and check.finite:
                self.figure("planted", check.stage, dtype, strain_of(check))


def strain_of(check):
    """Return the largest error of a check, of its numbers or their slope, ÷ what passes."""
    errors, tolerances = list(check.slope_errors), list(check.slope_tolerances)
    if check.slope_error is not None:
        errors.append(check.slope_error)
        tolerances.append(check.slope_tolerance)
    slopes = (abs(error) / most for error, most in zip(errors, tolerances, strict=True))
    return max([check.strain, *slopes])


def print_table(terminal, reports):
    """Print the table; `reports` are the call reports of all tests."""
    measurements = defaultdict(list)
    for report in reports:
        for name, value in report.user_properties:
            measurements[name].append((value, report.passed))
    if not measurements["fault"] and not measurements["honest"]:
        return
    terminal.write_sep("=", "planted faults")
    _print_strains(terminal, measurements)
    counts = defaultdict(list)
    for place, caught in measurements["fault"]:
        counts[place].append(caught)
        counts["total"].append(caught)
    for place in sorted(counts, key="total".__eq__):
        terminal.write_line(f"{place:26}{sum(counts[place]):>6} of {len(counts[place]):>4} caught")
    same = {name for name, proven in measurements["equivalent"] if proven}
    terminal.write_line(
        f"not faults, because no weight changes: {', '.join(sorted(same)) or 'none'}"
    )
    for test, passed in measurements["elsewhere"]:
        terminal.write_line(f"{'also planted' if passed else 'NOT FOUND'}: {test}")


def _print_strains(terminal, measurements):
    """Print the margin between honest and planted errors for each stage and dtype."""
    strains = {
        kind: [(tuple(value[:2]), value[2]) for value, _ in measurements[kind]]
        for kind in ("honest", "planted")
    }
    keys = dict.fromkeys(key for pairs in strains.values() for key, _ in pairs)
    seen = {dtype for _, dtype in keys}
    dtypes = [dtype for dtype in ("float32", "float16", "bfloat16") if dtype in seen]
    terminal.write_line(
        "the largest honest error and the smallest planted one; above 1 a check fails"
    )
    terminal.write_line(" " * 18 + "".join(f"{dtype:^27}" for dtype in dtypes))
    terminal.write_line(" " * 18 + f"{'honest':>8}{'planted':>10}{'ratio':>7}  " * len(dtypes))
    for stage in dict.fromkeys(stage for stage, _ in keys):
        line = f"{stage:18}"
        for dtype in dtypes:
            by_kind = {k: [s for key, s in strains[k] if key == (stage, dtype)] for k in strains}
            honest, planted = (
                max(by_kind["honest"], default=None),
                min(by_kind["planted"], default=None),
            )
            ratio = f"{planted / honest:,.0f}×" if honest and planted else "–"
            line += f"{_format(honest):>8}{_format(planted):>10}{ratio:>7}  "
        terminal.write_line(line.rstrip())


def _format(strain):
    return "–" if strain is None else f"{strain:,.2f}" if strain < 100 else f"{strain:,.0f}"
