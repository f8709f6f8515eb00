"""Correct and incorrect uses with their expected outcomes: a table for each group."""

from robustness.catalogue.commands import COMMANDS
from robustness.catalogue.media import MEDIA
from robustness.catalogue.numeric import NUMERIC
from robustness.catalogue.places import PLACES
from robustness.catalogue.pretrained import PRETRAINED
from robustness.catalogue.selections import SELECTIONS
from robustness.catalogue.surroundings import DEVICES, SEVERAL, STREAMS
from robustness.catalogue.texts import TEXTS

GROUPS = {
    "text": TEXTS,
    "selections": SELECTIONS,
    "models": PRETRAINED,
    "numbers": NUMERIC,
    "files": PLACES,
    "streams": STREAMS,
    "devices": DEVICES,
    "images and sounds": MEDIA,
    "commands": COMMANDS,
    "several at once": SEVERAL,
}
