"""What the names of captions about models of scripts/fetch_models.py should say.

The weights are those that transformers returns under eager attention. Nothing of attnviz computes
here.
"""

import ast
import hashlib
import json
import math
import re
from functools import partial
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import soundfile
import torch
from fetched import NAMED, PHOTO, load
from PIL import Image
from transformers import AutoImageProcessor, AutoProcessor

from figures.sentences import gallery
from figures.sentences.gallery_texts import hits, wilson
from figures.sentences.maps import HALF, rules_of
from figures.sentences.reading import Near, Patterns, read_number

figure = partial(gallery.figure, among=gallery.FETCHED)


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
    for node in gallery.script(stem).body:
        if isinstance(node, ast.Assign) and name in ast.unparse(node.targets[0]).split(", "):
            text = next(one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)
                        and isinstance(one.value, str) and len(one.value) > 9)  # fmt: skip
            return text.replace("\n", "|").split("|")
    raise LookupError(name)


# ------------------------------------------------------------------------------------- induction


@figure("fig22_induction", "second half, second half, most, first half, more")
def induction(model):
    """A text tells nothing of its first repeated word before it is read."""
    period, texts = 9, 12
    (words,) = texts_of("fig22_induction", "WORDS")
    ids = torch.tensor([encode("smollm2", f" {word}") for word in words.split()]).flatten()
    torch.manual_seed(0)
    behind, right = [], []
    for _ in range(texts):
        one = ids[torch.randperm(len(ids))[:period]].repeat(2).tolist()
        run, rows = read("smollm2", tuple(one)), range(period, 2 * period)
        behind.append(np.mean([run.weights[..., t, t - period + 1] for t in rows], axis=0))
        right.append([run.likely[t] == one[t + 1] for t in range(2 * period - 1)])
    behind, right = np.mean(behind, axis=0), np.array(right)
    layer, head = np.unravel_index(behind.argmax(), behind.shape)
    return {
        "layer": layer, "head": head, "period": period, "share": behind.max(), "texts": texts,
        "even": np.mean([1 / (t + 1) for t in range(period, 2 * period)]), "level": 0.95,
        "second": right[:, period:].mean(), "first": right[:, : period - 1].mean(),
        "others": (behind > HALF).sum() - 1, "heads": behind.size,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------ sinks


@figure("fig23_sink", "takes, more")
def sink(model):
    """What the first word, a start token and the word behind it get."""
    _, tokenizer = eager("smollm2")
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")  # it separates texts, not messages

    def received(name_ids, key):
        rows = [read("smollm2", ids).weights[..., key + 1 :, key] for ids in name_ids]
        return np.concatenate(rows, axis=-1).mean(-1)

    plain = [encode("smollm2", text) for text in texts_of("fig23_sink")]
    started = [(start, *ids) for ids in plain]
    first, special, behind = received(plain, 0), received(started, 0), received(started, 1)
    assert min(first.mean(), special.mean()) > 10 * behind.mean()
    return {
        "first": first.mean(), "behind": behind.mean(), "special": special.mean(),
        "texts": len(plain), "resting": (first > HALF).sum(), "heads": first.size,
        "even": np.mean([1 / (t + 1) for ids in plain for t in range(1, len(ids))]),
    }  # fmt: skip


# -------------------------------------------------------------------------------- grouped queries


@figure("fig25_grouped_queries", "more, largest, most, most")
def grouped_queries(model):
    """The interval is a bootstrap: another seed gives nearly the same one."""
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
    gains = np.subtract(same, other)
    texts, layers = gains.shape
    means = np.random.default_rng(1).choice(gains.mean(1), (20_000, texts)).mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    config = eager("smollm2")[0].config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    assert 0 < gains.mean() < min(0.1, np.mean(other))
    return {
        "heads": heads, "groups": groups, "size": heads // groups, "same": np.mean(same),
        "other": np.mean(other), "layers": layers, "texts": texts, "gain": gains.mean(),
        "low": Near(low, 0.002), "high": Near(high, 0.002), "level": 0.95,
        "more": (gains.mean(0) > 0).sum(), "most": gains.mean(0).max(),
    }  # fmt: skip


# ------------------------------------------------------------------------------------- two senses

NAMES = "minilm", "smollm2"


@gallery.kept
def last_words(name):
    """Return how many of the last words are right in each state, by their context, and of all."""
    model, tokenizer = eager(name)
    table = model.get_input_embeddings().weight.detach().double().numpy()
    senses = [texts_of("fig26_decoder_senses", sense) for sense in ("RIVER", "MONEY")]
    labels = np.array([n for n, starts in enumerate(senses) for _ in starts])
    even = np.ones(len(labels))
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
    states = [*np.stack(states, axis=1), np.stack(context)]
    *right, by_context = (hits(one, labels, even).sum() for one in states)
    return right, by_context, len(labels)


def widest(right, count):
    """Return Wilson's interval (1927) of a share, and that of half as many; (2, 2), low to high."""
    return np.array([wilson(right / count, n) for n in (count, count / 2)])


def is_interval(right, count, low, high):
    """Whether an interval is Wilson's, or wider, but not than that of half as many."""
    narrow, broad = widest(right, count)
    return (
        broad[0] - 0.006 < low < narrow[0] + 0.006 and narrow[1] - 0.006 < high < broad[1] + 0.006
    )


@figure("fig26_decoder_senses", "nearest, below")
def decoder_senses(model, said):
    """Which are separated from a layer on, and not before it, and where the band is.

    The band is between Wilson's interval and that of half as many, as `is_interval` says. An
    interval of the embeddings of the decoder, and not of the encoder, includes guessing.
    """
    found = {"level": 0.95, "chance": 0.5, "other.verdict": "verified"}
    for name in NAMES:
        right, context, count = last_words(name)
        low, high = (read_number(said[f"{name}.{end}"])[0] for end in ("low", "high"))
        assert is_interval(right[-1], count, low, high)
        since = int(said[f"{name}.since"])
        assert min(right[since:]) > 0.75 * count
        assert right[since - 1] < min(right[since:])
        lows = np.array([widest(one, count)[:, 0] for one in right])
        surely, perhaps = (context / count < lows).sum(0)[::-1]
        below = int(said[f"{name}.beyond"].split()[0])
        assert surely <= below <= perhaps
        found |= {
            "count": count, f"{name}.right": right[-1], f"{name}.low": low, f"{name}.high": high,
            f"{name}.since": since, f"{name}.layers": len(right) - 1,
            f"{name}.words": context / count, f"{name}.beyond": f"{below} of {len(right)} states",
        }  # fmt: skip
    (_, one, count), (right, two, _) = map(last_words, NAMES)
    assert right[-1] / count > 0.9
    assert widest(two, count)[0, 0] < 0.5 < min(two / count, widest(one, count)[1, 0])
    return found


# ------------------------------------------------------------------------------ patches of a photo

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


@figure("fig15_image_patches", "below")
def image_patches(model, said):
    (last, first, norms), head = photo(), 2
    layers = load("dinov2-small", torch.float32).module.config.num_hidden_layers
    side = math.isqrt(last.shape[-1] - 1)
    shares, near = (shares_of_things(of(last[head, 1:, 1:])) for of in (np.array, by_offset))
    assert all(shares[name] > near[name] + 0.1 for name in THINGS)
    received = first[:, 1:, 1:].mean(1)
    sink_head, patch = np.unravel_index(received.argmax(), received.shape)
    row, column = divmod(patch, side)
    assert TAG[0].stop <= row < TAG[0].stop + 2
    assert TAG[1].start <= column < TAG[1].stop
    norms = norms / np.median(norms)
    assert norms.max() <= float(said["largest"])
    return shares | {f"near_{name}": share for name, share in near.items()} | {
        "rows": side, "columns": side, "layer": layers - 1, "head": head, "first": 0,
        "cls": last[head, 0, 1:].reshape(side, side)[THINGS["face"]].sum(),
        "sink_head": sink_head, "sink": received.max(), "norm": norms[patch],
        "largest": norms.max(),
    }  # fmt: skip


# --------------------------------------------------------------------------------- frames of sound


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


@figure("fig16_sound_frames", "largest")
def sound_frames(model):
    """The longest silence gets less than a tenth of even weights."""
    heard, named = listened(), heads_in_agreement()
    head = max(named, key=lambda one: (heard.weights[one] ** 2).sum())
    weights = heard.weights[head][:, heard.is_sound]
    weights = weights / weights.sum(1, keepdims=True)
    middles = heard.frames[heard.is_sound] + heard.frames[1] / 2
    is_word = (middles > heard.begins[:, None]) & (middles < heard.ends[:, None])
    hits = is_word[range(len(weights)), weights.argmax(1)]
    longest = int(np.diff(heard.loud).argmax())
    silent = (middles > heard.loud[longest]) & (middles < heard.loud[longest + 1])
    assert weights[:, silent].sum(1).mean() < silent.mean() / 10
    return {
        "said": heard.text, "frames": heard.is_sound.sum(), "shown[0]": head[0],
        "shown[1]": head[1], "hits": hits.sum(), "count": len(hits),
        "inside": (weights * is_word).sum(1).mean(), "even": is_word.mean(),
        "before": heard.words[int((heard.begins < heard.loud[longest]).sum()) - 1], "window": 30,
        "padding": heard.weights[head][:, ~heard.is_sound].sum(1).mean(), "few": len(named),
    }  # fmt: skip


# ------------------------------------------------------------------------------ atoms of reactions


@gallery.kept
def mapped():
    """Return by reaction the weights from atoms of the product to the others, and the origins."""
    model, found = load("rxnmapper", torch.float32), []
    for reaction, origins in gallery.module("reactions").PUBLISHED.items():
        ids = model.tokenizer(reaction).input_ids
        tokens = model.tokenizer.convert_ids_to_tokens(ids)
        named = [any(map(str.isalpha, one)) and one not in ("[CLS]", "[SEP]") for one in tokens]
        arrow, is_atom = tokens.index(">>"), np.array(named)
        before = np.arange(len(tokens)) < arrow
        weights = read("rxnmapper", tuple(ids)).weights[:, :, is_atom & ~before]
        found.append((weights[..., is_atom & before], np.array(origins)))
    return found


@figure("fig21_atoms", "largest")
def atoms(model, said):
    """The head is one of the best; the bars have what it tells of each reaction.

    The other reactants are those from which any atom of the product comes.
    """
    found, layer, head = mapped(), int(said["layer"]), int(said["head"])
    right = sum((weights.argmax(-1) == origins).sum(-1) for weights, origins in found)
    best = np.argwhere(right == right.max()).tolist()
    assert [layer, head] in best
    assert {head} == {one for _, one in best}
    bars = [((weights[layer, head].argmax(-1) == origins).sum(), len(origins))
            for weights, origins in found]  # fmt: skip
    drawn = (gallery.GALLERY / "images" / "fig21_atoms.svg").read_text("utf-8")
    shown = re.findall(r">\s*(\d+) of (\d+)<", drawn)
    assert [(int(some), int(whole)) for some, whole in shown] == bars
    parameters = dict(load("rxnmapper", torch.float32).module.named_parameters())
    assert sum(name.endswith("query.weight") for name in parameters) == 1
    others = np.delete(right, head, axis=1)
    first, second = np.argwhere(right == others.max())
    assert first[1] == second[1]
    reaction, origins = next(iter(gallery.module("reactions").PUBLISHED.items()))
    weights = found[0][0][layer, head]
    assert (weights.argmax(-1) == origins).all()  # which the figure says
    used, start = [], 0
    for part in reaction.split(">>")[0].split("."):
        those = range(start, start + sum(map(str.isalpha, part)))
        used += those if {*those} & {*origins} else []
        start += len(those)
    return {
        "right": right.max(), "count": sum(whole for _, whole in bars), "layer": layer,
        "head": head, "reactions": len(bars), "alike": len(best), "other_head": first[1],
        "chance": sum(np.divide(*weights.shape[-2:]) for weights, _ in found),
        "other_layers": f"{first[0]} and {second[0]}", "other": others.max(),
        "rest": 1 - weights[:, used].sum() / weights.sum(),
    }  # fmt: skip


# ------------------------------------------------------------------------------ pairs of WordNet

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


@figure("fig24_wordnet", "adds, above, above")
def wordnet_senses(model):
    """Other resamples of the words move the ends of MiniLM's intervals little.

    The intervals of SmolLM2 are those of the table: another resample may move them by .01.
    """
    readings = {
        "minilm": wordnet("minilm", False), "once": of_table(False), "twice": of_table(True),
    }  # fmt: skip
    rows, (_, _, held_out, all_words) = stored(), pairs()
    both, others, words, same = both_of_minilm()
    drawn = [(auc(both[some], same[some]), auc(others[some], same[some]))
             for some in resamples(words)]  # fmt: skip
    of_both, of_others = np.transpose(drawn)
    (row,) = rows["minilm", False, "best layer and other words"]
    assert np.abs(np.quantile(of_both, ENDS) - (row["low"], row["high"])).max() < 0.015
    assert np.quantile(of_both - of_others, ENDS[0]) > 0
    for name, twice in (("minilm", False), ("smollm2", False), ("smollm2", True)):
        (row,) = rows[name, twice, "best layer"]
        assert row["gain_low"] < 0 < row["gain_high"]
    gains = [row["gain_low"] for (_, _, score), of in rows.items() if score == "vector"
             for row in of]  # fmt: skip
    above = sum(gain > 0 for gain in gains)
    assert abs(above - 0.025 * len(gains)) < 2
    found = {
        "table[held_out_pairs]": held_out.sum(), "level": ENDS[1] - ENDS[0], "above": above,
        "table[held_out_words]": len({*all_words[held_out]}),
        "chance": auc(np.zeros(4), np.array([True, True, False, False])),
        "count": sum(len(one.vectors) for one in readings.values()),
    }  # fmt: skip
    for name, one in readings.items():
        assert one.both > one.others + 0.02
        found |= {
            f"{name}.others[auc]": one.others, f"{name}.alone[layer]": one.chosen,
            f"{name}.alone[auc]": one.vectors[one.chosen], f"{name}.both[auc]": one.both,
        }  # fmt: skip
    return found


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


@figure("fig27_bert_and_decoder", "back, most, most, more")
def bert_and_decoder(model):
    """In the first text, whose maps are drawn, words give the first token more than any other."""
    texts = texts_of("fig27_bert_and_decoder")
    both = [[maps_of(name, text) for text in texts] for name in NAMES]
    for first, *_ in both:
        means = first.weights.mean((0, 1))
        words = [n for n, special in enumerate(first.special_columns) if n and not special]
        assert means[words].mean(0).argmax() == 0
        later = means[words][:, words] * ~np.tri(len(words), dtype=bool)
        assert (later[:-1].max(1) > 0).all() == (first.masked is None)
        assert not later.any() or first.masked is None
    assert not any(both[1][0].special_columns)
    minilm, smollm2 = map(shares_of_places, both)
    assert min(minilm[1], minilm[3]) > 0.1
    assert smollm2[3] == 0
    assert min(minilm[0], smollm2[0]) > HALF
    found = {"texts": len(texts), "other.verdict": "verified"}
    for n, (name, shares) in enumerate(zip(NAMES, (minilm, smollm2), strict=True)):
        found |= {f"{name}[{kind}]": share for kind, share in enumerate(shares)}
        found[f"even[{n}]"] = shares_of_places(both[n], even=True)[0]
    return found


# ------------------------------------------------------------------------- one next word of SmolLM2

EIFFEL = "The Eiffel Tower is in the city of"
SMOLLM2 = "SmolLM2-135M-Instruct (4-bit weights)"


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


@figure("fig31_explain", "raises, most, takes, ahead, less")
def why(model):
    """“Paris” is the most probable next token; the file lists the kinds of changes, and the sum.

    The last word, which reads the others, is not deleted.
    """
    module, tokenizer = eager("smollm2")
    ids = eiffel_ids()
    itself = torch.eye(len(ids), dtype=bool)
    itself[:, 0] = True
    mask = torch.zeros(1, 1, *itself.shape).masked_fill(~itself, torch.finfo(torch.float32).min)
    lost, start = {}, 1
    with torch.no_grad():
        likely = module(torch.tensor([ids])).logits[0, -1].argmax()
        here, alone = lead(ids).item(), lead(ids, mask).item()
        for number, word in enumerate(EIFFEL.split()[:-1]):
            size = len(tokenizer.encode(f" {word}" if number else word))
            lost[word] = here - lead((*ids[:start], *ids[start + size :])).item()
            start += size
    assert start == len(ids) - 1
    assert tokenizer.decode([likely]).strip() == "Paris"
    first, second, third, *_ = sorted(lost, key=lambda word: -lost[word])
    assert lost[first] > here > lost[second]
    file = gallery.description("fig31_explain")
    (kinds,) = re.findall(r"separate runs, mean of ([a-z, -]+), each scaled", file)
    assert "delete" in kinds.split(", ")
    assert f"in logits, sum to {here - alone:.2f} (" in file
    return {
        "cause": first, "text": EIFFEL, "here": here, "alone": alone, "second": second,
        "ways": len(kinds.split(", ")), "lost": lost[first], "less": lost[second],
        "rest": lost[third], "total": here - alone,
    }  # fmt: skip


FILE = gallery.FILES["fig31_explain"] = Patterns()


@FILE.sentence(
    "“<text:w>”, read by <model:*> with <|endoftext|> before it.",
    "Contributions over all paths, in logits, sum to <total> (completeness error <error>).",
    "Not measured: “<word:w>”, the same in both runs.",
)
def file_of_explain(file, said):
    """The check of the caption compares the sum; the error is that of the machine that drew it."""
    one = {"text": EIFFEL, "model": SMOLLM2, "word": EIFFEL.split()[-1]}
    one |= {"error": gallery.ROUNDING, "total": Near(0, math.inf)}
    return {name: one[name] for name in said}


FILE.words(
    "Colors: measured effect, the logits that are lost in separate runs, mean of knock-out, "
    "delete, replace, each scaled to their mean deviation.",
    "Compared with the same text, where every token may read only itself and special tokens.",
    "Rank correlation: Spearman's ρ with the measured effect, and its 95 % interval over words of "
    "this text and over the words that replace them.",
    "The partial split shares the knock-out with the measured effect.",
)

# --------------------------------------------------------------------------- each head of SmolLM2


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


@figure("fig32_ablate", "loses, loses")
def ablate(model, said):
    (most, expected), (less, _) = (without_head(said[name]) for name in ("first", "second"))
    assert most > less
    assert most > 2 * expected
    config = eager("smollm2")[0].config
    return {
        "first": said["first"], "second": said["second"], "most": most, "less": less,
        "expected": expected, "text": EIFFEL,
        "count": config.num_hidden_layers * config.num_attention_heads,
    }  # fmt: skip


FILE = gallery.FILES["fig32_ablate"] = Patterns()
FILE.words(
    f"“{EIFFEL}”, read by {SMOLLM2}.",
    "The output of the head is replaced by its mean over the text at all positions but the "
    "attention sink; everything after it is recomputed.",
    "Read with <|endoftext|> before it.",
)

# ---------------------------------------------------------------------------- all heads of SmolLM2

CATS = "The cat saw the dog, and the dog saw the cat."


@figure("fig33_all_heads", "second half, more, second half, takes")
def all_heads(model):
    run = maps_of("smollm2", CATS)
    kinds = [found and found[0] for found in rules_of(run, run.weights)]
    resting, late = kinds.count("first"), kinds[len(kinds) // 2 :].count("first")
    assert late > 0.9 * resting
    return {
        "count": len(kinds), "text": CATS, "resting": resting, "late": late,
        "previous": kinds.count("previous"), "others": kinds.count(None),
    }  # fmt: skip


# ------------------------------------------------------------------------------------ the explorer


@figure("fig34_explorer", "most, short, farthest, raises")
def explorer(model):
    """What heads give the previous token, and even weights, means over tokens and texts."""
    file = files("attnviz").joinpath("analyses", "survey", "sample.txt")
    texts = file.read_text("utf-8").splitlines()
    shares, even = [], []
    for text in texts:
        weights = read("smollm2", encode("smollm2", text)).weights
        rows = np.arange(1, weights.shape[-1])
        shares.append(weights[..., rows, rows - 1].mean(-1))
        even.append((1 / (rows + 1)).mean())
    shares = np.mean(shares, axis=0)
    layer, head = np.unravel_index(shares.argmax(), shares.shape)
    return {
        "heads": shares.size, "head": f"{layer}.{head}", "share": shares.max(),
        "even": np.mean(even), "texts": len(texts),
    }  # fmt: skip
