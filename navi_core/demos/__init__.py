"""Demonstrations: file format, datasets, recorded flights of scripted pilots, DAgger students, Minari."""

from navi_core.demos.dataset import (
    Dataset,
    Episode,
    home_dataset,
    index_folder,
    known_datasets,
    load_dataset,
    read_index,
)
from navi_core.demos.demonstration import Demonstration, load_demonstration, save_beside, save_demonstration
from navi_core.demos.expert import RecordedScene, Student, record_expert
from navi_core.demos.ingest import IngestedFile, ingest
from navi_core.demos.minari import export_minari, import_minari
from navi_core.demos.pairs import Pairs, make_pairs, read_pairs, with_pairs_hash, write_pairs

__all__ = [
    "Dataset",
    "Demonstration",
    "Episode",
    "IngestedFile",
    "Pairs",
    "RecordedScene",
    "Student",
    "export_minari",
    "home_dataset",
    "import_minari",
    "index_folder",
    "ingest",
    "known_datasets",
    "load_dataset",
    "load_demonstration",
    "make_pairs",
    "read_index",
    "read_pairs",
    "record_expert",
    "save_beside",
    "save_demonstration",
    "with_pairs_hash",
    "write_pairs",
]
