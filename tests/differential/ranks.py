"""What every process of a tensor-parallel run does; test_sharded.py starts them with torchrun.

Each writes what it sees into the folder of the models, under its number.
"""

import json
import sys
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import torch
import transformers
from torch import distributed
from transformers.distributed import DistributedConfig

import attnviz
from attnviz.capture.tensor_parallel import Spread

TEXT = "the train left the station on time and nobody noticed that it was early"
gathered = Spread.gathered
FAULTS = {
    "in reverse order": lambda self, own, dim: torch.cat(
        gathered(self, own, dim).chunk(self.size, dim)[::-1], dim
    ),
    "one lost": lambda self, own, dim: own,
    "one empty": lambda self, own, dim: torch.cat(
        [part * (n == 0) for n, part in enumerate(gathered(self, own, dim).chunk(self.size, dim))],
        dim,
    ),
}


BERT = {  # transformers has no plan for it
    **dict.fromkeys([f"attention.self.{name}" for name in ("query", "key", "value")], "colwise"),
    **{"attention.output.dense": "rowwise"},
    **{"intermediate.dense": "colwise", "output.dense": "rowwise"},
}


def load(folder):
    """Load a model as a user would: each process has a part of it."""
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    own = {f"encoder.layer.*.{matrix}": how for matrix, how in BERT.items()}
    plan = own if name == "BertModel" else "auto"
    model = getattr(transformers, name).from_pretrained(
        folder, distributed_config=DistributedConfig(tp_plan=plan)
    )
    return attnviz.load(model, tokenizer=folder.parent)


def marks(model):
    """Return what tells every parameter from any other, and how often it was written."""
    return {name: (id(each), each._version) for name, each in model.module.named_parameters()}


def refused(ask):
    """Return the line with which something is refused."""
    try:
        return str(ask())
    except attnviz.AttnvizError as error:
        return f"{type(error).__name__}: {error}"


def main(folder):
    said, rank = {}, None
    for place in sorted(folder.glob("*-float*")):
        model = load(place)
        rank = distributed.get_rank()
        before = marks(model)
        attnviz.save_result(model.attend(TEXT), folder / f"{place.name}.{rank}.safetensors")
        assert marks(model) == before, "the model is not as it was"
        if place.name == "llama-float64":
            for name, kept in (("streamed", {"mode": "streamed"}), ("generated", {"generate": 3})):
                attnviz.save_result(
                    model.attend(TEXT, **kept), folder / f"{name}.{rank}.safetensors"
                )
            # All at once: nobody may see half of it.
            attnviz.save_result(model.attend(TEXT), folder / "all.safetensors", force=True)
            said["shift"] = refused(partial(attnviz.shift, "train", TEXT, model=model))
            for (name, fault), mode in product(FAULTS.items(), ("full", "streamed")):
                with patch.object(Spread, "gathered", fault):
                    how = partial(model.attend, TEXT, mode=mode)
                    said[f"{name}, {mode}"] = refused(lambda how=how: how().agreement.summary())
    said["uneven"] = refused(lambda: load(folder / "one key head"))
    (folder / f"{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
