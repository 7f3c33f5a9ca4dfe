"""Text output: the startup banner and the table of checks. ASCII only: the reader's terminal is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .model import Finding, Image, Machine
from .table import Row

_SHOWN = ("verl", "trl", "prime-rl", "vllm", "sglang", "megatron-core", "stable-baselines3", "torch")
_WIDTH = 80  # columns, which every terminal has


def banner(image: Image, machine: Machine, findings: Sequence[Finding]) -> str:
    """Return the startup banner: two lines, and two for each finding above a note."""
    lines = [f"imagegen: {headline(image)} on {hardware(image, machine)}"]
    for finding in findings:
        if finding.severity != "note":
            lines += [f"imagegen: {finding.severity}: {finding.text}", f"  fix: {finding.fix}"]
    lines.append("imagegen: /opt/imagegen/doctor says more; IMAGEGEN_PREFLIGHT=0 silences this")
    return ascii_only("\n".join(lines) + "\n")


def headline(image: Image) -> str:
    """Describe the image: `blackwell-vllm-cu130-py311 (verl 0.9.1, vllm 0.24.0, torch 2.11.0)`."""
    parts = [f"{name} {image.packages[name]}" for name in _SHOWN if name in image.packages]
    return f"{image.cell} ({', '.join(parts)})" if parts else image.cell


def hardware(image: Image, machine: Machine) -> str:
    """Describe the hardware: `2 x NVIDIA H200 (9.0), driver 580.159.04`, `the CPU`."""
    if image.cell and not image.cuda:
        return "the CPU"
    if not machine.gpus:
        return "no GPU" + (f", driver {machine.driver}" if machine.driver else "")
    kinds: dict[str, int] = {}
    for gpu in machine.gpus:
        name = f"{gpu.name} ({gpu.capability})" if gpu.capability else gpu.name
        kinds[name] = kinds.get(name, 0) + 1
    shown = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in kinds.items())
    return f"{shown}, driver {machine.driver}"


def table(rows: Iterable[Row], findings: Sequence[Finding]) -> str:
    """Return one row per check: what is checked, or the findings with their fixes."""
    lines = []
    for row in rows:
        found = [each for each in findings if each.check == row.name] or [Finding(row.name, "", row.sees, "")]
        for number, each in enumerate(found):
            head = f"{row.status:8} {row.name:13} " if number == 0 else f"{each.severity:>22}: "
            lines += _wrapped(each.text, head) + (_wrapped(each.fix, f"{'fix':>22}: ") if each.fix else [])
    return ascii_only("\n".join(lines) + "\n")


def ascii_only(text: str) -> str:
    """Return `text` with escapes for everything that is not printable ASCII or a line break."""
    plain = text.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in plain)


def _wrapped(text: str, head: str) -> list[str]:
    import textwrap  # late: the banner does not need it

    indent = " " * len(head)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
