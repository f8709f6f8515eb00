"""Transformers whose weights are set by hand, so that it is known which heads do the work.

The residual stream has named spaces: the token, its position, registers that heads write, and the
output that the logits read. A known head compares spaces and copies from one to another. All other
heads have random weights and write into a space that no known head and no logit reads; one of them
also has the weights of a known head's queries and keys (a decoy). A large constant direction keeps
the norms from changing anything: the length of the stream is the same at every position.

Source: transformers as programs over such spaces, RASP and Tracr (Weiss et al. 2021,
arXiv:2106.06981; Lindner et al. 2023, arXiv:2301.05062). The weights here are computed otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

import attnviz

PLACES = 44  # tokens of a text at most, where positions are learned
_CONSTANT, _JUNK, _CONTENT = 1000.0, 16, 1e-3  # _CONTENT: slower pairs of a rotation hold content
_LOGIT = 10.0  # of an answer, over all other tokens
_THETA, _NARROW = 1e10, 32  # entries of the stream for each rotated head
Head = tuple[int, int]


@dataclass(frozen=True)
class Match:
    """Compares a space of the query with one of the key; adds `strength` nats where both agree.

    table : which entries agree, (query's, key's) or one row; by default the same ones.
    """

    query: str
    key: str
    strength: float
    table: Tensor | None = None


@dataclass(frozen=True)
class Offset:
    """Adds `strength` nats for the key that is so many tokens before the query."""

    back: int
    strength: float


@dataclass(frozen=True)
class Copy:
    """Copies a space of the key into one of the query.

    table : what each entry becomes, (target's, source's); by default the same one.
    """

    source: str
    to: str
    table: Tensor | None = None


@dataclass(frozen=True)
class KnownHead:
    """A head whose weights are set: what it compares and what it copies.

    after : the layer is later than that of the head with this number. role : as a survey names it.
    """

    scores: Sequence[Match | Offset]
    copies: Sequence[Copy]
    after: int | None = None
    role: str = ""


@dataclass(frozen=True)
class Program:
    """What a model is to compute.

    embeddings : of each token, by space, the entry that is 1. spaces : the size of each. answers :
    the tokens or classes, by their entry of the output. compares_size : a space (1,) whose size an
    MLP writes into the first answer, where the second one has a constant.
    """

    embeddings: Mapping[str, Mapping[str, int]]
    spaces: Mapping[str, int]
    heads: Sequence[KnownHead]
    answers: Sequence[str]
    compares_size: str = ""


@dataclass(frozen=True, eq=False)
class Compiled:
    """A model, which heads do the work, and which one only looks as if it did."""

    model: attnviz.Model
    known: Sequence[Head]
    decoy: Head
    size: tuple[int, int]  # layers, heads
    program: Program = field(repr=False)

    @property
    def every_head(self) -> list[Head]:
        """All heads, by layer."""
        layers, heads = self.size
        return [(layer, head) for layer in range(layers) for head in range(heads)]


class Stream:
    """The spaces of the residual stream, as slices of its d entries."""

    def __init__(self, program: Program, *, places: int, width: int = 0) -> None:
        own = {"constant": 2, "slack": 1, "one": 1, "start": 1, "junk": _JUNK}
        if places:
            own |= {"position": places, "place": 1}
        self.slices, start = {}, 0
        for name, size in (own | {"out": len(program.answers)} | dict(program.spaces)).items():
            self.slices[name] = slice(start, start := start + size)
        self.width = max(width, start)

    def basis(self, name: str) -> Tensor:
        """Return the columns of a space, (d, n)."""
        return torch.eye(self.width)[:, self.slices[name]]

    def balanced(self, rows: Tensor) -> Tensor:
        """Return what is written, (…, d), with a sum of 0 by the slack: norms subtract the mean."""
        rows = rows.clone()
        rows[..., self.slices["slack"]] -= rows.sum(-1, keepdim=True)
        return rows

    @property
    def scale(self) -> float:
        """The length of the stream over the root of d, which the norms divide by."""
        return float(_CONSTANT * (2 / self.width) ** 0.5)


def rotation(size: int) -> Tensor:
    """Return the angle of a step in each pair of entries of a rotated head, (size / 2,)."""
    return _THETA ** -(torch.arange(0, size, 2).double() / size)


def _projections(
    known: KnownHead, stream: Stream, size: int, rotated: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return Q, K, V (d, size) and O (size, d) of a head, whose scores are q·k / √size."""
    d, places = stream.width, stream.slices.get("position", slice(0, 0))
    angles = rotation(size)
    slow = [int(n) for n in (angles < _CONTENT).nonzero()]
    free = [*slow, *(n + size // 2 for n in slow)] if rotated else [*range(size)]
    Q, K = torch.zeros(d, size), torch.zeros(d, size)
    for term in known.scores:
        strength = term.strength * size**0.5
        if isinstance(term, Offset) and rotated:
            fast = [n for n in range(size // 2) if n not in slow]
            turn = angles[fast] * term.back
            one = stream.basis("one")[:, 0, None]
            strength /= float((1 - angles[fast].cos()).sum())  # beyond the keys beside that one
            Q[:, fast] += strength * one * turn.cos().float()
            Q[:, [n + size // 2 for n in fast]] -= strength * one * turn.sin().float()
            K[:, fast] += one
            continue
        if isinstance(term, Offset):
            position = stream.basis("position")
            query, key = position, torch.zeros_like(position)
            count = places.stop - places.start - term.back
            key[:, term.back :] = position[:, :count]  # key i - back answers to query i
        else:
            query, key = stream.basis(term.query), stream.basis(term.key)
            if term.table is not None:
                rank_is_key = query.shape[1] > key.shape[1]
                query = query @ term.table if rank_is_key else query
                key = key if rank_is_key else key @ term.table.T
        used, free = free[: query.shape[1]], free[query.shape[1] :]
        Q[:, used] += strength * query
        K[:, used] += key
    V, O = torch.zeros(d, size), torch.zeros(size, d)  # noqa: E741
    start = 0
    for one in known.copies:
        source, target = stream.basis(one.source), stream.basis(one.to)
        count = source.shape[1]
        V[:, start : start + count] = source
        O[start : start + count] = (target if one.table is None else target @ one.table).T
        start += count
    if start > size:
        raise ValueError(f"A head of {size} entries copies {start}.")
    return Q, K, V, stream.balanced(O)


def _random_head(stream: Stream, size: int, heads: int, generator: torch.Generator) -> list[Tensor]:
    """Return one of some heads with random weights, which writes into the junk."""
    d = stream.width
    Q, K, V = (torch.randn(d, size, generator=generator) for _ in range(3))
    for matrix in (Q, K, V):
        matrix[stream.slices["constant"]] = matrix[stream.slices["slack"]] = 0
    if "place" in stream.slices:  # it is large
        Q[stream.slices["place"]] = K[stream.slices["place"]] = V[stream.slices["place"]] = 0
    into = torch.randn(size, _JUNK, generator=generator) @ stream.basis("junk").T
    return [Q, K, V * size**-0.5, stream.balanced(into / (_JUNK * heads) ** 0.5)]


def place_heads(
    program: Program, layers: int, heads: int, generator: torch.Generator
) -> tuple[list[Head], Head]:
    """Return random places of the known heads, and of the decoy: in the layer of the last one."""
    while True:
        where = torch.randint(layers, (len(program.heads),), generator=generator).tolist()
        before = [one.after for one in program.heads]
        if all(m is None or where[n] > where[m] for n, m in enumerate(before)):
            break
    order = [torch.randperm(heads, generator=generator).tolist() for _ in range(layers)]
    places = [(layer, order[layer].pop()) for layer in where]
    return places, (where[-1], order[where[-1]].pop())


def compile_model(
    program: Program,
    family: str,
    *,
    layers: int = 3,
    heads: int = 4,
    seed: int = 0,
    size: int = 72,
    groups: int = 0,
    begins: bool = True,
) -> Compiled:
    """Return a model of a family that computes a program.

    size : entries of a head. groups : heads that share keys and values (Llama), 0 for one each.
    begins : whether a special token is put before a text.
    """
    generator = torch.Generator().manual_seed(seed)
    places = 0 if family == "llama" else PLACES
    stream = Stream(program, places=places, width=heads * (size if places else _NARROW))
    if stream.width % heads:
        raise ValueError(f"A stream of {stream.width} entries has more than {heads} heads hold.")
    known, decoy = place_heads(program, layers, heads, generator)
    matrices = {
        (layer, head): _random_head(stream, size, heads, generator)
        for layer in range(layers)
        for head in range(heads)
    }
    for place, one in zip(known, program.heads, strict=True):
        matrices[place] = list(_projections(one, stream, size, family == "llama"))
    matrices[decoy][:3] = matrices[known[-1]][:3]
    if groups:
        owners = {(layer, head // groups): (layer, head) for layer, head in [*matrices, *known]}
        for layer, head in matrices:
            matrices[layer, head][1:3] = matrices[owners[layer, head // groups]][1:3]
    tokenizer = make_tokenizer([*program.embeddings], family, program.answers, begins=begins)
    embedding = torch.zeros(len(tokenizer), stream.width)
    embedding[:, stream.slices["one"]] = 1
    for token, spaces in program.embeddings.items():
        for space, entry in spaces.items():
            embedding[tokenizer.convert_tokens_to_ids(token), stream.slices[space]][entry] = 1
    start = tokenizer.convert_tokens_to_ids("[CLS]" if family.startswith("bert") else "<s>")
    embedding[start, stream.slices["start"]] = 1
    embedding = stream.balanced(embedding)
    embedding[:, stream.slices["constant"]] = torch.tensor([_CONSTANT, -_CONSTANT])
    module = FAMILIES[family](stream, layers, heads, size, groups, tokenizer, program)
    for parameter in module.parameters():
        parameter.data.zero_()
    with torch.no_grad():
        _fill(module, family, stream, matrices, embedding, tokenizer, program, generator)
    model = attnviz.load(module.eval(), tokenizer=tokenizer, device="cpu")
    return Compiled(model, known, decoy, (layers, heads), program)


# --- tokenizers and configurations


def make_tokenizer(
    words: Sequence[str], family: str, answers: Sequence[str], *, begins: bool
) -> Any:
    """Return a tokenizer of whole words, with the special tokens of a family."""
    is_bert = family.startswith("bert")
    special = ["[PAD]", "[UNK]"] + (["[CLS]", "[SEP]", "[MASK]"] if is_bert else ["<s>"])
    listed = dict.fromkeys([*special, *words, *(() if family == "bert-class" else answers)])
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(listed)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    given = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if is_bert:
        frame = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"
        ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        given |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    else:
        frame, ends = ("<s> $A", "<s> $A $B"), [("<s>", tokenizer.token_to_id("<s>"))]
        given |= {"bos_token": "<s>"} if begins else {}
    if is_bert or begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=frame[0], pair=frame[1], special_tokens=ends
        )
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)


def _gpt2(stream, layers, heads, size, groups, tokenizer, program):
    return hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=len(tokenizer), n_embd=stream.width, n_layer=layers, n_head=heads, n_inner=16,
        n_positions=PLACES, activation_function="relu", tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=None,
    ))  # fmt: skip


def _llama(stream, layers, heads, size, groups, tokenizer, program):
    return hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=stream.width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // (groups or 1), head_dim=size,
        intermediate_size=16, max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": _THETA},
        bos_token_id=tokenizer.bos_token_id, eos_token_id=None, pad_token_id=None,
    ))  # fmt: skip


def _bert(stream, layers, heads, size, groups, tokenizer, program):
    classes = dict(enumerate(program.answers))
    return hf.BertConfig(
        vocab_size=len(tokenizer), hidden_size=stream.width, num_hidden_layers=layers,
        num_attention_heads=heads, intermediate_size=16, max_position_embeddings=PLACES,
        hidden_act="relu", tie_word_embeddings=False, pad_token_id=0, id2label=classes,
        label2id={name: n for n, name in classes.items()},
    )  # fmt: skip


FAMILIES = {
    "gpt2": _gpt2,
    "llama": _llama,
    "bert-mask": lambda *given: hf.BertForMaskedLM(_bert(*given)),
    "bert-class": lambda *given: hf.BertForSequenceClassification(_bert(*given)),
}


# --- the weights of each family


def _fill(module, family, stream, matrices, embedding, tokenizer, program, generator) -> None:
    """Write the weights into a module whose parameters are all 0."""
    for name, parameter in module.named_parameters():
        if name.endswith("weight") and parameter.dim() == 1:  # of a norm
            parameter.fill_(stream.scale)
    layers = 1 + max(layer for layer, _ in matrices)
    blocks = {
        "gpt2": lambda: module.transformer.h,
        "llama": lambda: module.model.layers,
    }.get(family, lambda: module.bert.encoder.layer)()
    module.get_input_embeddings().weight.copy_(embedding)
    if "position" in stream.slices:
        rows = torch.zeros(PLACES, stream.width)
        rows[:, stream.slices["position"]] = torch.eye(PLACES)
        rows[:, stream.slices["place"]] = torch.arange(PLACES)[:, None] / 10
        holder = (
            module.transformer.wpe
            if family == "gpt2"
            else (module.bert.embeddings.position_embeddings)
        )
        holder.weight.copy_(stream.balanced(rows))
    for layer, block in zip(range(layers), blocks, strict=True):
        of_layer = [matrices[place] for place in sorted(matrices) if place[0] == layer]
        Q, K, V = (torch.cat([one[n] for one in of_layer], 1) for n in range(3))
        O = torch.cat([one[3] for one in of_layer], 0)  # noqa: E741
        mlp = _mlp(stream, program, generator, is_last=layer == layers - 1)
        _FILL[family](block, Q, K, V, O, *mlp)
    unembedding = _LOGIT * stream.basis("out").T  # (answers, d)
    if program.compares_size:
        unembedding[1] += _LOGIT / 2 * stream.basis("one")[:, 0]
    if family == "bert-class":  # the pooler reads the outputs, and its tanh keeps their order
        n = len(unembedding)
        module.bert.pooler.dense.weight[:n] = unembedding / _LOGIT
        module.classifier.weight[:, :n] = _LOGIT * torch.eye(n)
        return
    rows = torch.zeros(len(tokenizer), stream.width)
    for token, row in zip(program.answers, unembedding, strict=True):
        rows[tokenizer.convert_tokens_to_ids(token)] = row
    if family == "bert-mask":
        transform = module.cls.predictions.transform
        kept = [*range(*stream.slices["out"].indices(stream.width))]
        kept += [*range(*stream.slices["one"].indices(stream.width))]
        transform.dense.weight[kept, kept] = 1
        # ReLU lets no negative constant pass, so the norm's bias adds the mean that it subtracts.
        d, constant = stream.width, 2**0.5 * _CONSTANT
        transform.dense.bias[stream.slices["constant"].start] = constant
        transform.LayerNorm.weight.fill_(constant * (d - 1) ** 0.5 / d)
        transform.LayerNorm.bias.fill_(constant / d)
    module.get_output_embeddings().weight.copy_(rows)


def _mlp(stream, program, generator, *, is_last) -> tuple[Tensor, Tensor]:
    """Return the weights into and out of the 16 neurons: junk, or the size of a number."""
    into = 0.1 * torch.randn(stream.width, 16, generator=generator)
    into[stream.slices["constant"]] = into[stream.slices["slack"]] = 0
    if "place" in stream.slices:
        into[stream.slices["place"]] = 0
    out = 0.1 * torch.randn(16, _JUNK, generator=generator) @ stream.basis("junk").T
    if program.compares_size and is_last:
        space = stream.basis(program.compares_size)[:, 0]
        into[:, 0], into[:, 1] = space, -space
        out[:2] = 8 * stream.basis("out")[:, 0]
    return into, stream.balanced(out)


def _fill_gpt2(block, Q, K, V, O, into, out) -> None:  # noqa: E741
    block.attn.c_attn.weight.copy_(torch.cat([Q, K, V], 1))
    block.attn.c_proj.weight.copy_(O)
    block.mlp.c_fc.weight.copy_(into)
    block.mlp.c_proj.weight.copy_(out)


def _fill_llama(block, Q, K, V, O, into, out) -> None:  # noqa: E741
    attention = block.self_attn
    count, size = attention.config.num_key_value_heads, attention.head_dim
    groups = Q.shape[1] // (count * size)

    def first(matrix: Tensor) -> Tensor:
        return matrix.unflatten(1, (count, groups, size))[:, :, 0].flatten(1)

    attention.q_proj.weight.copy_(Q.T)
    attention.k_proj.weight.copy_(first(K).T)
    attention.v_proj.weight.copy_(first(V).T)
    attention.o_proj.weight.copy_(O.T)
    block.mlp.gate_proj.weight.copy_(into.T)
    block.mlp.up_proj.weight.copy_(into.T)
    block.mlp.down_proj.weight.copy_(out.T)


def _fill_bert(block, Q, K, V, O, into, out) -> None:  # noqa: E741
    attention = block.attention.self
    attention.query.weight.copy_(Q.T)
    attention.key.weight.copy_(K.T)
    attention.value.weight.copy_(V.T)
    block.attention.output.dense.weight.copy_(O.T)
    block.intermediate.dense.weight.copy_(into.T)
    block.output.dense.weight.copy_(out.T)


_FILL = {
    "gpt2": _fill_gpt2,
    "llama": _fill_llama,
    "bert-mask": _fill_bert,
    "bert-class": _fill_bert,
}
