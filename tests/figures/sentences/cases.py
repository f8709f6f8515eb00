"""The sentences of each analysis, with the facts that they are about."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace

import torch
from golden import saved_results
from golden.test_golden import LETTER, TRAIN, lines_of

import attnviz
from figures.sentences.corpus import COMPARE, EXPLORE, SURVEY
from figures.sentences.effects import ABLATE, CHECK, EXPLAIN
from figures.sentences.facts import facts_of, facts_of_json, is_label
from figures.sentences.maps import MAPS, STEPS
from figures.sentences.proof import COMMON
from figures.sentences.reading import read_all, read_lines
from figures.sentences.sources import (
    lines_of_figure,
    printed,
    saved,
    sentences_of_json,
)
from figures.sentences.words import SENSES, SHIFT
from figures.sentences.worked import EXAMPLE


@dataclass(frozen=True)
class Case:
    """Some sentences, and what they are about.

    groups : lines of paragraphs and labels, as those of a figure. texts : whole texts.
    """

    name: str
    facts: SimpleNamespace
    patterns: list
    texts: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()

    def problems(self):
        """Return every sentence that no pattern has, or that says something else than its facts."""
        wrong = [one for text in self.texts for one in read_all(text, self.facts, self.patterns)]
        for lines in self.groups:
            wrong += read_lines(lines, self.facts, self.patterns, is_label)
        return [f"{self.name}: {one}" for one in wrong]


def of_command(name, patterns, facts):
    return Case(
        f"attnviz {name} --json", facts, [*patterns, *COMMON], (*sentences_of_json(printed(name)),)
    )


def of_figure(name, patterns, facts):
    groups = tuple(tuple(lines) for lines in lines_of_figure(name))
    return Case(f"figure {name}", facts, [*patterns, *COMMON], groups=groups)


def in_terminal(name, patterns, facts, result):
    """Return the sentences that a terminal prints, without its tables, which have goldens."""
    lines = lines_of(result, width=400)[1:]
    texts = [line for line in lines if line and not re.search("  |[─━]{2}", line)]
    return Case(f"{name} in a terminal", facts, [*patterns, *COMMON], (*texts,))


def described(name, patterns, facts, result):
    """Return the whole caption of a figure, which its file holds as a description."""
    figure = result.plot()
    figure = getattr(figure, "figure", figure)
    return Case(f"caption of {name}", facts, [*patterns, *COMMON], (figure.get_label(),))


def of_saved(name, patterns, figures=()):
    """Yield the sentences of a saved result: in a terminal, in stored figures, and its caption."""
    result, facts = saved(name), facts_of(saved(name))
    yield in_terminal(name, patterns, facts, result)
    for figure in figures:
        yield of_figure(figure, patterns, facts)
    yield described(name, patterns, facts, result)


class Runs:
    """What is computed again, because no golden stores it: each once."""

    @cached_property
    def model(self):
        return attnviz.load(device="cpu")

    @cached_property
    def train(self):
        return attnviz.attend(f"{TRAIN} on time", model=self.model)

    @cached_property
    def letter(self):
        return attnviz.attend(LETTER, model=self.model, mode="streamed", exact=2)

    @cached_property
    def whole_letter(self):
        return heads_of(None, LETTER)

    @cached_property
    def explored(self):
        texts = ["the train left the station", "the cat saw the dog"]
        return attnviz.explore(texts, model=saved_results.model("gpt2"))

    def shift_of_bank(self, text):
        toward = {
            "water": "The boat drifted past the bank of the lake.",
            "money": "She opened an account at the bank.",
        }
        return attnviz.shift("bank", text, toward=toward, model=self.model)


RUNS = Runs()


def measured_again(facts):
    """Return facts whose rounding errors are those of this machine."""
    facts.agreement.measured_again = True
    return facts


def ablate():
    for name in ("ablate", "ablate-decoder"):
        yield of_command(name, ABLATE, facts_of_json("ablate", printed(name)))
    yield from of_saved("ablate", ABLATE, ["ablate"])


def check():
    for name in ("check", "check-swapped"):
        yield of_command(name, CHECK, facts_of_json("check", printed(name)))
    yield from of_saved("check", CHECK, ["check"])


def explain():
    for name in ("explain", "explain-masked", "explain-two-sides"):
        yield of_command(name, EXPLAIN, facts_of_json("explain", printed(name)))
    for name in ("explain", "explain-masked"):
        yield from of_saved(name, EXPLAIN, [name])


def senses():
    facts = measured_again(facts_of(attnviz.senses("bank", model=RUNS.model)))
    yield of_command("senses", SENSES, facts)
    yield of_figure("senses", SENSES, facts)
    yield from of_saved("senses", SENSES, ["senses-of-saved"])


def shift():
    facts = facts_of_json("shift", printed("shift"))
    facts.size = size_of("bank", "The bank was full of cash.")
    yield of_command("shift", SHIFT, facts)
    facts = facts_of_json("shift", printed("shift-causally"))
    facts.toward = {"tech": ["I love computers"], "fruit": ["I love pears"]}
    yield of_command("shift-causally", SHIFT, facts)
    yield of_command("shift-mask", SHIFT, facts_of_json("shift", printed("shift-mask")))
    yield from of_saved("shift", SHIFT, ["shift-of-saved"])
    yield from of_saved("shift-causally", SHIFT, ["shift-causally"])
    for text, figures in (
        ("We sat on the bank of the river.", ("shift", "shift-column")),
        ("The bank was full of {mud|cash}.", ("shift-pair",)),
    ):
        result = RUNS.shift_of_bank(text)
        facts = measured_again(facts_of(result))
        yield described("shift of bank", SHIFT, facts, result)
        yield from (of_figure(name, SHIFT, facts) for name in figures)


def size_of(word, text):
    """Return the norm of the vector of a word at the end, from one run of the model itself."""
    model = RUNS.model
    inputs = model.tokenizer(text, return_tensors="pt")
    at = model.tokenizer.convert_ids_to_tokens(inputs.input_ids[0]).index(word)
    with torch.no_grad():
        return float(model.module(**inputs).last_hidden_state[0, at].norm())


# --- maps of heads


def map_facts(drawn, *, maps=None, asked=None, query=None, length=None, again=True):
    """Return the facts of a map. maps : those of all heads, from which it was chosen."""
    facts = facts_of(drawn)
    facts.query, facts.asked, facts.streamed = query, asked, drawn.sides[0].cell > 1
    facts.length = length
    if maps is not None:
        add_heads(facts, facts_of(maps))
    return measured_again(facts) if again else facts


def add_heads(facts, maps):
    """Add the maps of all heads to the facts of one."""
    facts.overview, facts.of_ranking, facts.ranked_layers = maps.weights, maps, maps.layers
    layer, heads = facts.layer, facts.heads
    facts.whole = maps.weights[maps.layers.index(layer), heads].mean(0)


def heatmap():
    train, letter = RUNS.train, RUNS.letter
    maps = attnviz.head_maps(train)
    for name, options, more in (
        ("heatmap", {"layer": 0, "head": 4}, {}),
        ("heatmap-head", {"layer": 5, "head": 3}, {}),
        ("heatmap-heads", {"layer": 5, "head": [3, 4]}, {}),
        ("heatmap-column", {"layer": 0, "head": 4, "special": "remove"}, {}),
        ("heatmap-hidden", {"layer": 1, "head": 7, "special": "hide"}, {"asked": 1}),
    ):
        drawn = attnviz.attention_map(train, **options)
        yield of_figure(name, MAPS, map_facts(drawn, maps=maps, **more))
    for name, head, part in (
        ("heatmap-long", 9, {}),
        ("heatmap-long-head", 3, {}),
        ("heatmap-long-part", 3, {"rows": slice(10, 30), "columns": slice(5, 25)}),
    ):
        drawn = attnviz.attention_map(letter, layer=2, head=head, **part)
        facts = map_facts(drawn, length=78)
        add_heads(facts, RUNS.whole_letter)
        facts.streamed = True
        yield of_figure(name, MAPS, facts)
    image, cross = saved("result-image"), saved("result-cross")
    of_image, of_cross = attnviz.head_maps(image), attnviz.head_maps(cross)
    for name, drawn, more in (
        ("heatmap-of-saved-map", saved("map"), {"maps": saved("maps")}),
        ("heatmap-image", saved("map-image"), {}),
        ("heatmap-image-patch", attnviz.attention_map(image, layer=1, head=2), {"query": [1, 2]}),
        (
            "heatmap-image-matrix",
            attnviz.attention_map(image, layer=1, head=0),
            {"maps": of_image, "asked": 1},
        ),
        ("heatmap-audio", saved("map-audio"), {}),
        ("heatmap-two-sides", attnviz.attention_map(cross, layer=0, head=3), {"maps": of_cross}),
    ):
        yield of_figure(name, MAPS, map_facts(drawn, again=False, **more))
    yield from commands_of_maps()


def heads_of(model, text=TRAIN, stack=None, **given):
    """Return the facts of all heads of a small model, or of the default one."""
    result = (saved_results.model(model) if model else RUNS.model).attend(text, **given)
    return facts_of(attnviz.head_maps(result.stack(stack) if stack else result))


def of_media(family):
    return facts_of(attnviz.head_maps(saved_results.attend_media(family)))


def commands_of_maps():
    train, letter = facts_of_json("heads", printed("heads")), RUNS.whole_letter
    pair = heads_of(None, "She sat by the bank.", pair="The water was cold.")
    left = "the train left"
    for name, of_all, more in (
        ("heatmap", train, {}),
        ("heatmap-hide", train, {"asked": 1}),
        ("heatmap-special", train, {}),
        ("heatmap-find", train, {"asked_words": ("train", "station")}),
        ("heatmap-streamed", train, {"streamed": True}),
        ("heatmap-long", letter, {"streamed": True, "asked": 2}),
        ("heatmap-part", letter, {"streamed": True, "length": 78}),
        ("heatmap-pair", pair, {}),
        ("heatmap-pieces", heads_of(None, "unbelievable tokenizers"), {"asked": 1}),
        ("decoder-heatmap", heads_of("qwen3"), {"asked": 1}),
        ("decoder-generate", heads_of("gpt2", generate=3), {}),
        ("two-sides-heatmap", heads_of("t5", left, "cross", target="le train part"), {}),
        ("two-sides-decoder", heads_of("t5", left, "decoder", target="le train"), {}),
        ("image-heatmap", of_media("vit"), {"asked": 1}),
        ("image-patch", of_media("vit"), {}),
        ("audio-heatmap", of_media("wav2vec2"), {"asked": 1}),
    ):
        facts = facts_of_json("map", printed(name))
        facts.query, facts.asked, facts.streamed = None, None, False
        for key, value in more.items():
            setattr(facts, key, value)
        add_heads(facts, of_all)
        if "seconds_of_rows" in vars(facts):
            facts.of_ranking.seconds_of_rows = facts.seconds_of_rows
        yield of_command(name, MAPS, facts)


def heads():
    train = RUNS.train
    for name, result, options in (
        ("grid", train, {}),
        ("grid-layer", train, {"layer": 2}),
        ("grid-long", RUNS.letter, {}),
    ):
        facts = measured_again(facts_of(attnviz.head_maps(result, **options)))
        facts.length = 78
        yield of_figure(name, MAPS, facts)
    for name in ("heads", "heads-layer"):
        facts = facts_of_json("heads", printed(name))
        facts.of_ranking = facts_of_json("heads", printed("heads"))
        facts.whole = facts.of_ranking.weights[facts.layers]
        yield of_command(name, MAPS, facts)
    yield described("maps", MAPS, facts_of(saved("maps")), saved("maps"))


def steps():
    for name in ("steps", "steps-chosen", "decoder-steps"):
        facts = facts_of_json("steps", printed(name))
        if name == "steps-chosen":
            facts.heads = [facts.head]
            add_heads(facts, heads_of("gpt2", "apple phones"))
            facts.streamed, facts.asked, facts.query = False, None, None
        yield of_command(name, [*STEPS, *MAPS], facts)
    word = {"layer": 5, "head": 3, "word": "train"}
    ours = measured_again(facts_of(attnviz.steps(RUNS.train, **word)))
    yield of_figure("steps", STEPS, ours)
    yield of_figure("vector", STEPS, ours)
    yield from of_saved("steps", STEPS, ["steps-of-saved", "vector-of-saved"])
    for name, layer, head in (("gated", 1, 1), ("latent", 0, 1)):
        taken = attnviz.steps(saved(f"result-{name}"), layer=layer, head=head)
        yield of_figure(f"steps-{name}", STEPS, facts_of(taken))


# --- heads over a corpus


def survey():
    for name in ("survey", "survey-probe"):
        yield of_command(name, SURVEY, facts_of_json("survey", printed(name)))
    yield from of_saved("survey", SURVEY, ["survey", "survey-column"])


def explore():
    result = RUNS.explored
    facts, page = measured_again(facts_of(result)), result.payload()
    yield in_terminal("explore", EXPLORE, facts, result)
    yield Case("page of explore", facts, [*EXPLORE, *COMMON], (*page["caption"], page["verdict"]))


def compare():
    yield of_command("compare", COMPARE, facts_of_json("compare", printed("compare")))
    yield from of_saved("compare", COMPARE, ["compare"])


def example():
    for name in ("phones", "cat", "likes"):
        facts = facts_of(attnviz.example(name))
        stages = printed(f"example-{name}")["stages"]
        case = of_command(f"example-{name}", EXAMPLE, facts)
        yield replace(case, texts=(*case.texts, *(note for one in stages for note in one["notes"])))
        yield of_figure(f"example-{name}", EXAMPLE, facts)
    yield described("example", EXAMPLE, facts_of(saved("example")), saved("example"))


def verify():
    names = ("verify", "verify-pair", "verify-streamed", "verify-float64", "verify-bfloat16",
             "decoder-verify", "two-sides-verify", "image-verify", "audio-verify")  # fmt: skip
    for name in names:
        data = printed(name)
        yield of_command(name, [], facts_of_json("verify", data | {"agreement": data}))


ANALYSES = {
    one.__name__: one
    for one in (heatmap, heads, steps, senses, shift, explain, ablate, survey, explore, compare,
                check, example, verify)
}  # fmt: skip
