"""A BERT of the package rxnfp that tells 50 classes of chemical reactions apart, from a pickle."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from real_models.bert import Bert
from real_models.source import Package
from real_models.vocabulary import constant, save_tokenizer

PACKAGES = (
    Package(
        "rxnfp",
        "0.1.0",
        "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
        "MIT",
    ),
)
MODEL = "rxnfp/models/transformers/bert_ft_10k_25s"
# The 50 classes of Schneider et al. 2015 (doi:10.1021/ci5006614). The classes of the model are in
# the order of these numbers as texts, as in data/rxnclass2id.json of the package's repository.
CLASSES = {
    "1.2.1": "Aldehyde reductive amination",
    "1.2.4": "Eschweiler-Clarke methylation",
    "1.2.5": "Ketone reductive amination",
    "1.3.6": "Bromo N-arylation",
    "1.3.7": "Chloro N-arylation",
    "1.3.8": "Fluoro N-arylation",
    "1.6.2": "Bromo N-alkylation",
    "1.6.4": "Chloro N-alkylation",
    "1.6.8": "Iodo N-alkylation",
    "1.7.4": "Hydroxy to methoxy",
    "1.7.6": "Methyl esterification",
    "1.7.7": "Mitsunobu aryl ether synthesis",
    "1.7.9": "Williamson ether synthesis",
    "1.8.5": "Thioether synthesis",
    "10.1.1": "Bromination",
    "10.1.2": "Chlorination",
    "10.1.5": "Wohl-Ziegler bromination",
    "10.2.1": "Nitration",
    "10.4.2": "Methylation",
    "2.1.1": "Amide Schotten-Baumann",
    "2.1.2": "Carboxylic acid + amine reaction",
    "2.1.7": "N-acetylation",
    "2.2.3": "Sulfonamide Schotten-Baumann",
    "2.3.1": "Isocyanate + amine reaction",
    "2.6.1": "Ester Schotten-Baumann",
    "2.6.3": "Fischer-Speier esterification",
    "2.7.2": "Sulfonic ester Schotten-Baumann",
    "3.1.1": "Bromo Suzuki coupling",
    "3.1.5": "Bromo Suzuki-type coupling",
    "3.1.6": "Chloro Suzuki-type coupling",
    "3.3.1": "Sonogashira coupling",
    "3.4.1": "Stille reaction",
    "5.1.1": "N-Boc protection",
    "6.1.1": "N-Boc deprotection",
    "6.1.3": "N-Cbz deprotection",
    "6.1.5": "N-Bn deprotection",
    "6.2.1": "CO2H-Et deprotection",
    "6.2.2": "CO2H-Me deprotection",
    "6.2.3": "CO2H-tBu deprotection",
    "6.3.1": "O-Bn deprotection",
    "6.3.7": "Methoxy to hydroxy",
    "7.1.1": "Nitro to amino",
    "7.2.1": "Amide to amine reduction",
    "7.3.1": "Nitrile reduction",
    "7.9.2": "Carboxylic acid to alcohol reduction",
    "8.1.4": "Alcohol to aldehyde oxidation",
    "8.1.5": "Alcohol to ketone oxidation",
    "8.2.1": "Sulfanyl to sulfinyl",
    "9.1.6": "Hydroxy to chloro",
    "9.3.1": "Carboxylic acid to acid chloride",
}
TEXTBOOK = {
    "CC(C)CN.O=C(O)c1ccccc1>>CC(C)CNC(=O)c1ccccc1": "2.1.2",
    "COc1ccc(Br)cc1.OB(O)c1ccccc1>>COc1ccc(-c2ccccc2)cc1": "3.1.5",
    "C1CCNCC1.Cc1ccc(S(=O)(=O)Cl)cc1>>Cc1ccc(S(=O)(=O)N2CCCCC2)cc1": "2.2.3",
    "CC(C)(C)OC(=O)N1CCC(c2ccccc2)CC1>>c1ccc(C2CCNCC2)cc1": "6.1.1",
    "COc1ccc([N+](=O)[O-])cc1>>COc1ccc(N)cc1": "7.1.1",
    "CC(O)c1ccccc1>>CC(=O)c1ccccc1": "8.1.5",
    "C1COCCN1.O=Cc1ccccc1>>c1ccc(CN2CCOCC2)cc1": "1.2.1",
    "O=C=Nc1ccccc1.CCCN>>CCCNC(=O)Nc1ccccc1": "2.3.1",
}


def convert(files: Path, folder: Path) -> None:
    """Write the model with the names of its classes, and the tokenizer of the package."""
    source = files / MODEL
    names = dict(enumerate(CLASSES.values()))
    config = BertConfig.from_pretrained(source)
    config.id2label = names
    config.label2id = {name: number for number, name in names.items()}
    BertForSequenceClassification.from_pretrained(
        None, config=config, state_dict=_state(files)
    ).save_pretrained(folder)
    pattern = constant(files / "rxnfp" / "tokenization.py", "SMI_REGEX_PATTERN")
    save_tokenizer(source / "vocab.txt", pattern, folder)


def check(folder: Path, files: Path) -> str:
    """Classify textbook reactions, and compare the logits with a run of the pickle in numpy."""
    model = BertForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    source, largest = Bert(_state(files), model.config.num_attention_heads), 0.0
    for reaction, number in TEXTBOOK.items():
        encoded = tokenizer(reaction, return_tensors="pt")
        with torch.no_grad():
            logits = model(**encoded).logits[0].double().numpy()
        if (found := model.config.id2label[int(logits.argmax())]) != CLASSES[number]:
            raise AssertionError(f"{reaction} is a {CLASSES[number]}, but was found a {found}.")
        theirs = source.classes(encoded.input_ids[0].tolist())
        largest = max(largest, float(abs(logits - theirs).max()))
    if largest > 1e-3:
        raise AssertionError(f"The logits differ by up to {largest:.0e}.")
    return f"{len(TEXTBOOK)} textbook reactions classified, logits equal to {largest:.0e}"


def _state(files: Path) -> dict[str, torch.Tensor]:
    return torch.load(files / MODEL / "pytorch_model.bin", map_location="cpu", weights_only=True)
