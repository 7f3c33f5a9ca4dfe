"""imagegen show: print the packages of an image and the reasons for them, or sizes with --size."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from imagegen.app import unlocked
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.table import Styled, Table, print_styled
from imagegen.core.progress import human
from imagegen.core.text import counted
from imagegen.lock import local_tags
from imagegen.lock.environments import shared_wheels
from imagegen.lock.main_versions import reason
from imagegen.lock.model import LOCAL, Lock, LockedBuild, LockedCopy, LockedGit, LockedWheel
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from imagegen.app.weights import Weight

_FEW = 5  # dependent packages in a row of the table; cells in a message


@click.command("show")
@click.argument("cell", shell_complete=complete_cells)
@click.option("--size", is_flag=True, help="Show sizes of layers and packages, and which images share them.")
@json_option()
@pass_app
def command(app: App, *, cell: str, size: bool, as_json: bool) -> None:
    """Show the packages of CELL and the reason for each pin.

    If CELL matches several cells, the locked ones are shown and the others are listed. If no cell is locked, the
    requirements of the first are shown, with its state and the addresses that a build lacks; the exit code is 67.
    """
    selected = app.session.matrix.select(cell)
    locked = [chosen_cell for chosen_cell in selected if app.session.lock_files.has(chosen_cell)] or selected[:1]
    if not (size or as_json or app.session.lock_files.has(locked[0])):
        _show_unlocked(app, locked[0])
    locks = [(chosen, app.session.lock_files.fresh(chosen)) for chosen in locked]
    if size:
        from imagegen.app.weights import weigh  # late, because only sizes need the readers of wheels and the engine

        weights = [weigh(app.session, lock) for _, lock in locks]
        if as_json:
            app.json([dataclasses.asdict(weight) for weight in weights])
        else:
            for weight in weights:
                _show_weight(app, weight)
    elif as_json:
        app.json([_as_dict(lock) for _, lock in locks])
    else:
        for chosen, lock in locks:
            _show(app, chosen, lock)
    if missing := [selected_cell.id for selected_cell in selected if selected_cell not in locked]:
        names = ", ".join(missing[:_FEW]) + (", ..." if len(missing) > _FEW else "")
        app.progress.say(f"{counted(len(missing), 'cell')} without a lock: {names}; `imagegen lock CELL` writes one")


def _as_dict(lock: Lock) -> dict[str, Any]:
    """Return the fields of a lock, or the lock of each environment if there are several."""
    if lock.has_several:
        rows = [dataclasses.asdict(environment) for environment in lock.environments]
        record = lock.record and dataclasses.asdict(lock.record)
        return {"cell": lock.cell, "image": lock.image, "environments": rows, "record": record}
    table = dataclasses.asdict(lock)
    del table["several"], table["moved"]  # of several environments
    return table


def _show_environments(app: App, cell: Cell, lock: Lock) -> None:
    """Print the environments of an image, and the bytes that they share."""
    _show_header(app, cell)
    app.out.print(f"tag {local_tags(lock)[0]}")
    if lock.record:
        size = human(sum(layer.size for layer in lock.record.layers))
        app.out.print(f"image {lock.record.digest}, {len(lock.record.layers)} layers, {size}")
    table = Table("environment", "cell", "at", "packages", "why", wraps=("why",))
    for item in lock.environments:
        table.add_row(item.name, item.lock.cell, item.prefix, str(len(item.lock.packages)), item.because)
    table.print(app.out)
    app.out.print(shared_wheels(lock).sentence)
    for environment in cell.environments:
        app.out.print(f"`imagegen show {environment.cell.id}` has the packages of {environment.name}")


def _show_unlocked(app: App, cell: Cell) -> None:
    """Print the state and the requirements of a cell without a lock."""
    from imagegen.app import cell_states, states  # late, because a locked cell needs neither

    _show_header(app, cell)
    (status,) = cell_states.statuses(app.session, [cell])
    state = status.state
    app.out.print(f"{state.name}: {state.reason or states.MEANINGS[state.name]}")
    if cell.environments:
        table = Table("environment", "cell", "why", wraps=("why",))
        for environment in cell.environments:
            table.add_row(environment.name, environment.cell.id, environment.because)
        table.print(app.out)
        return
    app.out.print(f"base {cell.base.name}; interpreter {cell.interpreter.path}, Python {cell.python}")
    table = Table("component", "allowed", "why", wraps=("allowed", "why"))
    for constraint in unlocked.constraints(cell):
        table.add_row(constraint.name, constraint.allowed, constraint.because)
    table.print(app.out)
    for declaration, because in unlocked.declarations(cell):
        app.out.print(f"{declaration}  ({because})")
    for variable in cell.env:
        app.out.print(f"{variable.name}={variable.value}  ({variable.because})")
    for address in status.missing:
        app.out.print(f"not available here: {address}")
    cells = app.session.matrix.cells()
    has_lock = {
        other_cell.id
        for other_cell in cells
        if other_cell.image == cell.image and app.session.lock_files.has(other_cell)
    }
    for name in unlocked.nearest(cell, cells, has_lock)[:_FEW]:
        app.out.print(f"locked cell of the same image: {name}")


def _show_header(app: App, cell: Cell) -> None:
    print_styled(app.out, Styled(cell.id, "bold"), f": {cell.description}")
    app.out.print(cell.purpose)
    if cell.extends:
        app.out.print(f"extends {cell.extends}")


def _show(app: App, cell: Cell, lock: Lock) -> None:
    if lock.has_several:
        _show_environments(app, cell, lock)
        return
    _show_header(app, cell)
    app.out.print(f"base {lock.base.name}: {_base(lock)}")
    app.out.print(f"interpreter {lock.interpreter.path}: {lock.interpreter}")
    app.out.print(f"locked as of {lock.as_of} by uv {lock.uv.version}; tag {local_tags(lock)[0]}")
    if lock.record:
        size = human(sum(layer.size for layer in lock.record.layers))
        app.out.print(f"image {lock.record.digest}, {len(lock.record.layers)} layers, {size}")
    table = Table("package", "version", "size", "from", "why", wraps=("from", "why"))
    for package in lock.packages:
        size = human(package.file.size) if isinstance(package, LockedWheel) and package.file.size is not None else "-"
        table.add_row(package.name, package.version, size, _source(package), _why(package))
    table.print(app.out)
    if lock.added:
        count = counted(len(lock.added.debs), "Debian package")
        app.out.print(f"above the base: {count}, {human(sum(deb.size for deb in lock.added.debs))}")
        for name, because in lock.added.requested.items():
            app.out.print(f"  {name}  ({because})")
    for variable in lock.env:
        app.out.print(f"{variable.name}={variable.value}  ({variable.because})")
    for line in (*_config(lock), *(f"{text}  ({because})" for text, because in unlocked.decisions(cell))):
        app.out.print(line)


def _config(lock: Lock) -> Iterator[str]:
    """Yield the fields of the image's config from the matrix, with their reasons."""
    yield from (f"{field.name} {shlex.join(field.value)}  ({field.because})" for field in lock.config)
    yield from (f"label {label.name}={label.value}  ({label.because})" for label in lock.labels)
    yield from (f"{copy.path} from {copy.source}, {_files(copy)}  ({copy.because})" for copy in lock.copies)
    yield from (f"port {port.port}  ({port.because})" for port in lock.ports)
    yield from (f"ldconfig {directory.path}  ({directory.because})" for directory in lock.ldconfig)
    for wheel in lock.wheels:
        yield from (f"{wheel.name} is patched by {patch.path}  ({patch.reason})" for patch in wheel.patches)


