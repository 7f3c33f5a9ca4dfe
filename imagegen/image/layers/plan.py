"""The plan of layers: which wheels share one, in which order, under which key.

Pure functions of the lock. Engines share unpacked layers along a common prefix only, so wheels of many images
that change least come first. Heavy wheels get a layer each; light ones share layers by a hash of their name, so that a
bump rewrites one small layer and an added package moves no other. Overlay mounts end at 127 layers: 8 groups and the
flagship set's 40 heavy wheels leave users more than half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from imagegen.core.image_format import PREFIX
from imagegen.image import base
from imagegen.image.file_tree import tree_key
from imagegen.image.layers.support import loader_configuration, support_identity, support_links
from imagegen.lock.interpreter import interpreter_key
from imagegen.lock.model import LOCAL, Lock, LockedEnvironment, LockedWheel
from imagegen.oci.documents import canonical_json, digest_of

# Raise it whenever the bytes of a layer change for the same wheels; it is part of every key and of the record.
LAYER_FORMAT = 2
_INTERPRETER_FORMAT = 2  # the same for the layer of a standalone interpreter
HEAVY = 10_000_000  # bytes of wheel
GROUPS = 8
PACKAGES, INTERPRETER = "packages", "interpreter"  # layers under the venv
SKELETON, SUPPORT, FILES, LOADER = "venv", "support", "files", "ldconfig"  # layers without wheels
PROJECT = "project"  # the layer of the project's own light packages
# Heavy wheels that change least, from the bottom up: a name, or a prefix that ends in "-". The others follow by name.
_LOWEST = ("nvidia-", "torch", "triton", "numpy")


@dataclass(frozen=True)
class LayerPlan:
    """The plan of a layer: its wheels sorted by name (none for skeleton and support), its key "sha256:...".

    The wheels are installed below each of the `prefixes`: files below the first one, hard links below the others.
    """

    name: str
    wheels: tuple[LockedWheel, ...]
    key: str
    prefixes: tuple[str, ...] = (PREFIX,)


class _Placed(NamedTuple):
    """A wheel, and the environments that have it."""

    wheel: LockedWheel
    environments: tuple[LockedEnvironment, ...]

    @property
    def order(self) -> tuple[int, str, int, tuple[str, ...]]:
        """The order of layers: as in an image of one environment; of equal names the most shared first."""
        prefixes = tuple(environment.prefix for environment in self.environments)
        return (*_heavy_order(self.wheel), -len(prefixes), prefixes)


def _placed(lock: Lock) -> list[_Placed]:
    """Return the wheels of all environments of the lock, each once where its files are the same."""
    all_environments = lock.environments
    if len(all_environments) == 1:
        return [_Placed(wheel, all_environments) for wheel in all_environments[0].lock.wheels]
    by_key: dict[str, _Placed] = {}
    for environment in all_environments:
        for wheel in environment.lock.wheels:
            key = layer_key(environment.lock, (wheel,))
            by_key[key] = _Placed(wheel, (*(by_key[key].environments if key in by_key else ()), environment))
    return list(by_key.values())


def _suffix(placed: _Placed, total: int) -> str:
    """Return the suffix of a layer's name if not all of the `total` environments share the layer."""
    names = [environment.name for environment in placed.environments]
    return "" if len(names) == total else f".{'.'.join(names)}"


def plan(lock: Lock) -> tuple[LayerPlan, ...]:
    """Return the layers above the base, from the bottom up.

    They are skeleton, heavy wheels, groups of light ones, support, and the layers that change most,
    which are the project's own packages, copied files, and the loader's cache, which depends on all of them.
    """
    all_environments = lock.environments
    prefixes = tuple(environment.prefix for environment in all_environments)
    placed = _placed(lock)
    shared = [wheel for wheel in placed if wheel.wheel.file.index != LOCAL]
    heavy = sorted((wheel for wheel in shared if is_heavy(wheel.wheel)), key=lambda wheel: wheel.order)
    groups: dict[str, list[_Placed]] = {}
    for placed_wheel in sorted(shared, key=lambda placed_wheel: placed_wheel.wheel.name):
        if not is_heavy(placed_wheel.wheel):
            groups.setdefault(_group(placed_wheel, len(all_environments)), []).append(placed_wheel)
    plans = [LayerPlan(SKELETON, (), layer_key(lock, (), prefixes), prefixes)]
    plans += [
        _wheels_plan(f"{placed_wheel.wheel.name}{_suffix(placed_wheel, len(all_environments))}", [placed_wheel])
        for placed_wheel in heavy
    ]
    plans += [_wheels_plan(group, groups[group]) for group in sorted(groups)]
    files = [LayerPlan(FILES, (), files_key(lock))] if lock.copies else []
    loader = [LayerPlan(LOADER, (), loader_key(lock))] if lock.ldconfig else []
    project_plans = _own_plans(
        [placed_wheel for placed_wheel in placed if placed_wheel.wheel.file.index == LOCAL], len(all_environments)
    )
    return (*plans, LayerPlan(SUPPORT, (), support_key(lock)), *project_plans, *files, *loader)


