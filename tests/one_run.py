"""Tests read the same texts again and again: run a model once on the same texts.

What takes long to find in a vocabulary is found once, too.
"""

from weakref import WeakKeyDictionary

from attnviz.analyses.survey import corpus
from attnviz.attribution import interventions, reference
from attnviz.pipeline import attend


class Runs:
    """Runs each model once on the same texts, as long as nothing in it changes.

    anew : run every time.
    """

    def __init__(self):
        self.done, self.run, self.anew = WeakKeyDictionary(), attend.run, False

    def __call__(self, checkpoint, inputs, options):
        if self.anew or inputs.pictures or inputs.sounds or inputs.arguments:
            return self.run(checkpoint, inputs, options)
        loaded = checkpoint.loaded or checkpoint  # each run has a shadow of its own
        module = loaded.module
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
        owned = [one for m in module.modules() for one in vars(m).values()]
        numbers = [one for one in owned if isinstance(one, (int, float))]  # such as a scale
        state = checkpoint.current_sha256(), module.config._attn_implementation, hooks, numbers
        key = repr((state, inputs, options))
        done = self.done.setdefault(loaded, {})
        if key not in done:
            done[key] = self.run(checkpoint, inputs, options)
        return [*done[key]]


def once_by_tokenizer(find, anew=lambda: False):
    """Return a function of a model that depends on its tokenizer alone, and is called once for it.

    anew : whether to call it all the same.
    """
    found = WeakKeyDictionary()

    def find_once(model):
        if (tokenizer := model.tokenizer) is None:
            return find(model)
        if anew() or tokenizer not in found:
            found[tokenizer] = find(model)
        return found[tokenizer]

    return find_once


def share_runs(patch, runs, modules=(attend, corpus, reference), model=None):
    """Run models once in these modules, and find the whole words of a vocabulary once.

    model : what is loaded without a name.
    """
    for module in modules:
        patch.setattr(module, "run", runs)
    find_once = once_by_tokenizer(interventions.whole_words, lambda: runs.anew)
    patch.setattr(interventions, "whole_words", find_once)
    load = attend.load

    def load_once(name=None, **how):
        is_plain = name is None and all(value in (None, "auto", "parse") for value in how.values())
        return model if is_plain else load(name, **how)

    if model is not None:
        patch.setattr(attend, "load", load_once)
