"""Titles and captions of the gallery about models of scripts/fetch_models.py.

The weights are those that transformers returns under eager attention. Nothing of attnviz computes
here.
"""

import ast
import hashlib
import json
import math
import re
import sys
from functools import partial
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import soundfile
import torch
from fetched import PHOTO, load
from PIL import Image
from transformers import AutoImageProcessor, AutoProcessor

from attnviz.models import NAMED
from figures.sentences import gallery
from figures.sentences.maps import HALF, rules_of
from figures.sentences.reading import read_number

CAPTIONS = {}
caption = partial(gallery.caption, among=CAPTIONS)


def eager(name):
    """Return a copy of a model whose code returns its weights, and its tokenizer."""
    model = load(name, torch.float32)
    return gallery.eager(model), model.tokenizer


@gallery.kept
def read(name, ids):
    """Return the weights (layers, heads, T, T), states and most probable next ids of some ids."""
    with torch.no_grad():
        output = eager(name)[0](
            torch.tensor([ids]), output_attentions=True, output_hidden_states=True
        )
    logits = getattr(output, "logits", None)
    return SimpleNamespace(
        weights=torch.cat([*output.attentions]).double().numpy(),
        states=torch.cat([*output.hidden_states]).double().numpy(),
        likely=None if logits is None else logits[0].argmax(-1).numpy(),
    )


def encode(name, text):
    return tuple(eager(name)[1](text)["input_ids"])


def texts_of(stem, name="TEXTS"):
    """Return the texts of a script, separated there by lines and by bars."""
    source = (gallery.GALLERY / f"{stem}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and name in ast.unparse(node.targets[0]).split(", "):
            text = next(one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)
                        and isinstance(one.value, str) and len(one.value) > 9)  # fmt: skip
            return text.replace("\n", "|").split("|")
    raise LookupError(name)


# ------------------------------------------------------------------------------------- induction

COPY = caption(
    "fig22_induction",
    "Such an induction head knows what came next.",
    "That the head causes the copying is likely, but not shown here.",
)
PERIOD, COPIES = 9, 12


@gallery.kept
def copies():
    """Return the weights on what followed (layers, heads), and which next words are right."""
    (words,) = texts_of("fig22_induction", "WORDS")
    ids = torch.tensor([encode("smollm2", f" {word}") for word in words.split()]).flatten()
    torch.manual_seed(0)
    texts = [ids[torch.randperm(len(ids))[:PERIOD]].repeat(2).tolist() for _ in range(COPIES)]
    behind, right = [], []
    for one in texts:
        run = read("smollm2", tuple(one))
        behind.append(np.mean([run.weights[..., t, t - PERIOD + 1] for t in range(9, 18)], axis=0))
        right.append([run.likely[t] == one[t + 1] for t in range(2 * PERIOD - 1)])
    return np.mean(behind, axis=0), np.array(right)


@COPY.sentence("Head <head:h> looks at what followed the same word before")
def copy_title(facts, said):
    behind, _ = copies()
    layer, head = np.unravel_index(behind.argmax(), behind.shape)
    return {"head": f"{layer}.{head}"}


@COPY.sentence("Each text has <period> random words twice.")
def copy_texts(facts, said):
    return {"period": PERIOD}


@COPY.sentence(
    "In the second half, head <name:h> of SmolLM2 (layer <layer>, head <head>, counted from 0) "
    "gives <share> of its weight to the word behind the first occurrence (left: one text; mean of "
    "<texts> texts; uniform weights would give <even>)."
)
def copy_head(facts, said):
    behind, _ = copies()
    layer, head = np.unravel_index(behind.argmax(), behind.shape)
    even = np.mean([1 / (t + 1) for t in range(PERIOD, 2 * PERIOD)])
    one = {"name": f"{layer}.{head}", "layer": layer, "head": head, "share": behind.max()}
    return one | {"texts": COPIES, "even": even}


@COPY.sentence(
    "The model copies: in the second half its most probable next token is the right one in "
    "<second> of the places, in the first half in <first> (right; bands are intervals of <level> "
    "from resampled texts)."
)
def copy_right(facts, said):
    right = copies()[1]
    # A text tells nothing of its first repeated word before it is read.
    return {"second": right[:, PERIOD:].mean(), "first": right[:, : PERIOD - 1].mean(),
            "level": 0.95}  # fmt: skip


@COPY.sentence(
    "Other heads do the same: <others> of <heads> give more than half of their weight to that word."
)
def copy_others(facts, said):
    behind, _ = copies()
    return {"others": (behind > HALF).sum() - 1, "heads": behind.size}


# ------------------------------------------------------------------------------------------ sinks

SINK = caption("fig23_sink")


@gallery.kept
def sinks():
    """Return what the first word, a start token and the word behind it get, (layers, heads)."""
    _, tokenizer = eager("smollm2")
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")  # it separates texts, not messages

    def received(name_ids, key):
        rows = [read("smollm2", ids).weights[..., key + 1 :, key] for ids in name_ids]
        return np.concatenate(rows, axis=-1).mean(-1)

    plain = [encode("smollm2", text) for text in texts_of("fig23_sink")]
    started = [(start, *ids) for ids in plain]
    even = np.mean([1 / (t + 1) for ids in plain for t in range(1, len(ids))])
    return received(plain, 0), received(started, 0), received(started, 1), even


@SINK.sentence("A word takes <first> of the attention if it is first, <behind> after a start token")
def sink_title(facts, said):
    first, _, behind, _ = sinks()
    return {"first": first.mean(), "behind": behind.mean()}


@SINK.sentence(
    "<texts> texts, read by SmolLM2: the share of all attention that goes to one token, by layer "
    "(the mean over heads and later words) and at the right the mean of all layers."
)
def sink_texts(facts, said):
    return {"texts": len(texts_of("fig23_sink"))}


@SINK.sentence("Uniform weights would give the first word <even> (dashed).")
def sink_even(facts, said):
    return {"even": sinks()[3]}


@SINK.sentence("<resting> of <heads> heads give it more than half.")
def sink_heads(facts, said):
    first = sinks()[0]
    return {"resting": (first > HALF).sum(), "heads": first.size}


@SINK.sentence(
    "With a start token in front, the first word of a text comes <place:first|second>: that token "
    "receives <special>.",
    "So it is the place that counts and not the word.",
)
def sink_start(facts, said):
    first, special, behind, _ = sinks()
    assert min(first.mean(), special.mean()) > 10 * behind.mean()
    return {"place": "second", "special": special.mean()} if said else {}


SINK.words(
    "Such an attention sink is what heads read that find nothing to read (Xiao et al., “Efficient "
    "streaming language models with attention sinks”)."
)

# -------------------------------------------------------------------------------- grouped queries

GROUPED = caption(
    "fig25_grouped_queries",
    "The overlap of two heads is the sum of the smaller weight of each word, from nothing in "
    "common to the same weights.",
    "Weights on the first word, on which most heads rest, are left out.",
)


