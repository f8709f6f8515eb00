"""Write tests/data/next_token_prompts.json: prompts whose next token SmolLM2 predicts correctly.

A candidate is a prompt, the right next word and a plausible competitor. It is kept if the model, in
float32 and with its BOS token before the text, prefers the target by more than 0.3 in the logit.
Both words have to be one token. Nothing else decides, and no attribution is computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

import attnviz
from attnviz.attribution.reference import encode_after, read

FILE = Path(__file__).parents[1] / "tests" / "data" / "next_token_prompts.json"
MARGIN = 0.3  # in the logit, between the target and its competitor
WORDS = range(6, 14)
CANDIDATES = {
    "agreement": """
        The keys to the old wooden cabinet | are | is
        The key to the old wooden cabinets | is | are
        The boys who met the new teacher | were | was
        The boy who met the new teachers | was | were
        The pictures on the wall near the window | are | is
        The picture on the wall near the windows | is | are
        The dogs that chased the small gray cat | were | was
        The author of the two famous books | is | are
        The books that my younger sister wrote | are | is
        The flowers in the garden behind the house | are | is
        The cars parked in front of the store | were | was
        The house between the two tall trees | is | are
        The doctors who work with the young nurse | have | has
        The doctor who works with the young nurses | has | have
        The roads from the village to the city | are | is
        The road from the village to the cities | is | are""",
    "capitals": """
        The capital of France is the city of | Paris | London
        The capital of Germany is the city of | Berlin | Paris
        The capital of Italy is the city of | Rome | Paris
        The capital of Spain is the city of | Madrid | Rome
        The capital of Japan is the city of | Tokyo | Beijing
        The capital of China is the city of | Beijing | Tokyo
        The capital of England is the city of | London | Paris
        The capital of Russia is the city of | Moscow | Berlin
        The capital of Egypt is the city of | Cairo | Athens
        The capital of Greece is the city of | Athens | Rome
        We flew to France and landed in its capital, | Paris | Rome
        She moved to Japan and works in its capital, | Tokyo | Paris
        He grew up in Russia, near its capital, | Moscow | London
        They visited Italy and spent a week in its capital, | Rome | Madrid""",
    "copying": """
        red green blue, red green blue, red green | blue | red
        one apple, two pears, one apple, two | pears | apple
        cat dog bird horse, cat dog bird | horse | cat
        The code is seven four nine. Again: seven four | nine | seven
        north south east west, north south east | west | north
        The red box holds a lamp. Open the red | box | lamp
        salt pepper sugar, salt pepper sugar, salt pepper | sugar | salt
        The silver train was late. We waited for the silver | train | car
        gold silver iron, gold silver iron, gold silver | iron | gold
        Monday rain, Tuesday snow, Monday rain, Tuesday | snow | rain
        bread milk eggs, bread milk eggs, bread milk | eggs | bread
        The green door was open. Nobody closed the green | door | window
        piano violin drum, piano violin drum, piano violin | drum | piano
        paper stone water, paper stone water, paper stone | water | paper""",
    "names": """
        When Mary and John met, John gave a book to | Mary | John
        When Tom and Anna met, Anna gave a ring to | Tom | Anna
        After Paul and Sarah ate, Sarah passed the salt to | Paul | Sarah
        When David and Emma talked, David handed a letter to | Emma | David
        While Peter and Lucy played, Lucy threw the ball to | Peter | Lucy
        When James and Kate left, Kate said goodbye to | James | Kate
        After Mark and Jane argued, Mark said sorry to | Jane | Mark
        When Alice and Bob shopped, Alice gave the money to | Bob | Alice
        When Simon and Laura met, Laura gave a flower to | Simon | Laura
        When Henry and Rose worked, Henry showed the plan to | Rose | Henry
        While Jack and Helen cooked, Helen gave a spoon to | Jack | Helen
        When George and Mary traveled, George sent a card to | Mary | George""",
    "opposites": """
        The opposite of the word hot is the word | cold | hot
        The opposite of the word big is the word | small | big
        The opposite of the word up is the word | down | up
        The opposite of the word early is the word | late | early
        The opposite of the word fast is the word | slow | fast
        The opposite of the word old is the word | young | old
        The opposite of the word good is the word | bad | good
        The opposite of the word rich is the word | poor | rich
        The soup is not hot at all, it is | cold | hot
        Summer days are hot, but winter days are | cold | hot
        Giants are big, but dwarfs are very | small | big
        A feather is light, but a stone is | heavy | light
        The day is bright, but the night is | dark | bright
        Cats are quiet, but barking dogs are | loud | quiet""",
    "arithmetic": """
        In school we learned that two plus two equals | four | five
        In school we learned that one plus one equals | two | three
        In school we learned that three plus three equals | six | seven
        In school we learned that two plus three equals | five | six
        In school we learned that five plus five equals | ten | nine
        In school we learned that one plus two equals | three | four
        We count in order: one, two, three, four, | five | three
        We count in order: four, five, six, seven, | eight | six
        We count down: nine, eight, seven, six, | five | seven
        We count by twos: two, four, six, | eight | seven
        We count by tens: ten, twenty, thirty, | forty | twenty
        Five minus two is three, four minus two is | two | three
        One and two is three, two and two is | four | three""",
}


def candidates() -> Iterator[dict[str, str]]:
    """Yield every candidate."""
    for category, lines in CANDIDATES.items():
        for line in lines.strip().splitlines():
            prompt, target, against = (part.strip() for part in line.split("|"))
            if len(prompt.split()) not in WORDS:
                raise ValueError(f"{prompt!r} has {len(prompt.split())} words, not 6 to 13.")
            yield {"prompt": prompt, "target": target, "against": against, "category": category}


def select() -> list[dict[str, str | float]]:
    """Return the candidates that the model gets right, with the difference of their logits."""
    model = attnviz.load("smollm2")
    assert model.tokenizer is not None
    bos = read(model, "The first text says which token is read before all of them").bos
    kept: list[dict[str, str | float]] = []
    for candidate in candidates():
        pair = [
            model.tokenizer.encode(" " + candidate[word], add_special_tokens=False)
            for word in ("target", "against")
        ]
        if any(len(ids) != 1 for ids in pair):
            continue
        with torch.no_grad():
            inputs = encode_after(model, candidate["prompt"], bos).inputs
            logits = model.module(**inputs)[0][0, -1]
        margin = (logits[pair[0][0]] - logits[pair[1][0]]).item()
        if margin > MARGIN:
            kept.append({**candidate, "logit_difference": round(margin, 2)})
    return kept


def main() -> None:
    """Write the file."""
    prompts = select()
    made_by = " ".join((__doc__ or "").split())
    content = {"how": f"scripts/next_token_prompts.py. {made_by}", "prompts": prompts}
    FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"{len(prompts)} of {len(list(candidates()))} candidates kept")


if __name__ == "__main__":
    main()
