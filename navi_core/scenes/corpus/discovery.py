"""Scene discovery from selectors: files, manifests, folders, generator families and the benchmark `rooms-v1`.

The benchmark has 260 generated floors of 100–600 m², split by scene, the test scenes frozen. The generator may be
changed only under a new name: every test scene's source hash is kept here, and a scene that hashes otherwise is
refused, so that results of different days and machines refer to the same scenes.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from navi_core.config import CorpusConfig
from navi_core.errors import ConfigError, SceneError, as_argument, did_you_mean
from navi_core.scenes.compiler import without_key
from navi_core.scenes.corpus.corpus import SceneSource, generated_sources, named_sources, tell_apart
from navi_core.scenes.corpus.layouts import list_files, scene_name, split_scenes
from navi_core.scenes.gmdag.scene import Scene
from navi_core.scenes.manifest import read_manifest
from navi_core.scenes.mesh import Mesh
from navi_core.scenes.procedural import FAMILIES
from navi_core.scenes.readers.mesh_file import MESH_SUFFIXES, is_mesh_file

BENCHMARK = "rooms-v1"
"""Name of the benchmark; its family is `rooms`."""

SPLITS: dict[str, range] = {
    "train": range(0, 200),
    "validation": range(200, 220),
    "test": range(220, 260),
    "final": range(260, 300),
}
"""Seeds of each split; final was declared on 2026-11-24 and is flown once, by what was chosen without it."""


def benchmark_sources(split: str) -> list[SceneSource]:
    """Return the scene sources of one split of the benchmark `rooms-v1`, in the order of their seeds.

    Raises:
        ConfigError: No such split.
    """
    if split not in SPLITS:
        raise ConfigError(f"no split {split!r} of {BENCHMARK}; allowed: {', '.join(SPLITS)}")
    return generated_sources({"rooms": tuple(SPLITS[split])})


def require_frozen(scene: Scene | Mesh) -> None:
    """Refuse a scene that has a frozen benchmark scene's name but another source hash.

    Raises:
        SceneError: Its source hash is not the frozen one.
    """
    frozen = FROZEN_HASHES.get(scene.name)
    if frozen is not None and scene.source_hash != frozen:
        raise SceneError(
            f"{scene.name} was generated as {scene.source_hash[:12]} and is frozen in {BENCHMARK} as {frozen[:12]}; "
            "remove the compiled file, and generate it with the versions of constraints.txt"
        )


FROZEN_HASHES: dict[str, str] = {
    "rooms_0220": "6a4bba1e04e1064ee1dacf36346c94d3650c7de74dd1f286ab67c8ac52ba9bf9",
    "rooms_0221": "951ed8b4a124ee7d57c8f8d1264137a366c01c96f569c5baba72ffc519c7c130",
    "rooms_0222": "1d06f48371ed9be9bccd9ebe1b6d7b58c1a160133461bd1847e5004a35ee653e",
    "rooms_0223": "44e47667a01776c4746d188872826abc82658deed878a19464f687c8e58488b4",
    "rooms_0224": "85d3d3e8eeba7dad3117bd4b1a78e32c35f1309c6859b50302accf9ad137bc11",
    "rooms_0225": "81c3f7f6691434cee32cbc1f35fb07bb99420edfa2229829a82026ddc5e9f53e",
    "rooms_0226": "b137dfd15aace3363252f16476201212d52bef8f1209f230bacd2a7cd1b93308",
    "rooms_0227": "880547f1ece7457211c027dddc230570027bfeec86656818124ae3f5a513c6e6",
    "rooms_0228": "2881a491b7488a17c1f420ea9a37d2fa84759b6ead38db7d5f8cac9ebadb6a52",
    "rooms_0229": "43a264650715a035be3412ee4899fbab1526d9099091732c14169115e416f295",
    "rooms_0230": "44268d3f5d01c7b155e96c8bffd1229304704a9e258e03cf8bf1dfdeeb911792",
    "rooms_0231": "bef9223c7a35a0b3025626573bf35ca988c090904b4798800efb1fd7ef389493",
    "rooms_0232": "3d50971be87497805e8e23a415e8de9b50575009094ab781d8f3481d550c1908",
    "rooms_0233": "c392accc02279ce2c3de63df9d0a944c170f8dba89cf4747e086beac5173e337",
    "rooms_0234": "7d60a09727c7004dbb72879282ce576616d24b04df0083a315d5b41e204a7ff2",
    "rooms_0235": "c0606234b75c4ab97d08d974ad2eb4c062f03a3191484ec1eb3ee06d65152e6d",
    "rooms_0236": "58f50fca5d2bdd1c57e3ced99b7bb6e90619d4a356e8c2f41abe0f7bc9a0e967",
    "rooms_0237": "9e0c55c548f69ad4fbf22b7e6d6056c1af1cc57eeb857be72a6b561abf265cc0",
    "rooms_0238": "2f69d0ee3a904935d786f60a5db3c03e75b7aad9075f69b2262fbe89ebc481d7",
    "rooms_0239": "919c9bd66f492cdd7e29776a00c5d02bf201d081bc9e6f22fdd203fa3daaf655",
    "rooms_0240": "f83f6aadc32f8b3793fe262d44a7bf5186536efe3de5c9283e306cc5569b7755",
    "rooms_0241": "a6e39bc51858e53581c7a27a7c5c327f6eb2958855c3d92559ee705466acbdd8",
    "rooms_0242": "d7596e9d38ef8b4ab947693ade0d017cb7e49d2b8b7803754517d0e690a11d46",
    "rooms_0243": "972c67ee99e992fe2d27c4cb5046514fdf3ec6f89c436a80b2a539fa0c227668",
    "rooms_0244": "ac6a64b456b951b819eecf7db8ff6f42d90ccc5d5134e9b25575afa372ce8c69",
    "rooms_0245": "e17f942432d176e1e226494ebc04ebdb3a9317676f6ce86a315b7f522ab3ea03",
    "rooms_0246": "1a88ebb01cf97ebbf69b7ab663885c3331ebb2a6c52f0a6441f60a3080c4e44a",
    "rooms_0247": "cbc1a943a604ad6baf66610b8e899698c306d117a25ff7b57ff272d16133f664",
    "rooms_0248": "3e0e6f758bf050f348975206e613cebba1e88d1ca9e9afd088de64966ead367c",
    "rooms_0249": "b8b5baf1ec6ff50f76bc14241a4cad9c45e901d727f4824610b320b319126fa6",
    "rooms_0250": "860498535183fb8eacb037f03288a270e71334464599c98b64a5f9401d0474a0",
    "rooms_0251": "55033ee3d1893769eb997723d9aff3f2af1a58a7c6767a4b700efc7be43e2bb2",
    "rooms_0252": "3723da91e3ce332dedec03baf1d28d2373c946962770e9f931791ae99e4450c5",
    "rooms_0253": "feb737cec84363626bf4f7a97db6ad5c657e572de2cdf02bb0e28ccbd4742e58",
    "rooms_0254": "ed96dbee41a9577be29c170d5aa62c288bed8a96b2f8bc8adf033e0af2b0c03e",
    "rooms_0255": "a69eab3758b46c7b81ce4c4206db108748897d80451872ddff5f83cc076b5a6d",
    "rooms_0256": "945a43e79205f2440cd53ed793ff27e69e1f691fbfa152fa72071624bdd4c54d",
    "rooms_0257": "1361982db33fccabbbf6acaada3f8a8fa5e92ccd92f3a35515e72bbc78c934b5",
    "rooms_0258": "8dc85bb28eea9a9f1fad8ce37234539b63f9a7938c9cfc3da6ff89853131b1e4",
    "rooms_0259": "0a99b3c09231759693f8c661624dc1a0ed60b8ef491abd3c3758f160c64485f8",
    "rooms_0260": "603fdbd3a5fe72949a2f2017b17bf7ca689ccb6971c0f815dbaf07f1682aac5f",
    "rooms_0261": "d61ca799531dea4afe87c14a2062278f10685d0fe3c11b1a23415dfaa6a05a95",
    "rooms_0262": "bd1f94db6a0cb140c9d728f065666c0db07fc8f1074fa6bc14343a8fa2e090b1",
    "rooms_0263": "16ffb277306801511b2fcc5b42ea63ea3f0e171a248c7156d5c818e483db2315",
    "rooms_0264": "4a653f249f6f08bd2005b2ac37b8e6a1e2517d29e42b88ab21d5e5efcbac004d",
    "rooms_0265": "fe6a861324bd466cd301f95bd649aa719de7231bc43aec2876f99daea18aff05",
    "rooms_0266": "8c30055608c785e11182462c0ec34c6cae03fce075167dc4d883a401f7ee0eef",
    "rooms_0267": "6f555ad3c74870118a26e51196cfc47a393d6b0c280b6e49d1ef97e24bf07dac",
    "rooms_0268": "a22de54cb68df3abdbae9e0eae6f08571df352c97074bdd050642311e3a11ef9",
    "rooms_0269": "23d963cee12e6c719eb022a006def6b1147465fb6fa32c9c6845062ae0e67f2a",
    "rooms_0270": "283cf0a049fa6a1c3494c29120cd236a59369348c24ea3b90c913abf600421f3",
    "rooms_0271": "ea1300548bfbda02876fc7b978dea4e4b999bf44feb8aeed640dc9f553c1362e",
    "rooms_0272": "d8ecf7f81a87ae84e66f8be6891d994b2ca46707011293d4611728e9320a3498",
    "rooms_0273": "5552d8797b26cef14a65d86017a61a31b8d31b14f8ce298145e01f4fa6ca1f88",
    "rooms_0274": "328a1dc5ed341c6f2ea28a8442b2fc677b9bdea6c5c03b1218683ff18022a6d3",
    "rooms_0275": "5977ba408b037c076b494e835dce634b35d43c330181bc82f7a2b0f1b5199530",
    "rooms_0276": "666aeb3f8cfd09aa454519a7b6d03d5fbd22e6813aeb59526fa6bce7574b3a54",
    "rooms_0277": "59b7095b45c43f8b4acb853c82d55ea411d0a327e0b633f155c470da68568249",
    "rooms_0278": "e3fa303f5ab99139821bbc6ba332704960cc1cb9c3f58a1e57d67c691dda87ad",
    "rooms_0279": "10944c82008875c61077906feab1730dd38697963e36e1eb6989cb7c28c8bcd6",
    "rooms_0280": "3b95b3808a5dcac1a90e607c554100964fe604443bb1717bc8e5b0bf370aa89b",
    "rooms_0281": "f74a26f3c7664ec8eff10bf1e1f700e9cce26db8a536b5ab292f0da26da214a3",
    "rooms_0282": "6e6d7ef812b97fa3d77d0afa4f91494ebe7054f3ab9dbe2aa865eb23412f8387",
    "rooms_0283": "af9ab3b76b4368f9f4e5f0a079a98c68852fe5193d588bb16474dc47b820507b",
    "rooms_0284": "9bedfaac718804b2ec0a3d1670402fc11eb35cd5409fbe3e216add0dfec0ea56",
    "rooms_0285": "8dfa63ec61c7c8754ddfd7a437303381b2bce9d42b9af621598a16308070bb9f",
    "rooms_0286": "6e83be6afddcb180915e739b069456e874380cc9cd586ec579d9836802e0d590",
    "rooms_0287": "7f4ffff0361f9569b8e3e87a183f6982553db40755049f64bbf4ace6ab431139",
    "rooms_0288": "de5a5f8af4ea016ac2204e272f32f19c19cd3d2c8c630188c93d4c488365d7e6",
    "rooms_0289": "ce9c3937a37b53659e14a8036b57450d1dc6e751428fdce988438418cba09063",
    "rooms_0290": "38c7c159b34309adc2aa3154a0cf9e9aef0938bd371e134e211d9bb7cd038a0a",
    "rooms_0291": "f5e2a04f6763e3ce62025563ef863f9e02fc63b3f593e82ea09e2f477a38b46b",
    "rooms_0292": "12f55b978c2fb26bbf3ef0fee2ceb4ddb9b6ea64ca4650b01e94d9f39e072330",
    "rooms_0293": "2dac2d26e58d7283ce16197d5e2f26042f270e704523117801392eeb4114f89f",
    "rooms_0294": "dfbcbafae8acd5e5801f7482659b4e611a4e2ee88d8f389a2d5e0f8259a3caca",
    "rooms_0295": "655445265ac7494adb29729e37eb669f92c29d081b3de8c0a376eacfd3564382",
    "rooms_0296": "761327624489838957274b39df1c33cca8719b236a914acdd9354a23fe0ad31a",
    "rooms_0297": "4a290377ca9c114ee651ab309af8b106feef840f2080eca949fc1ec1aac04e80",
    "rooms_0298": "f2626544ba9ba75507bc198dcfb810519ed9f17bb21ac54577d9455541e01766",
    "rooms_0299": "fe2150f13d34cb7daa818a5e4e736ab8ffa2ee28abcc5c5960d9c9d3d70be933",
}
"""Source hash (SHA-256) of each generated mesh of the splits test and final, by name."""


SCENES_VARIABLE = "NAVI_SCENES"
"""Environment variable that names the root folder of the user's own meshes."""
_MOST_SEEDS = 100_000

