"""imagegen diff: two cells, locks or images side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from imagegen.app.comparison import compare_operands
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.numerics_tables import changed_numerics
from imagegen.cli.output import print_lines
from imagegen.cli.table import Table
from imagegen.compare import numerics, wording
from imagegen.compare.difference import Change, Difference, Rebuild
from imagegen.compare.operands import ComparedLayer, DiffOperand
from imagegen.core.errors import UsageError
from imagegen.core.text import shown
from imagegen.oci.documents import Platform
from imagegen.wheels.throttle import CORES, duration


@click.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--platform",
    metavar="A[,B]",
    help="The platforms of A's and B's images in image indexes: linux/arm64, or linux/amd64,linux/arm64.",
)
@json_option()
@pass_app
def command(app: App, *, before: str, after: str, platform: str | None, as_json: bool) -> None:
    """Print how B differs from A: packages, source builds, layers, bytes to pull for a host with A.

    A and B are cells, lock files, locks of a commit (HEAD~1:cpu-grpo), images of a registry by tag or digest, images of
    the store by digest, or OCI layouts (oci:DIR).
    """
    comparison, results = compare_operands(app.session, (before, after), _platforms(platform))
    if as_json:
        app.json({**_as_dict(comparison), "numerics": asdict(results) if results else None})
        return
    click.echo(shown("; ".join([*wording.sentences(comparison), *(numerics.sentences(results) if results else ())])))
    click.echo()
    for side in (comparison.before, comparison.after):
        click.echo(shown(f"{side.name}: {_described(side)}"))
    print_lines(app.out, _lines(comparison))
    if results:
        print_lines(app.out, changed_numerics(results))


def _platforms(text: str | None) -> tuple[Platform | None, Platform | None]:
    """Parse the platforms of both operands, or one platform for both. Raises UsageError."""
    if text is None:
        return None, None
    texts = text.split(",")
    pairs = [name.split("/") for name in texts]
    if len(texts) > 2 or any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise UsageError(
            f'--platform "{text}" is not one platform or two',
            code="usage-invalid-value",
            fix="--platform linux/arm64, or one for each operand: --platform linux/amd64,linux/arm64",
        )
    platforms = [Platform(*pair) for pair in pairs]
    return platforms[0], platforms[-1]


def _described(side: DiffOperand) -> str:
    """Return the name of an operand and its size."""
    texts = [side.source, *([side.digest] if side.digest else [])]
    if side.size is not None:
        exact = all(part.digest for part in side.layers or ())
        texts.append(f"{'' if exact else 'about '}{wording.amount(side.size)} compressed")
    return ", ".join([*texts, *([f"{wording.amount(side.unpacked)} unpacked"] if side.unpacked is not None else [])])


def _lines(comparison: Difference) -> Iterator[str | Table]:
    for title, changes in (
        ("components", comparison.components),
        ("packages", comparison.packages),
        ("environments", comparison.environments),
        ("Debian packages", comparison.debs),
        ("axes", comparison.axes),
        ("environment", comparison.env),
        ("config", comparison.config),
        ("copied files", comparison.files),
        ("overrides", comparison.overrides),
        ("runtime", comparison.runtime),
    ):
        if changes:
            yield f"\n{title}"
            yield _table(changes)
    if comparison.rebuilds:
        yield "\nto compile"
        yield from (f"  {_rebuild(rebuild)}" for rebuild in comparison.rebuilds)
    if pull := comparison.pull:
        yield f"\nlayers: {len(pull.shared)} shared, {len(pull.new)} new, {len(pull.gone)} gone"
        yield from (f"  + {part.name}  {_weight(part)}" for part in pull.new)
        yield from (f"  - {part.name}  {_weight(part)}" for part in pull.gone)


def _weight(part: ComparedLayer) -> str:
    return "?" if part.size is None else wording.amount(part.size)


def _table(changes: Sequence[Change]) -> Table:
    table = Table("name", "before", "->", "after", "why", wraps=("before", "after", "why"), show_header=False)
    for change in changes:
        note = "another file" if change.before == change.after and not change.cause else ""
        reason = "; ".join(filter(None, ["goes back" if change.back else note, change.reason]))
        table.add_row(f"  {change.name}", change.before or "-", "->", change.after or "-", reason)
    return table


def _rebuild(rebuild: Rebuild) -> str:
    time = f"about {duration(rebuild.seconds)} on {CORES} cores" if rebuild.seconds else "an unmeasured time"
    state = "already compiled" if rebuild.kept else time
    return f"{rebuild.name} {rebuild.version}: {state}; {', '.join(rebuild.because)}"


def _as_dict(comparison: Difference) -> dict[str, Any]:
    values = asdict(comparison)
    for name in ("before", "after"):  # without the locks, which `show --json` prints
        side: DiffOperand = getattr(comparison, name)
        values[name] = {"name": side.name, "source": side.source, "digest": side.digest, "size": side.size}
        values[name] |= {"unpacked": side.unpacked, "cell": side.lock.cell if side.lock else None}
    values["same"] = comparison.empty
    values["sentences"] = wording.sentences(comparison)
    return values
