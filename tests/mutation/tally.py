"""The table that `pytest tests/mutation` ends with: what was planted, caught, and how far apart.

Tests hand on what they measured as properties of their reports, which xdist's workers send along.
"""

from collections import defaultdict
from math import isfinite


class Tally:
    """What one test has to tell.

    All errors are told in units of what passes: from 1 on a check fails.
    """

    def __init__(self, record_property):
        self._tell = record_property

    def fault(self, where):
        """One fault is planted `where`; it is caught if the test passes."""
        self._tell("fault", where)

    def equivalent(self, name):
        """Tell what looks like a fault and is none; it is proven if the test passes."""
        self._tell("equivalent", name)

    def elsewhere(self, test):
        """Tell which test in another folder plants faults too."""
        self._tell("elsewhere", test)

    def figure(self, kind, stage, dtype, strain):
        """Tell the strain of a stage: its `kind` is "honest" or "planted"."""
        if isfinite(strain):
            self._tell(kind, (stage, str(dtype).removeprefix("torch."), float(strain)))

    def honest(self, checks, dtype):
        """Tell the largest strain of each stage without a fault."""
        largest = defaultdict(float)
        for check in checks:
            largest[check.stage] = max(largest[check.stage], strain_of(check))
        for stage, strain in largest.items():
            self.figure("honest", stage, dtype, strain)

    def planted(self, checks, dtype):
        """Tell the strains of the checks that caught a fault; a masked key with weight has none."""
        for check in checks:
            if check.hidden_zero and check.finite:
                self.figure("planted", check.stage, dtype, strain_of(check))


def strain_of(check):
    """Return by how much a check would fail: its largest difference or its slope."""
    return max(check.strain, check.slope_strain)


def print_table(terminal, reports):
    """Write the table under the tests; reports : those of the calls of all tests."""
    told = defaultdict(list)
    for report in reports:
        for name, what in report.user_properties:
            told[name].append((what, report.passed))
    if not told["fault"] and not told["honest"]:
        return
    terminal.write_sep("=", "planted faults")
    _print_strains(terminal, told)
    counts = defaultdict(list)
    for where, caught in told["fault"]:
        counts[where].append(caught)
        counts["all together"].append(caught)
    for where in sorted(counts, key="all together".__eq__):
        terminal.write_line(f"{where:26}{sum(counts[where]):>6} of {len(counts[where]):>4} caught")
    same = {name for name, proven in told["equivalent"] if proven}
    terminal.write_line(f"no faults, since no weight changes: {', '.join(sorted(same)) or 'none'}")
    for test, there in told["elsewhere"]:
        terminal.write_line(f"{'also planted' if there else 'NOT FOUND'}: {test}")


def _print_strains(terminal, told):
    """Write for each stage and dtype how far honest errors and faults are apart."""
    strains = {
        kind: [(tuple(what[:2]), what[2]) for what, _ in told[kind]]
        for kind in ("honest", "planted")
    }
    keys = dict.fromkeys(key for found in strains.values() for key, _ in found)
    dtypes = [each for each in ("float32", "float16", "bfloat16") if each in {d for _, d in keys}]
    terminal.write_line(
        "the largest honest error and the smallest planted one; above 1 a check fails"
    )
    terminal.write_line(" " * 18 + "".join(f"{dtype:^27}" for dtype in dtypes))
    terminal.write_line(" " * 18 + f"{'honest':>8}{'planted':>10}{'apart':>7}  " * len(dtypes))
    for stage in dict.fromkeys(stage for stage, _ in keys):
        line = f"{stage:18}"
        for dtype in dtypes:
            of = {k: [s for key, s in strains[k] if key == (stage, dtype)] for k in strains}
            honest, planted = max(of["honest"], default=None), min(of["planted"], default=None)
            apart = f"{planted / honest:,.0f}×" if honest and planted else "–"
            line += f"{_said(honest):>8}{_said(planted):>10}{apart:>7}  "
        terminal.write_line(line.rstrip())


def _said(strain):
    return "–" if strain is None else f"{strain:,.2f}" if strain < 100 else f"{strain:,.0f}"