_log = logging.getLogger(__name__)


def discover(corpus: CorpusConfig | None = None) -> list[SceneSource]:
    """Discover the scene sources of a corpus configuration, sorted by name.

    Precedence: explicit scenes (a `.gmdag` before a mesh of the same name) > manifest > every mesh under
    root > every mesh under `$NAVI_SCENES` > generated families. A folder without meshes is one of compiled
    scenes. Scenes whose manifest verdict is FAIL are left out.

    Args:
        corpus: What to use; defaults where left out.

    Raises:
        SceneError: A named file or folder is missing, or nothing is found.
        ConfigError: A family is unknown.
    """
    corpus = corpus or CorpusConfig()
    if corpus.scenes:
        return sorted(scenes_named(corpus.scenes), key=lambda s: s.name)
    if corpus.manifest is not None:
        return _from_manifest(Path(os.path.expanduser(corpus.manifest)))
    root = Path(os.path.expanduser(corpus.root)) if corpus.root is not None else environment_root()
    if root is not None:
        return discover_root(root)
    return generated_sources(corpus.families)


def scenes_named(names: Iterable[str]) -> list[SceneSource]:
    """Resolve scene selectors (names, paths) to scene sources, in their order, without duplicates.

    Args:
        names: `.gmdag` or mesh files, folders of meshes, generated scenes as family:seeds (apartment:0-11), or a split
            of the benchmark (rooms-v1:test).

    Raises:
        SceneError: A file or folder is missing, or is none of these.
        ConfigError: Seeds that cannot be read, or a split that is none.
    """
    found: list[SceneSource] = []
    for name in names:
        family, colon, seeds = name.partition(":")
        if family == BENCHMARK:
            found += benchmark_sources(seeds)
        elif colon and family in FAMILIES:
            found += generated_sources({family: parse_seeds(seeds)})
        else:
            path = Path(os.path.expanduser(name))
            found += discover_root(path) if path.is_dir() else [_file(path)]
    return tell_apart(found)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse a seed list such as "3", "0-11" or "1,4,7" into integers.

    Raises:
        ConfigError: The text is none of these.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        # Ten digits hold every seed below 2³¹.
        numbers = [first, last] if dash else [first]
        if not all(re.fullmatch("[0-9]{1,10}", n) and int(n) < 2**31 for n in numbers) or int(numbers[-1]) < int(first):
            raise ConfigError(
                f"seeds {text!r} cannot be read at {part!r}; write 3, 0-11 or 1,4,7, each below 2147483648"
            )
        if int(numbers[-1]) - int(first) > _MOST_SEEDS:
            raise ConfigError(f"seeds {text!r}: at most {_MOST_SEEDS:,} scenes at once")
        seeds += range(int(first), int(numbers[-1]) + 1)
    return tuple(dict.fromkeys(seeds))


