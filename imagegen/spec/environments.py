"""Images with several Python environments: each is another cell's content, and the image has one cell of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from imagegen.core.errors import Location, MatrixError
from imagegen.core.gpu import Gpu
from imagegen.core.text import did_you_mean
from imagegen.spec.cells import cell_id
from imagegen.spec.model import Cell, CellEnvironment
from imagegen.spec.prefix import VENVS
from imagegen.spec.references import PlacedEntry

_AXES = ("platform", "python", "cuda")


def combined_cell(
    image: PlacedEntry, cells: Mapping[str, Cell], defaults: Mapping[str, str]
) -> tuple[Cell | None, list[MatrixError]]:
    """Return the cell of an image with several environments, and the errors of its entry; None with errors.

    `cells` are all cells with one environment by id; `defaults` is the default of each axis.
    """
    entry = image.entry
    names = sorted(entry.environments, key=lambda name: (name != entry.default, name))
    errors, environments = [], []
    for name in names:
        environment_entry = entry.environments[name]
        if environment_entry.cell in cells and not cells[environment_entry.cell].environments:
            where = image.where("environments", name, "cell", key=False)
            environments.append(CellEnvironment(name, environment_entry.because, cells[environment_entry.cell], where))
        else:
            fix = did_you_mean(environment_entry.cell, cells) or "`imagegen list '*'` shows all cells"
            message = f'there is no cell "{environment_entry.cell}" with one environment'
            errors.append(image.error(message, "environments", name, "cell", fix=fix, key=False))
    if not errors:
        errors = [*_differences(environments), *_overlaps(environments)]
    if errors:
        return None, errors
    default = environments[0].cell
    indexes = {alias: index for environment in environments for alias, index in environment.cell.indexes.items()}
    cell = replace(
        default,
        id=cell_id(image.name, default.axes, defaults),
        image=image.name,
        description=entry.description,
        purpose=entry.purpose,
        flagship=entry.flagship,
        indexes=dict(sorted(indexes.items())),
        gpus=_common_gpus(environments),
        inputs={},
        extends=None,
        stack=None,
        environments=tuple(environments),
    )
    return cell, []


def _common_gpus(environments: Sequence[CellEnvironment]) -> tuple[Gpu, ...]:
    """Return the GPUs of the default environment that all others with GPUs have."""
    default, *other_environments = environments
    gpu_names = [{gpu.name for gpu in other.cell.gpus} for other in other_environments if other.cell.gpus]
    return tuple(gpu for gpu in default.cell.gpus if all(gpu.name in names for names in gpu_names))


def _differences(environments: Sequence[CellEnvironment]) -> Iterator[MatrixError]:
    """Yield an error for each shared field in which an environment differs from the default one."""
    default, *other_environments = environments
    for environment in other_environments:
        default_cell, other = default.cell, environment.cell
        below = (
            *((f"in the axis {name}", default_cell.axes[name], other.axes[name]) for name in _AXES),
            ("in its base", default_cell.base.name, other.base.name),
            ("in its interpreter", default_cell.interpreter.name, other.interpreter.name),
            ("in its Debian packages", _listed(default_cell.packages), _listed(other.packages)),
        )
        differing = [
            (difference, value, default_value) for difference, default_value, value in below if default_value != value
        ]
        if other.gpus and not {gpu.name for gpu in default_cell.gpus} & {gpu.name for gpu in other.gpus}:
            text, default_text = (_listed(gpu.name for gpu in cell.gpus) for cell in (other, default_cell))
            differing.append(("in all of its GPUs", text, default_text))
        for subject, text, default_text in differing:
            yield MatrixError(
                f'environment "{environment.name}" differs {subject}',
                code="matrix-environments-differ",
                where=environment.where,
                why=f"{text or 'none'}, and {default_text or 'none'} in the default environment {default.name}",
                fix="environments of one image share base, interpreter and Debian packages: name cells that agree",
            )


def _overlaps(environments: Sequence[CellEnvironment]) -> Iterator[MatrixError]:
    """Yield an error for each path of the image that an environment claims and that belongs to another one."""
    yield from _overlapping_copies(environments)
    default, *other_environments = environments
    searched = {directory.path for directory in default.cell.ldconfig}
    for other in other_environments:
        for directory in other.cell.ldconfig:
            if directory.path not in searched:
                why = "the dynamic loader searches it for all environments, and the default one does not name it"
                where = other.cell.ldconfig_places.get(directory.path, other.where)
                yield _overlap(other, directory.path, where, why, f"name it under `ldconfig` of {default.cell.image}")
        for package, recipe in other.cell.recipes.items():
            if recipe.prefix:
                why = f"its recipe installs {package} below /opt/venv, the prefix of {default.name}"
                yield _overlap(other, package, other.where, why, f"make {other.name} the default environment")


def _overlapping_copies(environments: Sequence[CellEnvironment]) -> Iterator[MatrixError]:
    claimed: dict[str, tuple[CellEnvironment, tuple[str, Location]]] = {}
    for environment in environments:
        for copy in environment.cell.copies:
            if f"{copy.path}/".startswith(f"{VENVS}/"):
                yield _overlap(
                    environment, copy.path, copy.where, f"environments lie below {VENVS}", "copy it elsewhere"
                )
            for path, (owner, (source, where)) in claimed.items():
                is_equal = (path, source) == (copy.path, str(copy.file))
                if not is_equal and (f"{path}/".startswith(f"{copy.path}/") or f"{copy.path}/".startswith(f"{path}/")):
                    why = f"environment {owner.name} copies to {path} at {where}"
                    yield _overlap(environment, copy.path, copy.where, why, "copy one of the two elsewhere")
        claimed |= {copy.path: (environment, (str(copy.file), copy.where)) for copy in environment.cell.copies}


def _overlap(environment: CellEnvironment, path: str, where: Location, why: str, fix: str) -> MatrixError:
    return MatrixError(
        f'environment "{environment.name}" claims {path}, which is not its own',
        code="matrix-environments-overlap",
        where=environment.where,
        why=f"{why}; it is of {environment.cell.id} ({where})",
        fix=fix,
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
