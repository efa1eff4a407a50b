"""Readers of what users hold, writers of what they get, and sets that need no download."""

from offmap.data.arrays import read_head
from offmap.data.builtin import DigitsSplit, digits
from offmap.data.images import ImageFolder, holds_pictures, image_folder, scale_images, tiles
from offmap.data.readers import READERS, read, read_activations
from offmap.data.samples import Samples
from offmap.data.source import Batches, batches
from offmap.data.splits import OpenWorldSplit, open_world_split, parse_known, published_split
from offmap.data.tables import check_table, join_columns, write_table
from offmap.data.texts import Texts, holds_texts, read_texts

__all__ = [
    "READERS",
    "Batches",
    "DigitsSplit",
    "ImageFolder",
    "OpenWorldSplit",
    "Samples",
    "Texts",
    "batches",
    "check_table",
    "digits",
    "holds_pictures",
    "holds_texts",
    "image_folder",
    "join_columns",
    "open_world_split",
    "parse_known",
    "published_split",
    "read",
    "read_activations",
    "read_head",
    "read_texts",
    "scale_images",
    "tiles",
    "write_table",
]