def environment_root() -> Path | None:
    """Return the scene folder of the environment variable `$NAVI_SCENES`, None where it is unset or empty."""
    value = os.environ.get(SCENES_VARIABLE, "")
    return Path(os.path.expanduser(value)) if value else None


def discover_root(root: Path) -> list[SceneSource]:
    """Discover scene sources below a folder: every mesh, or every compiled scene where it holds no mesh.

    Hidden folders and companion files are skipped, and compiled scenes beside meshes, which would be duplicates. A
    warning names compiled scenes without a mesh in the folder. In a folder of compiled scenes, the manifest beside them
    decides which of several files of one name counts.

    Raises:
        SceneError: The folder does not exist or holds no scene.
    """
    if not root.is_dir():
        raise SceneError(f"{root}: no such folder; set {SCENES_VARIABLE} or root to a folder of meshes")
    files, cut = list_files(root)
    if cut:
        _log.warning("%s: only its first %d files were looked at; name a smaller folder", root, len(files))
    scenes, parts = split_scenes(files)
    compiled = [file for file in files if file.suffix.lower() == ".gmdag"]
    if scenes:
        meshes = {name for file in scenes for name in (file.stem, scene_name(file))}
        lone = [file for file in compiled if not {file.stem, without_key(file)} & meshes]
        if lone:
            few = ", ".join(file.name for file in lone[:3]) + (", …" if len(lone) > 3 else "")
            _log.warning("%s: %d compiled scenes beside its meshes are left out (%s); name them", root, len(lone), few)
    elif not compiled and parts:
        first, why = min(parts.items())
        raise SceneError(
            f"{root}: no scene found; {len(parts)} meshes are parts, first {first}: {why}; name a file to take it"
        )
    elif not compiled:
        raise SceneError(f"{root}: no scene found; searched for {', '.join(MESH_SUFFIXES)}, and for .gmdag")
    scenes = scenes or _without_superseded(compiled)
    return named_sources([(file, file.relative_to(root)) for file in scenes], root.resolve().name)


