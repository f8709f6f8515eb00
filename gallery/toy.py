"""Small networks that are trained in seconds.

Two learn to reverse a sequence, for `fig03_recurrent_attention.py`: one joins an encoder and a
decoder by recurrent attention, the other is one layer of self-attention. A third copies by three
kinds of attention, for `fig29_linear_attention.py`.
"""

import torch
from torch import nn

from attnviz.figures.style import LIGHT
from attnviz.formula.attention import (
    additive_scores,
    attention_weights,
    context,
    softmax,
)


class Recurrent(nn.Module):
    """An encoder and a decoder connected only by additive attention (Bahdanau et al. 2015).

    The decoder begins with nothing: what it knows of the symbols comes to it through the weights.
    """

    def __init__(self, symbols, width=32):
        super().__init__()
        self.embed = nn.Embedding(symbols + 1, width)  # one more symbol marks the start
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.W = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.U = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.v = nn.Parameter(torch.randn(width) / width**0.5)
        self.say = nn.Linear(2 * width, symbols)

    def forward(self, x, decoder_input):
        """Return the next-symbol logits (N, T, symbols) and the weights (N, T, T)."""
        H, _ = self.encoder(self.embed(x))
        S, _ = self.decoder(self.embed(decoder_input))
        weights = softmax(additive_scores(S, H, self.W, self.U, self.v))
        C = context(weights, H)
        return self.say(torch.cat([S, C], dim=-1)), weights


class Parallel(nn.Module):
    """One layer of self-attention: with positions added, every token reads every token."""

    def __init__(self, symbols, T, width=32):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.position = nn.Embedding(T, width)
        self.W_q = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.W_k = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.W_v = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.say = nn.Linear(width, symbols)

    def forward(self, x, decoder_input):
        """Return the logits at each position (N, T, symbols) and the weights (N, T, T)."""
        X = self.embed(x) + self.position.weight
        weights = attention_weights(X @ self.W_q, X @ self.W_k)
        return self.say(weights @ (X @ self.W_v)), weights


def make_task(symbols, T, N):
    """Return N sequences (N, T), the decoder inputs and the targets."""
    x = torch.randint(symbols, (N, T))
    answers = x.flip(1)
    decoder_input = nn.functional.pad(answers[:, :-1], (1, 0), value=symbols)
    return x, decoder_input, answers


