"""Tests read the same texts again and again: run a model once on the same texts."""


def remember_runs(patch, *modules):
    """Let modules return what a model gave on the same texts before."""
    done, run = {}, modules[0].run

    def run_once(checkpoint, inputs, options):
        if inputs.pictures or inputs.sounds or inputs.arguments:
            return run(checkpoint, inputs, options)
        key = checkpoint, repr((inputs, options))
        if key not in done:
            done[key] = run(checkpoint, inputs, options)
        return [*done[key]]

    for module in modules:
        patch.setattr(module, "run", run_once)