def _without_superseded(compiled: list[Path]) -> list[Path]:
    """Filter out compiled files of older settings, which may be wrong; the manifest lists the latest of each scene."""
    listed: dict[Path, set[str]] = {}
    for folder in {file.parent for file in compiled}:
        # Without a manifest, or with another program's, all count.
        with contextlib.suppress(SceneError):
            listed[folder] = {row.gmdag.name for row in read_manifest(folder / "manifest.json").rows}
    latest = {
        (file.parent, without_key(file)): file.name for file in compiled if file.name in listed.get(file.parent, ())
    }
    kept = []
    for file in compiled:
        name = without_key(file)
        newer = latest.get((file.parent, name)) if name != file.stem else None
        if newer is None or file.name in listed[file.parent]:
            kept.append(file)
        else:
            _log.warning("%s is left out: %s lists %s, compiled since", file, file.with_name("manifest.json"), newer)
    return kept


def _file(file: Path) -> SceneSource:
    if not is_mesh_file(file) and file.suffix.lower() != ".gmdag":
        hint = did_you_mean(file.name.partition(":")[0], [*FAMILIES, BENCHMARK]) if ":" in file.name else ""
        raise SceneError(
            f"{file}: {hint}scenes must be one of: .gmdag, {', '.join(MESH_SUFFIXES)}, a folder of these, or generated "
            f"as family:seeds, of {', '.join(sorted(FAMILIES))}, or a split as {BENCHMARK}:train"
        )
    if not os.path.isfile(file):
        raise SceneError(f"{file}: no such file; see what is there with: navi scenes list {as_argument(file.parent)}")
    return named_sources([(file, Path(file.name))], "explicit")[0]


def _from_manifest(path: Path) -> list[SceneSource]:
    sources = []
    for row in read_manifest(path).rows:
        if row.verdict == "FAIL":
            _log.warning("%s: %s has the verdict FAIL and is left out", path, row.name)
            continue
        if not row.gmdag.is_file():
            raise SceneError(f"{path}: {row.name}: {row.gmdag} does not exist; compile the corpus again")
        sources.append(SceneSource(row.name, row.dataset, row.gmdag))
    if not sources:
        raise SceneError(f"{path}: no usable scene in the manifest")
    return sorted(sources, key=lambda s: s.name)