def train(network, symbols, T, steps=200):
    """Train to reverse T symbols; return the accuracy and the mean weights on new sequences."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are slower on such small matrices
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        x, decoder_input, answers = make_task(symbols, T, N=256)
        guesses, _ = network(x, decoder_input)
        optimizer.zero_grad()
        nn.functional.cross_entropy(guesses.mT, answers).backward()
        optimizer.step()
    x, decoder_input, answers = make_task(symbols, T, N=4096)
    with torch.no_grad():
        guesses, weights = network(x, decoder_input)
    torch.set_num_threads(threads)
    accuracy = (guesses.argmax(-1) == answers).double().mean().item()
    return accuracy, weights.mean(0)


def draw_recurrent(ax, weights):
    """Draw the recurrent network: each state with its step, larger weights darker.

    Arrows in the color of recurrence run in sequence.
    """
    x, h, c, s = range(4)  # rows: tokens, encoder, contexts, decoder
    T = len(weights)
    for t in range(T):
        for source in range(T):
            _arrow(ax, (source, h), (t, c), "C0", alpha=weights[t, source])
        _arrow(ax, (t, x), (t, h), "0.7")
        _arrow(ax, (t, s), (t, c), "C1")
        if t < T - 1:
            _arrow(ax, (t, h), (t + 1, h), "C1")
            _arrow(ax, (t, s), (t + 1, s), "C1")
            _arrow(ax, (t, c), (t + 1, s), "C1")
    encoder, contexts = range(1, T + 1), range(T + 1, 3 * T, 2)
    decoder = [1, *(step + 1 for step in contexts[:-1])]
    rows = {"tokens x": "x" * T, "encoder h": encoder, "context c": contexts, "decoder s": decoder}
    _write_rows(ax, rows)


def draw_parallel(ax, weights):
    """Draw the inputs of every output of self-attention, larger weights darker."""
    x, a = range(2)  # rows: tokens, outputs
    T = len(weights)
    for t in range(T):
        for source in range(T):
            _arrow(ax, (source, x), (t, a), "C0", alpha=weights[t, source])
    _write_rows(ax, {"tokens x": "x" * T, "outputs a": [1] * T})


def _arrow(ax, start, end, color, alpha=1.0):
    style = {"arrowstyle": "-|>", "mutation_scale": 6, "shrinkA": 5, "shrinkB": 5, "color": color}
    style |= {"alpha": 0.08 + 0.92 * float(alpha), "zorder": float(alpha)}
    ax.annotate("", end, start, arrowprops=style)


def _write_rows(ax, rows):
    """Write the states; the step of the last one, in red, is what the title counts."""
    last = max(state for row in rows.values() for state in row if state != "x")
    for y, states in enumerate(rows.values()):
        for x, state in enumerate(states):
            red = {"color": LIGHT.claim, "weight": "bold"} if state == last else {}
            ax.text(x, y, state, ha="center", va="center", **red)
    ax.set(xlim=(-0.4, len(states) - 0.6), ylim=(-0.3, len(rows) - 0.7), xticks=[])
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def copying_accuracy(model, texts):
    """Return how often the next symbol is the most probable one, in the second half of texts."""
    half = texts.shape[1] // 2
    with torch.no_grad():
        likely = model(texts).logits[:, half:-1].argmax(-1)
    return (likely == texts[:, half + 1 :]).double().mean().item()


def make_hybrid(symbols=24, width=48):
    """Return an untrained decoder of one layer in which three kinds of attention run side by side.

    They are softmax attention, a gated delta network and Mamba-2, as transformers has them. Each
    token also holds the token before it.
    """
    from transformers import Mamba2Config, PreTrainedModel, Qwen3NextConfig
    from transformers.modeling_outputs import CausalLMOutput
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.models.qwen3_next.modeling_qwen3_next import (
        Qwen3NextAttention,
        Qwen3NextGatedDeltaNet,
        Qwen3NextRotaryEmbedding,
        create_causal_mask,
    )

    class Hybrid(PreTrainedModel):
        config_class = Qwen3NextConfig
        _supports_sdpa = _supports_attention_backend = True

        def __init__(self, config):
            super().__init__(config)
            mamba = Mamba2Config(
                hidden_size=width,
                num_heads=2,
                head_dim=width,
                expand=2,
                state_size=width,
                n_groups=1,
                chunk_size=16,
                conv_kernel=2,
            )
            self.embed = nn.Embedding(symbols, width)
            self.join = nn.Linear(2 * width, width)
            self.norm = nn.RMSNorm(width)
            self.rotary = Qwen3NextRotaryEmbedding(config)
            self.softmax = Qwen3NextAttention(config, 1)
            self.delta = Qwen3NextGatedDeltaNet(config, 0)
            self.mamba = Mamba2Mixer(mamba, 0)
            self.say = nn.Linear(width, symbols)
            self.only = None  # the kind that runs alone, in training
            self.post_init()

        def forward(self, input_ids, attention_mask=None, **_):
            X = self.embed(input_ids)
            X = self.join(torch.cat([X, nn.functional.pad(X, (0, 0, 1, -1))], dim=-1))
            states = self.norm(X)
            places = torch.arange(input_ids.shape[1], device=X.device)[None]
            mask = create_causal_mask(
                config=self.config,
                inputs_embeds=X,
                attention_mask=attention_mask,
                past_key_values=None,
                position_ids=places,
            )
            kinds = {
                "softmax": lambda: self.softmax(
                    states, self.rotary(states, places), mask, past_key_values=None
                )[0],
                "delta": lambda: self.delta(states),
                "mamba": lambda: self.mamba(states),
            }
            for name, mix in kinds.items():
                if self.only in (None, name):
                    X = X + mix()
            return CausalLMOutput(logits=self.say(X))

    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": width}
    config = Qwen3NextConfig(
        vocab_size=symbols,
        hidden_size=width,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=width,
        linear_value_head_dim=width,
        linear_conv_kernel_dim=2,
        **heads,
        layer_types=["linear_attention", "full_attention"],
        num_hidden_layers=2,
    )
    config._attn_implementation = "eager"
    model = Hybrid(config)
    with torch.no_grad():  # both forget slowly at first
        model.delta.A_log.fill_(-4)
        model.mamba.A_log.fill_(-4)
        model.mamba.dt_bias.fill_(0)
    return model


def train_hybrid(steps=400, symbols=24, longest=12, T=24):
    """Train each kind of attention of a hybrid alone to copy; return it and their accuracies."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make_hybrid(symbols)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.008, betas=(0.9, 0.98), weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, 3 * steps)
    kinds = "softmax", "delta", "mamba"
    for step in range(3 * steps):
        model.only = kinds[step % 3]
        period = torch.randint(4, longest + 1, ()).item()
        ids = torch.rand(32, symbols).argsort(1)[:, :period].repeat(1, 1 + T // period)[:, :T]
        logits = model(ids).logits[:, period - 1 : -1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, period:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    accuracy = {}
    ids = torch.rand(256, symbols).argsort(1)[:, :longest].repeat(1, 2)
    for model.only in (*kinds, None):
        accuracy[model.only] = copying_accuracy(model.eval(), ids)
    torch.set_num_threads(threads)
    return model, accuracy


def letters_tokenizer(symbols):
    """Return the letters of some symbols, and a tokenizer that reads them apart by blanks."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(ord("a") + number) for number in range(symbols)]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    words = Tokenizer(models.WordLevel(vocabulary, "a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return letters, PreTrainedTokenizerFast(tokenizer_object=words)
