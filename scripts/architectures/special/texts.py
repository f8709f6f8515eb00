"""Inputs of models of text, codes, series or molecules that cannot be inferred from a signature."""

from __future__ import annotations

import torch

from architectures.media import BATCH, LENGTH, Inputs, Request


def csm(request: Request, inputs: Inputs) -> Inputs:
    """One token of each codebook at each position."""
    codebooks = request.config.num_codebooks
    return {"input_ids": request.tokens(BATCH, LENGTH, codebooks), "input_values": None}


def decision(request: Request, inputs: Inputs) -> Inputs:
    """States, actions and rewards at each step."""
    config = request.config
    return {
        "states": request.normal(BATCH, LENGTH, config.state_dim),
        "actions": request.normal(BATCH, LENGTH, config.act_dim),
        "rewards": request.normal(BATCH, LENGTH, 1),
        "returns_to_go": request.normal(BATCH, LENGTH, 1),
        "timesteps": torch.arange(LENGTH).expand(BATCH, -1),
        "input_ids": None,
    }


def codes_of_decoder(request: Request, inputs: Inputs) -> Inputs:
    """One row of codes per codebook for the decoder."""
    codebooks = request.config.decoder.num_codebooks
    return {"decoder_input_ids": request.tokens(BATCH * codebooks, 10, below=60)}


def dia(request: Request, inputs: Inputs) -> Inputs:
    """Codes for the decoder: one per channel at each position."""
    channels = request.config.decoder_config.num_channels
    return {"decoder_input_ids": request.tokens(BATCH, 10, channels)}


def tapas(request: Request, inputs: Inputs) -> Inputs:
    """The position of each token in a table."""
    kinds = len(request.config.type_vocab_sizes)
    return {"token_type_ids": request.tokens(BATCH, LENGTH, kinds, below=4) % 2}


def perceiver(request: Request, inputs: Inputs) -> Inputs:
    """Vectors of any modality."""
    return {"inputs": request.normal(BATCH, LENGTH, request.config.d_model), "input_ids": None}


def retrieved(request: Request, inputs: Inputs) -> Inputs:
    """Documents, as from a retriever."""
    documents = request.config.n_docs
    return {
        "context_input_ids": request.tokens(BATCH * documents, LENGTH),
        "context_attention_mask": torch.ones(BATCH * documents, LENGTH, dtype=torch.long),
        "doc_scores": request.normal(BATCH, documents),
    }


def blt(request: Request, inputs: Inputs) -> Inputs:
    """Disable the cache: the tiny configuration is too incomplete for it."""
    return {"use_cache": False}


def channels_of_tokens(request: Request, inputs: Inputs) -> Inputs:
    """A text token and one token of each codebook at each position."""
    return {"input_ids": request.tokens(BATCH, LENGTH, request.config.num_codebooks + 1)}


def jev(request: Request, inputs: Inputs) -> Inputs:
    """One prompt with two questions of two options."""
    return {
        "input_ids": inputs["input_ids"][:1],
        "attention_mask": None,
        "marks": torch.tensor([[6, 12]]),
        "num_options": torch.tensor([[2, 2]]),
        "question_type_ids": torch.tensor([[1, 1]]),
    }


def draft(request: Request, inputs: Inputs) -> Inputs:
    """Inputs that a draft model reads from the target model."""
    config = request.config
    return {
        "noise_embeds": request.normal(BATCH, config.block_size, config.hidden_size),
        "context_hidden_states": request.normal(
            BATCH, LENGTH, config.hidden_size * len(config.target_layer_ids)
        ),
        "attention_mask": {"full_attention": None, "sliding_attention": None},
    }


def drafter(request: Request, inputs: Inputs) -> Inputs:
    """Inputs that a draft model reads from the target model."""
    config = request.config
    states = {
        kind: (request.normal(BATCH, 2, LENGTH, 16), request.normal(BATCH, 2, LENGTH, 16))
        for kind in ("full_attention", "sliding_attention")
    }
    return {
        "input_ids": None,
        "inputs_embeds": request.normal(BATCH, 1, 2 * config.backbone_hidden_size),
        "position_ids": torch.full((BATCH, 1), LENGTH - 1),
        "shared_kv_states": states,
    }


def protein(request: Request, inputs: Inputs) -> Inputs:
    """A chain of residues with three atoms each."""
    module = __import__(type(request.model).__module__, fromlist=["*"])
    tokens, each = 8, 3
    atoms = tokens * each
    zeros = torch.zeros(BATCH, tokens, dtype=torch.long)
    order = torch.arange(tokens).expand(BATCH, -1)
    owner = torch.arange(tokens).repeat_interleave(each).expand(BATCH, -1)
    names = set(module.EsmFold2AtomInputs.__dataclass_fields__)
    drawn = {
        "ref_pos": request.normal(BATCH, atoms, 3),
        "ref_charge": torch.zeros(BATCH, atoms),
        "atom_attention_mask": torch.ones(BATCH, atoms, dtype=torch.bool),
        "ref_element": request.tokens(BATCH, atoms, below=20),
        "ref_atom_name_chars": request.tokens(BATCH, atoms, 4, below=40),
        "ref_space_uid": owner,
        "atom_to_token": owner,
    }
    return {
        "token_index": order, "residue_index": order, "asym_id": zeros, "sym_id": zeros,
        "entity_id": zeros, "mol_type": zeros,
        "res_type": request.tokens(BATCH, tokens, below=20),
        "token_bonds": torch.zeros(BATCH, tokens, tokens, 1),
        "attention_mask": torch.ones(BATCH, tokens, dtype=torch.bool),
        "atom_inputs": module.EsmFold2AtomInputs(**{name: drawn[name] for name in names}),
        "input_ids": request.tokens(BATCH, tokens, below=20),
    }  # fmt: skip


def timesfm(request: Request, inputs: Inputs) -> Inputs:
    """A series with its padding and frequency."""
    values = request.normal(BATCH, request.config.context_length)
    return {
        "past_values": values,
        "past_values_padding": torch.zeros(BATCH, values.shape[1], dtype=torch.long),
        "freq": torch.zeros(BATCH, 1, dtype=torch.long),
    }


def ended(request: Request, inputs: Inputs) -> Inputs:
    """Texts that end with their token; the class makes the text of its decoder of them."""
    tokens, visible = inputs["input_ids"].clone(), inputs["attention_mask"].sum(1)
    tokens[torch.arange(BATCH), visible - 1] = request.config.eos_token_id
    return {"input_ids": tokens, "decoder_input_ids": None}


def separated(request: Request, inputs: Inputs) -> Inputs:
    """A question and a text: <s> question </s></s> text </s>."""
    tokens, visible = inputs["input_ids"].clone(), inputs["attention_mask"].sum(1)
    tokens[:, 4:6] = request.config.sep_token_id
    tokens[torch.arange(BATCH), visible - 1] = request.config.sep_token_id
    return {"input_ids": tokens}


def entities(request: Request, inputs: Inputs) -> Inputs:
    """Two entities in each text, with the places of their words, as from LukeTokenizer."""
    places = torch.tensor([[[1, 2, -1], [5, 6, 7]]]).expand(BATCH, -1, -1)
    given = {
        "entity_ids": request.tokens(BATCH, 2, below=min(request.config.entity_vocab_size, 90)),
        "entity_attention_mask": torch.ones(BATCH, 2, dtype=torch.long),
        "entity_position_ids": places,
    }
    if "entity_start_positions" in request.names:
        starts, ends = places[..., 0], places.amax(-1)
        given |= {"entity_start_positions": starts, "entity_end_positions": ends}
    return given