@gallery.kept
def overlaps():
    """Return the overlap of heads with the same keys, and with others, (texts, layers)."""
    same, other = [], []
    for text in texts_of("fig25_grouped_queries"):
        weights = read("smollm2", encode("smollm2", text)).weights[..., 2:, 1:]
        weights = weights / weights.sum(-1, keepdims=True)
        pairs = {True: [], False: []}
        for a in range(weights.shape[1]):
            for b in range(a):
                each = np.minimum(weights[:, a], weights[:, b]).sum(-1).mean(-1)
                pairs[a // 3 == b // 3].append(each)
        same.append(np.mean(pairs[True], axis=0))
        other.append(np.mean(pairs[False], axis=0))
    return np.array(same), np.array(other)


@GROUPED.sentence("Heads that share their keys attend little more alike than other heads")
def grouped_title(facts, said):
    same, other = overlaps()
    assert 0 < (same - other).mean() < 0.1
    return {}


@GROUPED.sentence(
    "In each layer of SmolLM2 <heads> query heads read <groups> sets of keys and values, <size> "
    "heads each."
)
def grouped_sizes(facts, said):
    config = eager("smollm2")[0].config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    return {"heads": heads, "groups": groups, "size": heads // groups}


@GROUPED.sentence(
    "Heads with the same keys have an overlap of <same>, heads of the same layer with other keys "
    "<other> (left: mean of <layers> layers and <texts> texts)."
)
def grouped_overlap(facts, said):
    same, other = overlaps()
    texts, layers = same.shape
    return {"same": same.mean(), "other": other.mean(), "layers": layers, "texts": texts}


@GROUPED.sentence(
    "The difference is <gain> (<low> to <high>, an interval of <level> from resampled texts)."
)
def grouped_interval(facts, said):
    """The interval is a bootstrap: another seed gives nearly the same one."""
    gains = np.subtract(*overlaps()).mean(1)
    random = np.random.default_rng(1)
    means = random.choice(gains, (20_000, len(gains))).mean(1)
    one = {"gain": gains.mean(), "level": 0.95}
    for name, share in (("low", 0.025), ("high", 0.975)):
        shown, end = read_number(said[name])[0], np.quantile(means, share)
        assert abs(shown - end) < 0.002, (name, end)
        one[name] = shown
    return one


@GROUPED.sentence(
    "It is positive in <more> of <layers> layers, and <most> where it is largest (right; bands are "
    "such intervals)."
)
def grouped_layers(facts, said):
    gains = np.subtract(*overlaps()).mean(0)
    return {"more": (gains > 0).sum(), "layers": len(gains), "most": gains.max()}


@GROUPED.sentence("So most of what two heads have in common does not come from shared keys.")
def grouped_conclusion(facts, said):
    same, other = overlaps()
    assert other.mean() > (same - other).mean()
    return {}


# ------------------------------------------------------------------------------------- two senses

LAST = caption("fig26_decoder_senses", "The sentences were written for this figure and are few.")
NAMES = "minilm", "smollm2"


def accuracy(vectors, labels):
    """Return how many vectors (n, d) are nearest to the centroid of the others of their sense.

    Nearness is the cosine of both, from the mean of all other vectors.
    """
    right = 0
    for n, vector in enumerate(vectors):
        others = [m for m in range(len(vectors)) if m != n]
        mean, nearness = vectors[others].mean(0), {}
        for label in set(labels):
            centroid = vectors[[m for m in others if labels[m] == label]].mean(0) - mean
            nearness[label] = centroid @ (vector - mean) / max(np.linalg.norm(centroid), 1e-12)
        right += max(nearness, key=nearness.get) == labels[n]
    return right


@gallery.kept
def last_words(name):
    """Return how many of the last words are right in each state, by their context, and of all."""
    model, tokenizer = eager(name)
    table = model.get_input_embeddings().weight.detach().double().numpy()
    senses = [texts_of("fig26_decoder_senses", sense) for sense in ("RIVER", "MONEY")]
    labels = [n for n, starts in enumerate(senses) for _ in starts]
    states, context = [], []
    for start in (start for starts in senses for start in starts):
        ids = encode(name, f"{start} the bank")
        (place,) = (n for n, one in enumerate(ids) if "bank" in tokenizer.decode([one]))
        states.append(read(name, ids).states[:, place])
        others = [
            one for n, one in enumerate(ids)
            if n != place and one not in tokenizer.all_special_ids
        ]  # fmt: skip
        context.append(table[others].mean(0))
    states = np.stack(states, axis=1)
    right = [accuracy(state, labels) for state in states]
    return right, accuracy(np.stack(context), labels), len(labels)


def widest(right, count):
    """Return Wilson's interval (1927) of a share, and that of half as many; (2, 2), low to high."""

    def ends(n):
        share, z = right / count, 1.96
        wide = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
        return (np.array([-1, 1]) * wide + share + z**2 / (2 * n)) / (1 + z**2 / n)

    return np.array([ends(count), ends(count / 2)])


def is_interval(right, count, low, high):
    """Whether an interval is Wilson's, or wider, but not than that of half as many."""
    narrow, broad = widest(right, count)
    return (
        broad[0] - 0.006 < low < narrow[0] + 0.006 and narrow[1] - 0.006 < high < broad[1] + 0.006
    )


def numbers_of(said, *names):
    return [read_number(said[name])[0] for name in names]


@LAST.sentence("A decoder, too, separates the senses of “bank”, from the words before it")
def last_title(facts, said):
    right, _, count = last_words("smollm2")
    assert right[-1] / count > 0.9
    return {}


@LAST.sentence(
    "A decoder reads only the words before “bank”, so here it ends all <count> sentences, half of "
    "them about rivers and half about money.",
    "Each is classified by the nearest centroid of the others.",
)
def last_sentences(facts, said):
    return {name: last_words("minilm")[2] for name in said}


@LAST.sentence(
    "At the output <one> are correct in all-MiniLM-L6-v2 (<low> to <high>, an interval of <level>, "
    "as the bands) and <two> in SmolLM2 (<from> to <to>); guessing is correct for <chance>."
)
def last_output(facts, said):
    (one, _, count), (two, _, _) = map(last_words, NAMES)
    assert is_interval(one[-1], count, *numbers_of(said, "low", "high"))
    assert is_interval(two[-1], count, *numbers_of(said, "from", "to"))
    ends = {name: numbers_of(said, name)[0] for name in ("low", "high", "from", "to")}
    return ends | {"one": one[-1], "two": two[-1], "level": 0.95, "chance": 0.5}


@LAST.sentence(
    "The senses are separated from layer <one> of <layers> on, and from layer <two> of <others>."
)
def last_since(facts, said):
    """At a layer that is named the classes are right, and before it guessing explains them."""
    layers = [len(last_words(name)[0]) - 1 for name in NAMES]
    for name, since in zip(NAMES, (int(said["one"]), int(said["two"])), strict=True):
        right, _, count = last_words(name)
        assert min(right[since:]) > 0.75 * count
        assert right[since - 1] < min(right[since:])
    return {"one": int(said["one"]), "two": int(said["two"]), "layers": layers[0],
            "others": layers[1]}  # fmt: skip


@LAST.sentence(
    "The mean static embedding of the words before it (dashed) needs no attention and is correct "
    "for <one> and <two>: each model has embeddings of its own, and those of SmolLM2 are hardly "
    "better than guessing here."
)
def last_context(facts, said):
    """An interval of the second, and not of the first, includes guessing."""
    (_, one, count), (_, two, _) = map(last_words, NAMES)
    assert widest(two, count)[0, 0] < 0.5 < min(two / count, widest(one, count)[1, 0])
    return {"one": one / count, "two": two / count}


@LAST.sentence(
    "It is below the band in <one> of <states> states (inputs of layers, output) of MiniLM and in "
    "<two> of <others> states of SmolLM2."
)
def last_band(facts, said):
    """The band is between Wilson's interval and that of half as many, as `is_interval` says."""
    states = {}
    for name, some, all_ in (("minilm", "one", "states"), ("smollm2", "two", "others")):
        right, context, count = last_words(name)
        lows = np.array([widest(one, count)[:, 0] for one in right])
        surely, perhaps = (context / count < lows).sum(0)[::-1]
        assert surely <= int(said[some]) <= perhaps
        states |= {some: int(said[some]), all_: len(right)}
    return states


# ------------------------------------------------------------------------------ patches of a photo

PATCHES = caption(
    "fig15_image_patches",
    "In a head of DINOv2's last layer, patches attend to what they show",
    "(Photo: James S. Davis, U.S. Navy, public domain, from matplotlib.)",
)
SIDE = 518  # pixels, as in the training of DINOv2
THINGS = {  # by their rows and columns of patches
    "face": (slice(7, 21), slice(14, 25)), "wall": (slice(0, 20), slice(28, None)),
    "ribbons": (slice(32, 35), slice(23, 33)),
}  # fmt: skip
TAG = (slice(31, 34), slice(5, 12))  # the name tag


@gallery.kept
def photo():
    """Return the weights of the last and the first layer, (heads, T, T), and norms at the end."""
    model = load("dinov2-small", torch.float32)
    folder = NAMED["dinov2-small"].folder
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil", size=SIDE, crop_size=SIDE)
    with torch.no_grad(), Image.open(PHOTO) as picture:
        output = gallery.eager(model)(
            **processor(picture, return_tensors="pt"),
            output_attentions=True,
            output_hidden_states=True,
        )
    first, last = (output.attentions[n][0].double().numpy() for n in (0, -1))
    return last, first, output.hidden_states[-1][0, 1:].norm(dim=-1).double().numpy()


def shares_of_things(weights):
    """Return what the patches of each thing give to it, weights (patches, patches)."""
    side = math.isqrt(len(weights))
    shares = {}
    for name, place in THINGS.items():
        inside = np.zeros((side, side), bool)
        inside[place] = True
        shares[name] = weights[inside.ravel()][:, inside.ravel()].sum(1).mean()
    return shares


def by_offset(weights):
    """Return the mean weight of all pairs with the same offset, the rows made to sum to 1."""
    side = math.isqrt(len(weights))
    ours, means = weights.reshape(side, side, side, side), np.zeros((side,) * 4)
    for down in range(1 - side, side):
        for across in range(1 - side, side):
            row = np.arange(max(0, -down), min(side, side - down))[:, None]
            column = np.arange(max(0, -across), min(side, side - across))
            cells = row, column, row + down, column + across
            means[cells] = ours[cells].mean()
    means = means.reshape(weights.shape)
    return means / means.sum(1, keepdims=True)


@PATCHES.sentence("DINOv2 divides a photo of Grace Hopper into <rows> × <columns> patches.")
def patches_count(facts, said):
    side = math.isqrt(photo()[0].shape[-1] - 1)
    return {"rows": side, "columns": side}


@PATCHES.sentence(
    "In layer <layer>, head <head>, patches of her face give <face> of their weight to the face "
    "(<near_face> if each two patches had the mean weight of all that lie as far apart in the same "
    "direction), those of the wall <wall> to the wall (<near_wall>), those of the ribbons "
    "<ribbons> to the ribbons (<near_ribbons>), and [CLS] gives the face <cls>."
)
def patches_shares(facts, said):
    last, head = photo()[0], 2
    layers = load("dinov2-small", torch.float32).module.config.num_hidden_layers
    shares = shares_of_things(last[head, 1:, 1:])
    near = shares_of_things(by_offset(last[head, 1:, 1:]))
    assert all(shares[name] > near[name] + 0.1 for name in THINGS)
    side = math.isqrt(last.shape[-1] - 1)
    from_class = last[head, 0, 1:].reshape(side, side)[THINGS["face"]].sum()
    one = {"layer": layers - 1, "head": head, "cls": from_class} | shares
    return one | {f"near_{name}": share for name, share in near.items()}


@PATCHES.sentence(
    "Head <head> of layer <layer> has a sink instead: on average patches give <share> of their "
    "weight to one patch below the name tag."
)
def patches_sink(facts, said):
    received = photo()[1][:, 1:, 1:].mean(1)
    head, patch = np.unravel_index(received.argmax(), received.shape)
    row, column = divmod(patch, math.isqrt(received.shape[1]))
    assert TAG[0].stop <= row < TAG[0].stop + 2
    assert TAG[1].start <= column < TAG[1].stop
    return {"head": head, "layer": 0, "share": received.max()}


@PATCHES.sentence(
    "It is no outlier like those that Darcet et al. replace by registers: its norm after the last "
    "layer is <norm> times the median of all patches, and none exceeds <largest> times."
)
def patches_norms(facts, said):
    _, first, norms = photo()
    norms = norms / np.median(norms)
    assert norms.max() <= float(said["largest"])
    sink = first[:, 1:, 1:].mean(1).max(0).argmax()
    return {"norm": norms[sink], "largest": norms.max()}


@gallery.FILES.sentence(
    "White frame: the patch that attends; red: the patches that it attends to most."
)
def file_marks(file, said):
    assert file.stem == "fig15_image_patches"
    return {}


@gallery.FILES.sentence("Layer <layer>, head <head>; in the last panel layer <first>, head <sink>.")
def file_patches(file, said):
    """The caption of the page names the same heads, and is checked."""
    assert file.stem == "fig15_image_patches"
    return {"layer": 11, "head": 2, "first": 0, "sink": 5}


# --------------------------------------------------------------------------------- frames of sound

SOUND = caption(
    "fig16_sound_frames",
    "A head of Whisper reads each word where it is spoken",
    "Red frames last from where a word begins to where the next one does, as the synthesizer "
    "reports it.",
)


@gallery.kept
def listened():
    """Return the words, when each is spoken, and the weights on frames, (layers, heads, words, F).

    A step writes the token after it. Frames are in seconds; the sound is that of the recording.
    """
    spoken = json.loads((gallery.GALLERY / "speech.json").read_text(encoding="utf-8"))
    samples, rate = soundfile.read(gallery.GALLERY / "speech.flac")
    model = load("whisper-tiny.en", torch.float32)
    module = gallery.eager(model)
    processor = AutoProcessor.from_pretrained(NAMED["whisper-tiny.en"].folder)
    sound = processor(samples, sampling_rate=rate, return_tensors="pt").input_features
    start = processor.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>"])
    ids, end = [*start], processor.tokenizer.eos_token_id
    with torch.no_grad():
        while ids[-1] != end and len(ids) < 30:
            output = module(sound, decoder_input_ids=torch.tensor([ids]), output_attentions=True)
            ids.append(int(output.logits[0, -1].argmax()))
    tokens = [processor.tokenizer.decode([id_]) for id_ in ids]
    assert "".join(tokens[2:-1]).strip() == spoken["text"]
    steps = [tokens.index(f" {word}") - 1 for word in spoken["words"]]
    weights = torch.cat([*output.cross_attentions])[:, :, steps].double().numpy()
    frames = np.arange(weights.shape[-1]) * 30 / weights.shape[-1]
    seconds = len(samples) / rate
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max()) / rate
    return SimpleNamespace(
        text=spoken["text"], words=spoken["words"], weights=weights, frames=frames,
        is_sound=frames < seconds, loud=loud, begins=np.array(spoken["onsets"]),
        ends=np.array([*spoken["onsets"][1:], seconds]),
    )  # fmt: skip


def heads_in_agreement():
    """Return the heads that agree on when words begin, as the guide lists them."""
    guide = (gallery.GALLERY / "guides" / "models.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"heads in agreement: ([\d., ]+) \|", guide)
    return [tuple(map(int, one.split("."))) for one in listed.split(", ")]


@gallery.kept
def sharpest():
    """Return the head with the sharpest weights, those on the sound, and which are of the word."""
    heard = listened()
    head = max(heads_in_agreement(), key=lambda one: (heard.weights[one] ** 2).sum())
    weights = heard.weights[head][:, heard.is_sound]
    middles = heard.frames[heard.is_sound] + heard.frames[1] / 2
    is_word = (middles > heard.begins[:, None]) & (middles < heard.ends[:, None])
    return head, weights / weights.sum(1, keepdims=True), is_word, middles


@SOUND.sentence(
    "A synthetic voice says “<text:w>” Whisper tiny.en writes the sentence; each row is the step "
    "that writes one word, and what it attends to among <frames> frames of the sound."
)
def sound_text(facts, said):
    return {"text": listened().text, "frames": listened().is_sound.sum()}


@SOUND.sentence(
    "In head <head:h> the largest weight lies within the word that is written for <hits> of "
    "<words> words.",
    "That word gets <inside> of the weight on the sound, and would get <even> of even weights.",
)
def sound_hits(facts, said):
    head, weights, is_word, _ = sharpest()
    hits = is_word[range(len(weights)), weights.argmax(1)]
    one = {"head": "{}.{}".format(*head), "hits": hits.sum(), "words": len(hits)}
    one |= {"inside": (weights * is_word).sum(1).mean(), "even": is_word.mean()}
    return {name: one[name] for name in said}


@SOUND.sentence("The silence after “<word:w>” is skipped.")
def sound_silence(facts, said):
    """The longest silence gets less than a tenth of even weights."""
    _, weights, _, middles = sharpest()
    loud, heard = listened().loud, listened()
    longest = int(np.diff(loud).argmax())
    silent = (middles > loud[longest]) & (middles < loud[longest + 1])
    assert weights[:, silent].sum(1).mean() < silent.mean() / 10
    return {"word": heard.words[int((heard.begins < loud[longest]).sum()) - 1]}


@SOUND.sentence(
    "Not drawn is the silence up to <window> s, with which Whisper pads every sound; it gets "
    "<padding> of the weight."
)
def sound_padding(facts, said):
    heard, (head, *_) = listened(), sharpest()
    return {"window": 30, "padding": heard.weights[head][:, ~heard.is_sound].sum(1).mean()}


@SOUND.sentence(
    "No onset was used to choose the head: of the <few> heads that agree on when words begin "
    "(guides/models.md), it has the sharpest weights."
)
def sound_choice(facts, said):
    """The head that is named is checked to be the sharpest."""
    return {"few": len(heads_in_agreement())}


gallery.FILES.words(
    "Red: where the word of a row is spoken, and how much of the weight of the row lies there."
)

# ------------------------------------------------------------------------------ atoms of reactions

ATOMS = caption("fig21_atoms", "RXNMapper was trained to fill in masked tokens of reactions.")


@gallery.kept
def published():
    """Return the reactions with published maps of their atoms."""
    if str(gallery.GALLERY) not in sys.path:
        sys.path.insert(0, str(gallery.GALLERY))
    from reactions import PUBLISHED

    return PUBLISHED


@gallery.kept
def mapped():
    """Return by reaction the weights from atoms of the product to the others, and the origins."""
    model, found = load("rxnmapper", torch.float32), []
    for reaction, origins in published().items():
        ids = model.tokenizer(reaction).input_ids
        tokens = model.tokenizer.convert_ids_to_tokens(ids)
        named = [any(map(str.isalpha, one)) and one not in ("[CLS]", "[SEP]") for one in tokens]
        arrow, is_atom = tokens.index(">>"), np.array(named)
        before = np.arange(len(tokens)) < arrow
        weights = read("rxnmapper", tuple(ids)).weights[:, :, is_atom & ~before]
        found.append((weights[..., is_atom & before], np.array(origins)))
    return found


def right_atoms():
    return sum((weights.argmax(-1) == origins).sum(-1) for weights, origins in mapped())


@ATOMS.sentence("One head of RXNMapper tells where <right> of <count> atoms of products come from")
def atoms_title(facts, said):
    return {"right": right_atoms().max(), "count": sum(len(one) for _, one in mapped())}


@ATOMS.sentence(
    "In layer <layer>, head <head>, an atom of the product gives its largest weight among the "
    "atoms of the reactants to the one that it comes from: for <right> of <count> atoms, in the "
    "<reactions> reactions whose maps are published with its package (Schwaller et al.; the bars)."
)
def atoms_right(facts, said):
    """The head is one of the best; the bars have what it tells of each reaction."""
    right = right_atoms()
    best = np.argwhere(right == right.max())
    layer, head = int(said["layer"]), int(said["head"])
    drawn = (gallery.GALLERY / "images" / "fig21_atoms.svg").read_text("utf-8")
    bars = [
        ((weights[layer, head].argmax(-1) == origins).sum(), len(origins))
        for weights, origins in mapped()
    ]
    found = re.findall(r">\s*(\d+) of (\d+)<", drawn)
    assert [(int(some), int(whole)) for some, whole in found] == bars
    assert [int(said["layer"]), int(said["head"])] in best.tolist()
    one = {"layer": int(said["layer"]), "head": int(said["head"]), "right": right.max()}
    return one | {"count": sum(len(one) for _, one in mapped()), "reactions": len(published())}


@ATOMS.sentence("A guess would be right for <chance>.")
def atoms_chance(facts, said):
    return {"chance": sum(np.divide(*weights.shape[-2:]) for weights, _ in mapped())}


@ATOMS.sentence(
    "Layers share their parameters, and head <head> of <alike> layers is as good as that."
)
def atoms_alike(facts, said):
    parameters = dict(load("rxnmapper", torch.float32).module.named_parameters())
    assert sum(name.endswith("query.weight") for name in parameters) == 1
    right = right_atoms()
    (head,) = {*np.argwhere(right == right.max())[:, 1].tolist()}
    return {"head": head, "alike": (right == right.max()).sum()}


@ATOMS.sentence(
    "Of the heads with another number the best, head <head> of layers <first> and <second>, is "
    "right for <right>."
)
def atoms_others(facts, said):
    right = right_atoms()
    others = np.delete(right, right.max(0).argmax(), axis=1)
    first, second = np.argwhere(right == others.max())
    assert first[1] == second[1]
    return {"head": first[1], "first": first[0], "second": second[0], "right": others.max()}


@ATOMS.sentence(
    "In the reaction shown, <rest> of the weight on atoms of the reactants is on the solvent and "
    "the base, from which the product has no atom."
)
def atoms_rest(facts, said):
    """The other reactants are those from which any atom of the product comes."""
    (reaction, origins), weights = next(iter(published().items())), mapped()[0][0][10, 5]
    assert (weights.argmax(-1) == origins).all()  # which the figure says
    parts, used, start = reaction.split(">>")[0].split("."), [], 0
    for part in parts:
        atoms = range(start, start + sum(map(str.isalpha, part)))
        used += atoms if {*atoms} & {*origins} else []
        start += len(atoms)
    return {"rest": 1 - weights[:, used].sum() / weights.sum()}


@gallery.FILES.sentence("RXNMapper, layer <layer>, head <head>.")
def file_atoms(file, said):
    """The caption of the page names the same head, and is checked."""
    return {"layer": 10, "head": 5}


gallery.FILES.words("Red: the largest weight of a row.")

# ------------------------------------------------------------------------------ pairs of WordNet

WORDNET = caption("fig24_wordnet")
DATA = gallery.GALLERY / "data"


@gallery.kept
def stored():
    """Return the table that the figure draws, with its rows by model, reading and score."""
    table = json.loads((DATA / "wordnet_senses.json").read_text(encoding="utf-8"))
    rows = {}
    for row in table["rows"]:
        name = "minilm" if (row["model"] or "").startswith("all-MiniLM") else "smollm2"
        rows.setdefault((name, row["twice"], row["score"]), []).append(row)
    assert table["sha256"] == hashlib.sha256((DATA / "wordnet_pairs.json").read_bytes()).hexdigest()
    return rows


@gallery.kept
def pairs():
    """Return the pairs, whether each is of one sense, whether it is held out, and its word."""
    listed = json.loads((DATA / "wordnet_pairs.json").read_text(encoding="utf-8"))["pairs"]
    same, held_out, words = (
        np.array([of(pair) for pair in listed])
        for of in (lambda one: one["same"], lambda one: one["part"] == "held-out",
                   lambda one: one["lemma"])
    )  # fmt: skip
    return listed, same, held_out, words


def cosines_of_pairs(vectors):
    """Return the cosine of each pair of vectors (2 P, d), from the mean of the other part."""
    _, _, held_out, _ = pairs()
    vectors = vectors - vectors[np.repeat(~held_out, 2)].mean(0)
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    unit = vectors / lengths
    return (unit[::2] * unit[1::2]).sum(1)


def auc(scores, same):
    """Return how often a pair of one sense has a larger score than a pair of two; ties half."""
    above = scores[same][:, None] - scores[~same]
    return np.where(np.abs(above) < 1e-6, 0.5, above > 0).mean()


@gallery.kept
def cosines(name, twice):
    """Return the cosines of each state (states, P), and of the other words; all pairs.

    twice : whether the text is read twice, and the word is the one in its second half.
    """
    module, tokenizer = eager(name)
    table = module.get_input_embeddings().weight.detach().double().numpy()
    read, others = [], []
    for one in (sentence for pair in pairs()[0] for sentence in pair["sentences"]):
        moved = (len(one["text"]) + 1) * twice
        text = f"{one['text']} {one['text']}" if twice else one["text"]
        encoding = tokenizer(text, return_offsets_mapping=True)
        start, end = one["start"] + moved, one["end"] + moved
        at = [n for n, (a, b) in enumerate(encoding.offset_mapping) if a < end and b > start]
        ids = encoding.input_ids
        read.append((ids, at))
        left_out = {*at, *(n for n, id_ in enumerate(ids) if id_ in tokenizer.all_special_ids)}
        others.append(table[[id_ for n, id_ in enumerate(ids) if n not in left_out]].mean(0))
    by_length = {}
    for n, (ids, _) in enumerate(read):
        by_length.setdefault(len(ids), []).append(n)
    states = [None] * len(read)
    for batch in (some[n : n + 32] for some in by_length.values() for n in range(0, len(some), 32)):
        ids = torch.tensor([read[n][0] for n in batch])
        with torch.no_grad():
            output = getattr(module, "model", module)(ids, output_hidden_states=True)
        for row, n in enumerate(batch):
            of_word = [state[row, read[n][1]].mean(0) for state in output.hidden_states]
            states[n] = torch.stack(of_word).double().numpy()
    states = np.stack([cosines_of_pairs(one) for one in np.swapaxes(states, 0, 1)])
    return states, cosines_of_pairs(np.stack(others))


@gallery.kept
def wordnet(name, twice):
    """Return the AUC of each state, of the other words and of both, and the best layers.

    chosen : the best layer on the other pairs; first : the best on these, the held-out ones.
    """
    _, same, held_out, _ = pairs()
    states, others = cosines(name, twice)[0], cosines(name, False)[1]
    found = np.array([auc(one[held_out], same[held_out]) for one in states])
    chosen = int(np.argmax([auc(one[~held_out], same[~held_out]) for one in states]))
    standard = [(one - one[~held_out].mean()) / one[~held_out].std(ddof=1)
                for one in (states[chosen], others)]  # fmt: skip
    both = auc(sum(standard)[held_out], same[held_out])
    return SimpleNamespace(
        vectors=found, others=auc(others[held_out], same[held_out]), both=both, chosen=chosen,
        first=int(found.argmax()),
    )  # fmt: skip


def of_table(twice):
    """Return the same of SmolLM2 as the table has it; a long test compares both."""
    rows = stored()
    (chosen,), (both,) = (
        rows["smollm2", twice, f"best layer{of}"] for of in ("", " and other words")
    )
    (others,) = rows["smollm2", None, "other words, static"]
    found = np.array([row["auc"] for row in rows["smollm2", twice, "vector"]])
    assert chosen["auc"] == found[chosen["layer"]]
    assert both["gain_low"] > 0
    return SimpleNamespace(
        vectors=found, others=others["auc"], both=both["auc"], chosen=chosen["layer"],
        first=int(found.argmax()),
    )  # fmt: skip


def three_readings():
    return {"minilm": wordnet("minilm", False), "once": of_table(False), "twice": of_table(True)}


@WORDNET.sentence("A word's vector adds to what the words around it tell about its sense")
def wordnet_title(facts, said):
    for one in three_readings().values():
        assert one.both > one.others + 0.02
    return {}


@WORDNET.sentence(
    "<pairs> pairs of WordNet's example sentences with one of <words> words, in one sense or in "
    "two."
)
def wordnet_pairs(facts, said):
    _, _, held_out, words = pairs()
    return {"pairs": held_out.sum(), "words": len({*words[held_out]})}


@WORDNET.sentence(
    "Left is the AUC: how often a pair of one sense has a larger cosine than a pair of two "
    "(guessing <chance>; lines: intervals of <level>, bootstrapped over words)."
)
def wordnet_auc(facts, said):
    """The intervals are those of the table: another resample moves their ends little."""
    (row,) = stored()["minilm", False, "best layer and other words"]
    both, _, words, same = both_of_minilm()
    ends = np.quantile([auc(both[drawn], same[drawn]) for drawn in resamples(words)], ENDS)
    assert np.abs(ends - (row["low"], row["high"])).max() < 0.015
    guessing = auc(np.zeros(4), np.array([True, True, False, False]))
    return {"chance": guessing, "level": ENDS[1] - ENDS[0]}


@WORDNET.sentence(
    "The words around it are the mean of their static embeddings, which needs no attention: "
    "<one> in all-MiniLM-L6-v2 and <two> in SmolLM2."
)
def wordnet_words(facts, said):
    readings = three_readings()
    return {"one": readings["minilm"].others, "two": readings["once"].others}


@WORDNET.sentence("The vector is that of the layer that is best on other pairs (<a>, <b> and <c>).")
def wordnet_layers(facts, said):
    return dict(zip("abc", (one.chosen for one in three_readings().values()), strict=True))


@WORDNET.sentence(
    "Alone it has <minilm> in all-MiniLM-L6-v2, <once> in SmolLM2, and <twice> if the text is read "
    "twice, so that the word follows all of it; no interval of its difference from the words "
    "around it excludes <none> (right)."
)
def wordnet_alone(facts, said):
    """The intervals are those of the table."""
    for name, twice in (("minilm", False), ("smollm2", False), ("smollm2", True)):
        (row,) = stored()[name, twice, "best layer"]
        assert row["gain_low"] < 0 < row["gain_high"]
    one = {name: one.vectors[one.chosen] for name, one in three_readings().items()}
    return one | {"none": 0}


@WORDNET.sentence(
    "The cosines of both, standardized and summed, have <minilm>, <once> and <twice>, and all "
    "three intervals of the difference are above <none>."
)
def wordnet_both(facts, said):
    """Also in other resamples of the words, MiniLM's is above; the others are in the table."""
    both, others, words, same = both_of_minilm()
    gains = [auc(both[drawn], same[drawn]) - auc(others[drawn], same[drawn])
             for drawn in resamples(words)]  # fmt: skip
    assert np.quantile(gains, ENDS[0]) > 0
    return {name: one.both for name, one in three_readings().items()} | {"none": 0}


@WORDNET.sentence(
    "Of the <all> intervals for vectors of single layers, <above> are above 0, about as many as "
    "expected by chance."
)
def wordnet_above(facts, said):
    """The intervals are those of the table: another resample may move them by .01."""
    gains = [row["gain_low"] for (_, _, score), rows in stored().items() if score == "vector"
             for row in rows]  # fmt: skip
    above = sum(gain > 0 for gain in gains)
    assert abs(above - 0.025 * len(gains)) < 2
    return {"all": sum(len(one.vectors) for one in three_readings().values()), "above": above}


ENDS = 0.025, 0.975


@gallery.kept
def both_of_minilm():
    """Return the scores of both and of the other words of held-out pairs, the words, and senses."""
    _, same, held_out, words = pairs()
    states, others = cosines("minilm", False)
    scores = [(one - one[~held_out].mean()) / one[~held_out].std()
              for one in (states[wordnet("minilm", False).chosen], others)]  # fmt: skip
    return sum(scores)[held_out], others[held_out], words[held_out], same[held_out]


def resamples(words):
    """Yield the pairs of words that are drawn with replacement."""
    random = np.random.default_rng(24)
    of_word = [np.flatnonzero(words == one) for one in sorted({*words})]
    for _ in range(200):
        yield np.concatenate([of_word[n] for n in random.integers(len(of_word), size=len(of_word))])


# ------------------------------------------------------------------------------- BERT and a decoder

TWO = caption("fig27_bert_and_decoder")


def maps_of(name, text):
    """Return the weights of a text, with what maps know of them."""
    _, tokenizer = eager(name)
    ids = encode(name, text)
    tokens = [one.strip("Ġ") for one in tokenizer.convert_ids_to_tokens(ids)]
    special = [one in tokenizer.all_special_ids for one in ids]
    return SimpleNamespace(
        weights=read(name, ids).weights, rows=tokens, columns=tokens, special_columns=special,
        masked=~np.tri(len(ids), dtype=bool) if name == "smollm2" else None,
    )  # fmt: skip


@gallery.kept
def both_read():
    """Return the runs of both models on each text."""
    texts = texts_of("fig27_bert_and_decoder")
    return [[maps_of(name, text) for text in texts] for name in NAMES]


def shares_of_places(runs, *, even=False):
    """Return what words give to the sink, earlier words, themselves and later words."""
    found = []
    for run in runs:
        weights = run.weights.mean((0, 1))
        T = len(weights)
        if even:
            weights = (weights > 0) / (weights > 0).sum(1, keepdims=True)
        sink = np.array(run.special_columns) | (np.arange(T) == 0)
        apart = np.arange(T) - np.arange(T)[:, None]
        for row in np.flatnonzero(~sink):
            kinds = [sink, ~sink & (apart[row] < 0), apart[row] == 0, ~sink & (apart[row] > 0)]
            found.append([weights[row, kind].sum() for kind in kinds])
    return np.mean(found, axis=0)


@TWO.sentence("An encoder attends both ways, a decoder only back; both give most to a sink")
def two_title(facts, said):
    minilm, smollm2 = map(shares_of_places, both_read())
    assert min(minilm[1], minilm[3]) > 0.1
    assert smollm2[3] == 0
    assert min(minilm[0], smollm2[0]) > HALF
    return {}


@TWO.sentence(
    "Above is one text, the mean map of all heads.",
    "In all-MiniLM-L6-v2 words attend to earlier and to later ones; the mask of SmolLM2 hides the "
    "later ones (hatched).",
    "Both give most to the first token (red): [CLS], or the first word, as SmolLM2 reads no "
    "special token.",
)
def two_maps(facts, said):
    """Of the first text, whose maps are drawn: words give the first token more than any other."""
    for first, *_ in both_read():
        means = first.weights.mean((0, 1))
        words = [n for n, special in enumerate(first.special_columns) if n and not special]
        assert means[words].mean(0).argmax() == 0
        later = means[words][:, words] * ~np.tri(len(words), dtype=bool)
        assert (later[:-1].max(1) > 0).all() == (first.masked is None)
        assert not later.any() or first.masked is None
    assert not any(both_read()[1][0].special_columns)
    return {}


@TWO.sentence(
    "Below are the means of <texts> texts: MiniLM gives later words <later>, earlier ones "
    "<earlier>; the mask of SmolLM2 gives later words <masked>."
)
def two_ways(facts, said):
    minilm, smollm2 = map(shares_of_places, both_read())
    one = {"later": minilm[3], "earlier": minilm[1], "masked": smollm2[3]}
    return one | {"texts": len(both_read()[0])}


@TWO.sentence("Both give more than half to a sink: MiniLM <one>, SmolLM2 <two>.")
def two_sinks(facts, said):
    (minilm, *_), (smollm2, *_) = map(shares_of_places, both_read())
    assert min(minilm, smollm2) > HALF
    return {"one": minilm, "two": smollm2}


@TWO.sentence("Uniform weights would give the sinks <one> and <two>.")
def two_even(facts, said):
    (one, *_), (two, *_) = (shares_of_places(runs, even=True) for runs in both_read())
    return {"one": one, "two": two}


# ------------------------------------------------------------------------- one next word of SmolLM2

EIFFEL = "The Eiffel Tower is in the city of"
SMOLLM2 = "SmolLM2-135M-Instruct (4-bit weights)"
WHY = caption("fig31_explain", "The split changes no word.")


def eiffel_ids():
    """Return the ids of the text behind a start token."""
    _, tokenizer = eager("smollm2")
    return tokenizer.convert_tokens_to_ids("<|endoftext|>"), *encode("smollm2", EIFFEL)


def lead(ids, mask=None):
    """Return by how much the logit of “Paris” is ahead of that of “London” after a text."""
    module, tokenizer = eager("smollm2")
    paris, london = (tokenizer.encode(f" {word}")[0] for word in ("Paris", "London"))
    logits = module(torch.tensor([ids]), attention_mask=mask, logits_to_keep=1).logits[0, -1]
    return logits[paris].double() - logits[london].double()


@gallery.kept
def lead_here_and_alone():
    """Return the lead in the text, and where each token reads only itself and the first."""
    ids = eiffel_ids()
    itself = torch.eye(len(ids), dtype=bool)
    itself[:, 0] = True
    mask = torch.zeros(1, 1, *itself.shape).masked_fill(~itself, torch.finfo(torch.float32).min)
    with torch.no_grad():
        return lead(ids).item(), lead(ids, mask).item()


@gallery.kept
def lost_if_deleted():
    """Return what the lead loses without each word but the last, which reads the others."""
    _, tokenizer = eager("smollm2")
    ids, here, lost, start = eiffel_ids(), lead_here_and_alone()[0], {}, 1
    for number, word in enumerate(EIFFEL.split()[:-1]):
        size = len(tokenizer.encode(f" {word}" if number else word))
        with torch.no_grad():
            lost[word] = here - lead((*ids[:start], *ids[start + size :])).item()
        start += size
    assert start == len(ids) - 1
    return lost


def most_lost():
    """Return the words whose deletion takes most, in order."""
    lost = lost_if_deleted()
    return sorted(lost, key=lambda word: -lost[word])


@WHY.sentence("“<word:w>” raises “<said:w>” over “<other:w>” <how:most|least>")
def why_title(facts, said):
    """Deleting it takes most."""
    word = most_lost()[0]
    assert lost_if_deleted()[word] > 0
    return {"word": word, "said": "Paris", "other": "London", "how": "most"}


@WHY.sentence(
    "The text is “<text:w>”, after which SmolLM2 says “<said:w>”.",
    "The number is the logit of “<said:w>” minus that of “<other:w>”: <here> in this text, and "
    "<alone> where each token reads only itself and the sink.",
)
def why_lead(facts, said):
    """It is the most probable next token."""
    module, tokenizer = eager("smollm2")
    with torch.no_grad():
        first = module(torch.tensor([eiffel_ids()])).logits[0, -1].argmax()
    assert tokenizer.decode([first]).strip() == "Paris"
    here, alone = lead_here_and_alone()
    one = {"text": EIFFEL, "said": "Paris", "other": "London", "here": here, "alone": alone}
    return {name: one[name] for name in said}


@WHY.sentence(
    "Each word is colored by what changing it takes away, the mean over separate runs of <ways> "
    "kinds."
)
def why_colors(facts, said):
    """The figure lists the kinds."""
    text = gallery.description("fig31_explain")
    (kinds,) = re.findall(r"separate runs, mean of ([a-z, -]+), each scaled", text)
    assert "delete" in kinds.split(", ")
    return {"ways": len(kinds.split(", "))}


@WHY.sentence(
    "One kind is to delete it: without “<word:w>” <lost> is lost and “<other:w>” is ahead, without "
    "“<second:w>” <less>, and without each other word <rest> or less."
)
def why_deleted(facts, said):
    lost, (first, second, third, *_) = lost_if_deleted(), most_lost()
    assert lost[first] > lead_here_and_alone()[0] > lost[second]
    one = {"other": "London"}
    one |= {"word": first, "second": second, "lost": lost[first], "less": lost[second]}
    return one | {"rest": lost[third]}


@WHY.sentence("Its contributions over all paths sum to the difference of both numbers, <total>.")
def why_total(facts, said):
    """So they do in the figure."""
    here, alone = lead_here_and_alone()
    assert f"in logits, sum to {here - alone:.2f} (" in gallery.description("fig31_explain")
    return {"total": here - alone}


@gallery.FILES.sentence(
    "Contributions over all paths, in logits, sum to <total> (completeness error <error>)."
)
def file_contributions(file, said):
    """The caption of the page names the same sum, and is checked."""
    assert file.stem == "fig31_explain"
    (total,) = re.findall(r"both numbers, ([\d.]+)\.$", gallery.texts(file.stem)[1])
    error = read_number(said["error"])[0]
    assert error < gallery.NOISE
    return {"total": float(total), "error": error}


@gallery.FILES.sentence("Not measured: “<word:w>”, the same in both runs.")
def file_unmeasured(file, said):
    """It is the last word, which reads the others."""
    assert file.stem == "fig31_explain"
    return {"word": EIFFEL.split()[-1]}


def of_file(stem, *words):
    """Register sentences without slots of one file."""

    def expect(file, said):
        assert file.stem == stem
        return {}

    gallery.FILES.sentence(*words)(expect)


of_file(
    "fig31_explain",
    "Colors: measured effect, the logits that are lost in separate runs, mean of knock-out, "
    "delete, replace, each scaled to their mean deviation.",
    "Compared with the same text, where every token may read only itself and special tokens.",
    "Rank correlation: Spearman's ρ with the measured effect, and its 95 % interval over words of "
    "this text and over the words that replace them.",
)

# --------------------------------------------------------------------------- each head of SmolLM2

WITHOUT = caption(
    "fig32_ablate",
    "A small effect does not say that a head does nothing: heads can stand in for each other.",
)


@gallery.kept
def without_head(name):
    """Return what the lead loses without a head, and what the gradient expects of that.

    Its output has its mean over all tokens but the first at these tokens.
    """
    module, _ = eager("smollm2")
    layer, head = map(int, name.split("."))
    mixer, size = module.model.layers[layer].self_attn.o_proj, module.config.head_dim
    columns, outputs = slice(head * size, (head + 1) * size), []

    def keep(module, given):
        outputs.append(given[0].detach().requires_grad_())
        return (outputs[0],)

    def replace(module, given):
        changed = given[0].clone()
        changed[:, 1:, columns] = changed[:, 1:, columns].mean(1, keepdim=True)
        return (changed,)

    with mixer.register_forward_pre_hook(keep), torch.enable_grad():
        here = lead(eiffel_ids())
        (gradient,) = torch.autograd.grad(here, outputs)
    with mixer.register_forward_pre_hook(replace), torch.no_grad():
        lost = here.item() - lead(eiffel_ids()).item()
    (change,) = outputs[0].detach() - replace(mixer, outputs)[0].detach()
    return lost, (gradient[0] * change).sum().item()


def count_heads():
    config = eager("smollm2")[0].config
    return config.num_hidden_layers * config.num_attention_heads


@WITHOUT.sentence(
    "Without head <head:h> of SmolLM2, “<word:w>” loses <most> of its lead over “<other:w>”"
)
def without_title(facts, said):
    most, _ = without_head(said["head"])
    return {"head": said["head"], "word": "Paris", "most": most, "other": "London"}


@WITHOUT.sentence(
    "The output of each head was set to its mean over the text (“attnviz explain --heads” sets it "
    "to zero), everything after it was recomputed, and the logits of “<word:w>” and “<other:w>” "
    "were compared again: <count> runs on “<text:w>”."
)
def without_runs(facts, said):
    return {"word": "Paris", "other": "London", "count": count_heads(), "text": EIFFEL}


@WITHOUT.sentence(
    "Without head <first:h> “<word:w>” loses <most> of its lead, without head <second:h> <less>."
)
def without_heads(facts, said):
    one = {"first": said["first"], "second": said["second"], "word": "Paris"}
    most, less = (without_head(one[name])[0] for name in ("first", "second"))
    assert most > less
    return one | {"most": most, "less": less}


@WITHOUT.sentence(
    "The gradient estimates all effects from one run, without a guarantee: of head <head:h> it "
    "expects only <expected>."
)
def without_gradient(facts, said):
    lost, expected = without_head(said["head"])
    assert lost > 2 * expected
    return {"head": said["head"], "expected": expected}


of_file(
    "fig32_ablate",
    "The output of the head is replaced by its mean over the text at all positions but the "
    "attention sink; everything after it is recomputed.",
    "Read with <|endoftext|> before it.",
)

# ---------------------------------------------------------------------------- all heads of SmolLM2

ALL = caption(
    "fig33_all_heads",
    "Layers and heads count from 0.",
    "Below is the clearest head of each kind.",
    "A color is what a head does on this one sentence and not yet a role: that takes a corpus.",
)
CATS = "The cat saw the dog, and the dog saw the cat."


@gallery.kept
def kinds_of_heads():
    """Return the rule that each head follows, (heads,), None without one."""
    run = maps_of("smollm2", CATS)
    return [found and found[0] for found in rules_of(run, run.weights)]


@ALL.sentence(
    "Maps of <count> heads would be too small to read, so each head is one cell, colored by what "
    "it attends to.",
)
def all_count(facts, said):
    return {"count": len(kinds_of_heads())}


@ALL.sentence(
    "Most heads of SmolLM2 that rest on the first word are in its <half:first|second> half"
)
def all_title(facts, said):
    rests = [kind == "first" for kind in kinds_of_heads()]
    assert sum(rests[len(rests) // 2 :]) > 0.9 * sum(rests)
    return {"half": "second"}


@ALL.sentence(
    "On “<text:w>” <resting> heads rest on the first word: they give it much more of their weight "
    "than evenly, whatever it says (red).",
    "<late> of them are in the <half:first|second> half of the layers.",
    "<previous> heads attend to the previous word, and <others> to words of no such kind.",
)
def all_kinds(facts, said):
    kinds = kinds_of_heads()
    one = {"text": CATS, "resting": kinds.count("first"), "half": "second"}
    one |= {"late": kinds[len(kinds) // 2 :].count("first")}
    one |= {"previous": kinds.count("previous"), "others": kinds.count(None)}
    return {name: one[name] for name in said}


# ------------------------------------------------------------------------------------ the explorer

PAGE = caption(
    "fig34_explorer",
    "Beside the plane are its strongest and typical examples: the outlined token reads the colored "
    "ones.",
    "Further down the page has the plane in which queries and keys meet, and the tokens whose "
    "logits the head raises and lowers.",
    "It is one file and works offline.",
)


def sample():
    """Return the sentences that come with attnviz."""
    file = files("attnviz").joinpath("analyses", "survey", "sample.txt")
    return file.read_text("utf-8").splitlines()


@gallery.kept
def previous_of_sample():
    """Return what heads give the previous token, and even weights, means over tokens and texts."""
    shares, even = [], []
    for text in sample():
        weights = read("smollm2", encode("smollm2", text)).weights
        rows = np.arange(1, weights.shape[-1])
        shares.append(weights[..., rows, rows - 1].mean(-1))
        even.append((1 / (rows + 1)).mean())
    return np.mean(shares, axis=0), np.mean(even)


@PAGE.sentence(
    "Of <heads> heads, head <head:h> reads the previous token <how:most|least>: <share> of its "
    "weight",
    "Head <head:h> (red) is the one farthest <side:right|left>: it gives <share> of its weight to "
    "the token before (even weights: <even>).",
)
def page_title(facts, said):
    shares, even = previous_of_sample()
    layer, head = np.unravel_index(shares.argmax(), shares.shape)
    one = {"heads": shares.size, "head": f"{layer}.{head}", "how": "most", "side": "right"}
    one |= {"share": shares.max(), "even": even}
    return {name: one[name] for name in said}


@PAGE.sentence(
    "A picture of the interactive page that “<command:w>” writes: each dot is a head of SmolLM2, "
    "placed by two statistics over <texts> short sentences that come with attnviz, and colored by "
    "its role, which half of the sentences suggest and the other half confirm."
)
def page_texts(facts, said):
    return {"command": "attnviz explore --sample --model smollm2", "texts": len(sample())}


@gallery.FILES.sentence("<texts> sentences, <model:*>.")
def file_sentences(file, said):
    assert file.stem == "fig34_explorer"
    return {"texts": len(sample()), "model": SMOLLM2}


gallery.TEXT_OF |= {
    "fig31_explain": EIFFEL, "fig32_ablate": EIFFEL, "fig33_all_heads": CATS,
}  # fmt: skip
gallery.READ_BY |= {
    "fig31_explain": f"{SMOLLM2} with <|endoftext|> before it", "fig32_ablate": SMOLLM2,
    "fig33_all_heads": SMOLLM2,
}  # fmt: skip

# ------------------------------------------------------------------------------- files of SmolLM2


@gallery.FILES.sentence(
    "<texts> texts.",
    "<texts> texts, <model:SmolLM2-135M-Instruct (4-bit weights)>[[, <what:first word left out>]].",
    "<texts> texts of <words> random words twice, <model:SmolLM2-135M-Instruct (4-bit weights)>.",
)
def file_texts(file, said):
    counts = {"fig22_induction": COPIES, "fig26_decoder_senses": sum(
        len(texts_of("fig26_decoder_senses", sense)) for sense in ("RIVER", "MONEY")
    )}  # fmt: skip
    texts = counts.get(file.stem) or len(texts_of(file.stem))
    one = {"texts": texts, "words": PERIOD, "model": SMOLLM2}
    one |= {"what": "first word left out" if file.stem == "fig25_grouped_queries" else None}
    return {name: one[name] for name in said}


gallery.FILES.words(
    "MiniLM is verified; the next line is about SmolLM2 (4-bit weights).",
    "Bands: 95% intervals.",
    "In a sentence: the outlined token reads the colored ones.",
    "Example sentences of WordNet 3.0; lines: 95% intervals over words.",
)
