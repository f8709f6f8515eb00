"""Load a folder of PEFT: a LoRA adapter, saved without its base model.

Weights are read from safetensors only, and all of them must fit the base model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from attnviz.errors import ModelError
from attnviz.models.pretrained import expect_finite, read_json, translate

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_VIRTUAL_TOKENS = (
    "PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT",
)  # fmt: skip


def base_of(name: str, folder: Path) -> str | None:
    """Return the base model of a folder that holds only an adapter; None for any other folder.

    Raises
    ------
    ModelError
        Another kind of adapter than LoRA, or one without weights or without the name of its base.
    """
    if not (folder / CONFIG).is_file() or any(folder.glob("model*.safetensors*")):
        return None
    settings = read_json(name, folder / CONFIG)
    kind, base = settings.get("peft_type"), settings.get("base_model_name_or_path")
    if kind in _VIRTUAL_TOKENS:
        raise ModelError(
            f"{name}: {CONFIG} is of kind {kind!r:.40}: trained vectors before every text, which "
            f"attnviz does not read. Give the model without them: {base!r:.200}."
        )
    if kind != "LORA":
        raise ModelError(
            f"{name}: {CONFIG} is of kind {kind!r:.40}, and folders of LORA are read. Load the "
            "model with peft, and pass it in Python: attnviz.load(model, tokenizer=tokenizer)."
        )
    if not isinstance(base, str) or not base:
        raise ModelError(f"{name}: {CONFIG} names no base model. Add base_model_name_or_path.")
    if not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"{name}: there is no {WEIGHTS}, and attnviz reads no pickles. Convert an adapter that "
            "you trust: peft.PeftModel.from_pretrained(base_model, old).save_pretrained(new)."
        )
    return base


def add_adapter(name: str, folder: Path, base: PreTrainedModel) -> PreTrainedModel:
    """Return a model with the adapter in a folder; its layers are replaced in place."""
    try:
        import peft
    except ImportError:
        raise ModelError(
            f"{name} is a LoRA adapter, which needs peft. Install it: pip install peft."
        ) from None
    with translate(name, "the adapter"):
        config = peft.PeftConfig.from_pretrained(str(folder))
        config.inference_mode = True
        config.megatron_config = None  # would import a module that the file names
        adapted = peft.PeftModel(base, config)
        report = adapted.load_adapter(str(folder), "default", torch_device=str(base.device))
    if lost := [*report.missing_keys, *report.unexpected_keys]:
        raise ModelError(
            f"{name}: the adapter does not fit {base.config.name_or_path}: {lost[0]:.100} is in "
            "one of them only. Use the base model that it was trained on."
        )
    module: Any = adapted.get_base_model()
    expect_finite(name, module)
    return module.eval().requires_grad_(False)  # type: ignore[no-any-return]