def _files(copy: LockedCopy) -> str:
    return f"{counted(len(copy.files), 'file')}, {human(sum(file.size for file in copy.files))}"


def _why(package: LockedWheel | LockedBuild) -> str:
    """Return the reason for a package and its file. Only some dependent packages are named; JSON has all."""
    few = package if len(package.via) <= _FEW else dataclasses.replace(package, via=package.via[:_FEW])
    suffix = "" if few is package or package.because else f" and {len(package.via) - _FEW} more"
    return f"{reason(few)}{suffix}" + (f" ({package.choice})" if package.choice else "")


def _show_weight(app: App, weight: Weight) -> None:
    app.out.print(
        f"{weight.cell}: {len(weight.layers)} layers, {_total(size.packed for size in weight.layers)} compressed; "
        f"unpacked: {_total(size.unpacked for size in weight.layers)}"
    )
    for cell, (count, packed) in sorted(weight.shared.items()):
        if count:
            app.out.print(f"  shares {count} layers with {cell}: {human(packed)} compressed")
    table = Table("layer or package", "compressed", "unpacked")
    below = [size for size in weight.layers if re.fullmatch(r"base(-[0-9]+)?|packages|interpreter", size.name)]
    for size in (*below, *weight.packages):
        table.add_row(size.name, _human(size.packed), _human(size.unpacked))
    table.print(app.out)


def _total(sizes: Iterable[int | None]) -> str:
    all_sizes = list(sizes)
    return "not known" if None in all_sizes else human(sum(filter(None, all_sizes)))


def _human(size: int | None) -> str:
    return "-" if size is None else human(size)


def _base(lock: Lock) -> str:
    if lock.base.content is None:
        return f"{len(lock.base.debs)} Debian packages ({lock.base.suite})"
    return f"{lock.base.image}@{lock.base.content.digest}"


def _source(package: LockedWheel | LockedBuild) -> str:
    if isinstance(package, LockedBuild):
        return f"compiled from {_commit(package.git) if package.git else package.source.filename}"
    if package.sdist is None:
        return "the project (wheel)" if package.file.index == LOCAL else package.fetched.url or package.fetched.index
    if package.sdist.file.index == LOCAL:
        return "the project (directory)"
    commit = package.sdist.git
    return _commit(commit) if commit else f"{package.file.index} (sdist)"


def _commit(commit: LockedGit) -> str:
    folder = f", {commit.subdirectory}" if commit.subdirectory else ""
    return f"{commit.url} at {commit.commit[:12]}{folder}"
