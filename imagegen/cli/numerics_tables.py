"""Tables of the numerical results of an image, and of the difference between two images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from imagegen.cli.table import Table
from imagegen.compare.numerics import Numerics, size
from imagegen.core.text import shown
from imagegen.run.smoke.report import SmokeReport


def measured_numerics(report: SmokeReport) -> Iterator[str | Table]:
    """Yield the lines and tables of a report of the numerics checks, whose details a container wrote."""
    for result in report.results:
        details = result.details
        if rows := _rows(details.get("operations")):
            yield f"\n{result.check}: {shown(_device(details))}"
            yield _operations(rows)
        if rows := _rows(details.get("pairs")):
            yield "\nimplementations against each other"
            yield _pairs(rows)
        for name, reason in sorted(_fields(details.get("not_run")).items()):
            yield f"  not run: {shown(f'{name}: {reason}')}"


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _device(details: Mapping[str, Any]) -> str:
    device, versions = _fields(details.get("device")), _fields(details.get("versions"))
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    return f"{device.get('name')}{driver}; " + ", ".join(f"{name} {version}" for name, version in versions.items())


def _operations(rows: list[dict[str, Any]]) -> Table:
    table = Table("operation", "implementation", "dtype", "largest", "mean", "relative", "bound", "", wraps=("",))
    for row in rows:
        remarks = [
            text
            for key, text in (("repeatable", "not repeatable"), ("batch_invariant", "depends on the batch"))
            if row.get(key) is False
        ]
        table.add_row(
            shown(str(row.get("operation"))), shown(str(row.get("implementation"))), shown(str(row.get("dtype"))),
            *(_number(row.get(key)) for key in ("largest_absolute", "mean_absolute", "largest_relative", "bound")),
            ", ".join(remarks),
        )  # fmt: skip
    return table


def _pairs(rows: list[dict[str, Any]]) -> Table:
    table = Table("operation", "dtype", "one", "other", "largest", "mean", "relative", "bound")
    for row in rows:
        table.add_row(
            *(shown(str(row.get(key))) for key in ("operation", "dtype", "one", "other")),
            *(_number(row.get(key)) for key in ("largest_absolute", "mean_absolute", "largest_relative", "bound")),
        )
    return table


def _number(value: Any) -> str:
    return f"{value:.1e}" if isinstance(value, (int, float)) else "-"


def changed_numerics(comparison: Numerics) -> Iterator[str | Table]:
    """Yield the lines and tables of a comparison."""
    for device in comparison.compared:
        yield f"\nnumerical results on {shown(device.device)}: {device.equal} equal, {len(device.changes)} changed"
        table = Table("operation", "implementation", "dtype", "size", "why", wraps=("size", "why"), show_header=False)
        for change in device.changes:
            causes = [f"{cause.name} {cause.before or 'none'} -> {cause.after or 'none'}" for cause in change.causes]
            remarks = [*causes, *([] if change.repeatable else ["not repeatable"])]
            names = (shown(text) for text in (f"  {change.operation}", change.implementation, change.dtype))
            table.add_row(*names, size(change), shown(", ".join(remarks)))
        if device.changes:
            yield table