def _own_plans(placed: Sequence[_Placed], total: int) -> list[LayerPlan]:
    """Return the layers of the project's own packages: one for each heavy one, then one for all others."""
    ordered = sorted(placed, key=lambda placed_wheel: (placed_wheel.wheel.name, placed_wheel.order))
    plans = [
        _wheels_plan(f"{placed_wheel.wheel.name}{_suffix(placed_wheel, total)}", [placed_wheel])
        for placed_wheel in ordered
        if is_heavy(placed_wheel.wheel)
    ]
    light: dict[str, list[_Placed]] = {}
    for placed_wheel in ordered:
        if not is_heavy(placed_wheel.wheel):
            light.setdefault(f"{PROJECT}{_suffix(placed_wheel, total)}", []).append(placed_wheel)
    return [*plans, *(_wheels_plan(name, light[name]) for name in sorted(light))]


def _wheels_plan(name: str, placed: Sequence[_Placed]) -> LayerPlan:
    """Return the plan of the layer of wheels that the same environments have."""
    wheels, placed_environments = tuple(placed_wheel.wheel for placed_wheel in placed), placed[0].environments
    prefixes = tuple(environment.prefix for environment in placed_environments)
    return LayerPlan(name, wheels, layer_key(placed_environments[0].lock, wheels, prefixes), prefixes)


def _group(placed: _Placed, total: int) -> str:
    """Return the name of the layer that a light wheel shares: one of GROUPS where all environments have the wheel."""
    return group_of(placed.wheel.name) if len(placed.environments) == total else f"group{_suffix(placed, total)}"


def is_heavy(wheel: LockedWheel) -> bool:
    """Return whether the wheel gets a layer of its own; so does one whose size the lock does not name."""
    return wheel.file.size is None or wheel.file.size >= HEAVY


def group_of(name: str) -> str:
    """Return the name of the layer that a light wheel of this distribution shares."""
    return f"group-{int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], 'big') % GROUPS}"


def _heavy_order(wheel: LockedWheel) -> tuple[int, str]:
    for rank, name in enumerate(_LOWEST):
        if wheel.name == name or (name.endswith("-") and wheel.name.startswith(name)):
            return rank, wheel.name
    return len(_LOWEST), wheel.name


def layer_key(lock: Lock, wheels: Sequence[LockedWheel], prefixes: tuple[str, ...] = (PREFIX,)) -> str:
    """Return the key of the layer: its wheels, prefixes, compiling interpreter, format and file-conflict overrides.

    `lock` is the lock of an environment that has the wheels.
    """
    names = {wheel.name for wheel in wheels}
    left_out = [
        [name, file_conflict.paths]
        for file_conflict in lock.file_conflicts
        for name in file_conflict.over
        if name in names
    ]
    return digest_of_json(
        {
            "format": LAYER_FORMAT,
            **({"prefix": prefixes[0]} if len(prefixes) == 1 else {"prefixes": prefixes}),
            "python": lock.python,
            "interpreter": _interpreter(lock),
            "wheels": [wheel.file.sha256 for wheel in wheels],
            **({"left out": left_out} if left_out else {}),
        }
    )


def interpreter_layer_key(lock: Lock) -> str:
    """Return the digest of all that decides the bytes of a standalone interpreter's layer."""
    formats = [LAYER_FORMAT, _INTERPRETER_FORMAT]
    return digest_of_json({"format": formats, INTERPRETER: interpreter_key(lock.interpreter)})


def files_key(lock: Lock) -> str:
    """Return the digest of all that decides the bytes of the layer of copied files."""
    rows = [[copy.path, [[file.path, file.mode, file.sha256] for file in copy.files]] for copy in lock.copies]
    return digest_of_json({"format": LAYER_FORMAT, FILES: rows})


def loader_key(lock: Lock) -> str:
    """Return the digest of all that decides the loader's cache, which is the files in the directories."""
    return digest_of_json(
        {
            "format": LAYER_FORMAT,
            LOADER: loader_configuration(lock),
            "below": tree_key(lock.foundation),
            "wheels": [layer_key(lock, lock.wheels)],
            "links": support_links(lock),
            FILES: files_key(lock),
        }
    )


def support_key(lock: Lock) -> str:
    """Return the digest of all that decides the bytes of the support layer."""
    return digest_of_json({"format": LAYER_FORMAT, "interpreter": _interpreter(lock), SUPPORT: support_identity(lock)})


def bytecode_key(lock: Lock) -> str:
    """Return the digest of all that decides the byte-code of the support layer; the layer changes more often."""
    sources = [row for row in support_identity(lock) if row[0].endswith(".py")]
    return digest_of_json({"format": LAYER_FORMAT, "interpreter": _interpreter(lock), "sources": sources})


def _interpreter(lock: Lock) -> list[Any]:
    """Return the identity of the interpreter that compiles byte-code."""
    path = lock.interpreter.path
    if lock.interpreter.file:
        return [path, ["standalone", interpreter_key(lock.interpreter)]]
    names = (f"python{lock.python}", f"libpython{lock.python}")
    # Which files of a registry's image are the interpreter's is not known.
    image = [["base", base.key(lock.base)]] if lock.base.content else []
    return [path, *image, *([deb.name, deb.sha256] for deb in lock.debs if deb.name.startswith(names))]


def digest_of_json(value: Any) -> str:
    """Return the OCI digest of the canonical JSON of `value`."""
    return digest_of(canonical_json(value))
