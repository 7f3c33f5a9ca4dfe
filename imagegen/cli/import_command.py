"""imagegen import: an image of the packages that a project's file declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from imagegen.app.import_image import import_image, is_image
from imagegen.app.import_project import Imported, Selection, import_project
from imagegen.cli.app import App, json_option, pass_app
from imagegen.core.text import counted, shown
from imagegen.projects.model import Omission

_WORDS = {"compatible": "no known conflict", "incompatible": "conflict", "unknown": "unknown"}


@click.command("import")
@click.argument("source", metavar="FILE|IMAGE")
@click.option("--name", metavar="IMAGE", help="The image's name (default: the name of FILE's directory).")
@click.option("--extra", "extras", multiple=True, metavar="NAME", help="An extra of the project.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A dependency group of the project.")
@click.option("--target", metavar="STAGE", default="", help="A stage of a Dockerfile (default: the last).")
@click.option("--cuda", metavar="VALUE", default="", help="cpu, cu128 or the like (default: FILE's).")
@click.option("--gpu", metavar="NAME", default="", help="H100, sm_90 or the like (default: FILE's).")
@json_option()
@pass_app
def command(
    app: App,
    *,
    source: str,
    name: str | None,
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    target: str,
    cuda: str,
    gpu: str,
    as_json: bool,
) -> None:
    """Write matrices/IMAGE.yaml with an image of the packages of FILE: a uv.lock, pylock.toml, pyproject.toml,
    requirements.txt, conda's environment.yml or a Dockerfile. Or with the packages of another IMAGE: in an engine or a
    registry, an OCI layout (oci:DIR), or an archive of `docker save`.

    No code of the project runs. The output has the choices of base, CUDA and Python, the parts of FILE that the entry
    does not have (with line, reason and fix), and the answer of `imagegen why`, which may ask the index. A name that
    another file defines is an error; the same command again replaces its own file.
    """
    selection = Selection(extras, groups, target, cuda, gpu)
    if is_image(source):
        selection.require(source)
        imported = import_image(app.session, source, name, selection)
    else:
        imported = import_project(app.session, Path(source), name, selection)
    show(app, imported, as_json=as_json)


def show(app: App, imported: Imported, *, as_json: bool) -> None:
    """Print the result of an import."""
    app.json(_as_dict(imported)) if as_json else click.echo(shown(_as_text(imported)))


def _as_text(imported: Imported) -> str:
    project, platform, image = imported.found, imported.platform, imported.cell.image
    packages = project.packages
    lines = [
        f"{imported.path}: {counted(packages, 'package')} of {packages + imported.missing} of {imported.source}",
        f"  base {platform.base}, cuda {platform.cuda.value}: {platform.cuda.because}",
        f"  python {platform.python.value}: {platform.python.because}",
    ]
    if project.other_platforms:
        lines.append(f"  {counted(project.other_platforms, 'requirement')} for other systems or Pythons")
    if project.other_extras:
        lines.append(f"  extras not chosen (--extra NAME): {', '.join(project.other_extras)}")
    if project.other_stages:
        lines.append(f"  final stages not chosen (--target STAGE): {', '.join(project.other_stages)}")
    if imported.omissions:
        lines += ["", "not in the entry:"]
        for omission in imported.omissions:
            lines += [f"  {omission.place}: {omission.what}", f"    why: {omission.why}", f"    fix: {omission.fix}"]
    reason = f": {imported.answer.reason}" if imported.answer.reason else ""
    lines += ["", f"rules and metadata: {_WORDS[imported.answer.answer]}{reason}"]
    lines.append(f"next: imagegen why {image}; imagegen lock {image}; imagegen build {image}")
    return "\n".join(lines)


def _as_dict(imported: Imported) -> dict[str, Any]:
    project, platform = imported.found, imported.platform
    return {
        "path": str(imported.path),
        "cell": imported.cell.id,
        "base": platform.base,
        "cuda": platform.cuda.value,
        "python": platform.python.value,
        "packages": project.packages,
        "stack": imported.cell.stack.path if imported.cell.stack else None,
        "missing": imported.missing,
        "other_extras": list(project.other_extras),
        "other_stages": list(project.other_stages),
        "other_platforms": project.other_platforms,
        "omissions": [_omission(omission) for omission in imported.omissions],
        "answer": imported.answer.answer,
        "reason": imported.answer.reason,
    }


def _omission(omission: Omission) -> dict[str, Any]:
    texts = {"where": str(omission.place), "what": omission.what, "why": omission.why, "fix": omission.fix}
    return {**{name: shown(text) for name, text in texts.items()}, "package": omission.is_package}
