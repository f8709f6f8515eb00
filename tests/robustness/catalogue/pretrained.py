"""Models: missing, damaged, inconsistent, unsupported, or without attention."""

from typing import Any

from robustness.catalogue.case import typed


def _refused(name: str, said: str, **how: Any) -> dict:
    return {name: typed(f"heatmap 'the train' -m {name}", 3, said, **how)}


PRETRAINED = {
    "no such name": typed("heatmap train -m no/such-model", 3, "'no/such-model'"),
    "a name with an escape": typed("heatmap train -m 'a/\x1b[31mb'", 3, "a/"),
    "a name that is no Unicode": typed("heatmap train -m './\udcff'", 3, "folder"),
    "a web address": typed("heatmap train -m https://example.org/model", 3, "https://example.org"),
    "a name in other scripts": typed("heatmap train -m ./zug-ü-列車 -o x.svg", leaves="x.svg"),
    **_refused("a-file", "'a-file' is a file"),
    **_refused("a-broken-link", "a-broken-link"),
    **_refused("without-config", "config.json"),
    **_refused("without-weights", "model.safetensors"),
    **_refused("truncated", "cannot load the model (SafetensorError"),
    **_refused("huge-header", "cannot load the model (SafetensorError"),
    **_refused("git-lfs", "git lfs pull"),
    **_refused("no-tensors", "missing"),
    **_refused("missing-tensor", "encoder.layer.1.attention.self.query.weight is missing"),
    **_refused("config-no-json", "config.json"),
    **_refused("not-to-be-listed", "not-to-be-listed", within="no root"),
    **_refused("not-to-be-entered", "change its permissions", within="no root"),
    **_refused("unreadable-weights", "PermissionError", within="no root"),
    **_refused("wants-a-package", "Install what is missing"),
    **_refused("config-nested", "config.json"),
    **_refused("no-type", "model_type"),
    **_refused("unknown-type", "'nonesuch'"),
    **_refused("type-with-escape", "model_type"),
    **_refused("heads-do-not-divide", "heads (3)"),
    **_refused("no-heads", "no-heads: "),
    **_refused("lies-about-width", "by the config"),
    **_refused("no-width", "no-width: "),
    **_refused("negative-width", "negative dimension -16"),
    **_refused("more-layers", "encoder.layer.2"),
    **_refused("fewer-layers", "the config has no layer for"),
    **_refused("layers-a-word", "config.json"),
    **_refused("fewer-words", "by the config"),
    **_refused("other-family", "Use the config.json that was saved"),
    **_refused("other-activation", "nonesuch"),
    **_refused("own-code", "remote code"),
    **_refused("without-tokenizer", "tokenizer"),
    **_refused("tokenizer-no-json", "tokenizer"),
    **_refused("larger-tokenizer", "tokenizer"),
    **_refused("fnet", "attention"),
    "an image model without processor": typed(
        "heatmap --image photo.png -m vit-without-processor", 3, "no processor that reads image"
    ),
    "images without attention": typed("heatmap --image photo.png -m resnet", 3, "attention"),
    "the root of the disk": typed(
        "heatmap train -m /", 3, "/: config.json cannot be read: no such file"
    ),
    "at most -3 tokens": typed("verify train -m at-most-minus-3-tokens"),
    "remote code, yes typed": typed(
        "verify train -m own-code", 3, "remote code", within="yes on stdin"
    ),
    "attention code of a hub": typed("verify train -m eager-elsewhere"),
    "another number of heads": typed("verify train -m lies-about-heads"),
    "a shift of an encoder-decoder": typed("shift train 'the train left' -m t5", 3, "one text"),
}
