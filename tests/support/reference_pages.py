"""The pages of docs/reference/ that are generated from the code: commands, file formats, exit codes."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click
from pydantic import TypeAdapter

from imagegen.checks.smoke.table import CHECKS, Check
from imagegen.cli.commands import cli
from imagegen.core import errors
from imagegen.lock.environments import CombinedFile
from imagegen.lock.model import Lock
from imagegen.spec.schema import MatrixFile
from imagegen.trust.project import ProjectFile

# Tables that the glossary names otherwise than the code.
_TITLES = {"FileConflict": "FileConflictOverride", "FileConflictRule": "FileConflictOverride"}
# The lock's schema has no descriptions: what its tables mean.
_LOCK_KEYS = {
    "version": "Version of the format.",
    "cell": "Id of the cell.",
    "image": "Name of the image.",
    "uv": "The uv that resolved the lock; a rendered Dockerfile installs with it.",
    "as-of": "Cutoff: files that were uploaded to an index later do not count.",
    "axes": "Value on each axis.",
    "inputs": "Hash of each input; the lock is stale when one differs.",
    "base": "The base, with its packages or its layers.",
    "interpreter": "The Python of the stack.",
    "packages": "Debian packages above the base.",
    "bytecode-base": "For another platform, a base for linux/amd64 whose interpreter compiles the byte-code.",
    "gpu": "GPUs that the image is for, and the minimum driver.",
    "env": "Environment variables, each with its reason.",
    "config": "Fields of the image's config: entrypoint, cmd, user, workdir.",
    "label": "Labels beside those that imagegen sets.",
    "port": "Ports on which programs of the image listen.",
    "copy": "Files of the project that are copied into the image, each with its sha256.",
    "ldconfig": "Directories in which the dynamic loader finds libraries, each with its reason.",
    "override": "Overrides of what packages require; without a specifier, the distribution is left out.",
    "build": "Wheels that are compiled, each with its sources and key.",
    "wheel": "Wheels, each with its index, hash, reason and the packages that require it.",
    "file-conflict": "File-conflict overrides that apply.",
    "record": "Digests of layers and image, from `lock --record`.",
    "environment": "The environments, the default one first.",
}


def pages() -> dict[str, str]:
    """Return each generated page by its file name in docs/reference/."""
    return {
        "cli.md": _commands(),
        "exit-codes.md": _exit_codes(),
        "matrix.md": _matrix(),
        "recipe.md": _recipe(),
        "publish-yaml.md": _publish(),
        "lock.md": _lock(),
        "smoke-checks.md": _smoke_checks(),
    }


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the command, or the subcommands of a group, by full name in alphabetical order."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in sorted(command.list_commands(context)):
        if child := command.get_command(context, each):
            yield from leaves(child, f"{name} {each}")


def _page(title: str, source: str, text: str, rest: str) -> str:
    """Return a page that begins with its title, the place that it is written from, and an introduction."""
    head = f"`make tables` writes this page from {source}. {text}"
    return f"# {title}\n\n{textwrap.fill(head, 120, break_long_words=False, break_on_hyphens=False)}\n\n{rest}"


def _smoke_checks() -> str:
    text = (
        "A smoke test of an image runs, in a container of it, the checks whose packages and variables its lock has. A "
        "check that needs GPUs is skipped where the container has fewer. Each check is a process with a time limit; "
        '"the same" refers to the row above. '
        "`imagegen test CELL` runs the smoke test again; [Add a smoke check](https://github.com/imagegen/imagegen/blob/main/"
        "CONTRIBUTING.md#add-a-smoke-check) describes how to write one."
    )
    table = "| check | what it verifies | needs | GPUs | limit |\n|---|---|---|---|---|\n"
    smoke_test = "".join(_smoke_check(each) for each in CHECKS if not each.by_name)
    measurements = "".join(_smoke_check(each) for each in CHECKS if each.by_name)
    rest = (
        f"{table}{smoke_test}\n## Measurements\n\n"
        "`imagegen test --numerics` runs these ([Measure numerical differences](../how-to/measure-numerics.md)); a "
        f"smoke test does not.\n\n{table}{measurements}"
    )
    return _page("Smoke checks", "`imagegen/checks/smoke/table.py`", text, rest)


def _smoke_check(check: Check) -> str:
    needs = ", ".join(f"`{name}`" for name in sorted(check.needs)) or "every image"
    needs += "".join(f", no `{name}`" for name in sorted(check.without))
    gpus = check.gpus if check.device == "cuda" else "none"
    return f"| `{check.name}` | {check.verifies} | {needs} | {gpus} | {check.timeout} s |\n"


def _commands() -> str:
    text = (
        "Results go to stdout, progress and warnings to stderr; errors have [codes](errors.md), and the exit code "
        "depends on the [class of the error](exit-codes.md). A CELL is the id of a cell, the name of an image (its "
        "default cell) or a glob."
    )
    sections = [f"## {name}\n\n{_command(command, name)}" for name, command in leaves(cli, "imagegen")]
    return _page("Commands", "the command line", text, "\n".join([f"## imagegen\n\n{_options(cli)}", *sections]))


def _command(command: click.Command, name: str) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
    paragraphs = [_paragraph(each) for each in inspect.cleandoc(command.help or "").split("\n\n")]
    return "\n\n".join([f"    {usage}", *paragraphs, _options(command)]).rstrip() + "\n"


def _paragraph(text: str) -> str:
    """Return a paragraph of help; one that click must not wrap (a backspace first) as a block of code."""
    first, _, rest = text.partition("\n")
    return textwrap.indent(rest, "    ") if first == "\b" else _markdown(text)


def _options(command: click.Command) -> str:
    rows = []
    for parameter in command.get_params(click.Context(command)):
        record = parameter.get_help_record(click.Context(command))
        if record and isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            rows.append(f"| `{_cell(record[0])}` | {_markdown(_cell(record[1]))} |\n")
    return "".join(["| option | meaning |\n|---|---|\n", *rows]) if rows else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _markdown(text: str) -> str:
    """Return the text with globs and placeholders shown as they are."""
    parts = text.split("`")
    return "`".join(re.sub(r"([*<])", r"\\\1", part) if n % 2 == 0 else part for n, part in enumerate(parts))


def _exit_codes() -> str:
    classes = [each for each in errors.ImagegenError.__subclasses__() if each.__module__ == errors.__name__]
    rows = {
        each.exit_code: (f"`{each.code}`", (each.__doc__ or "").splitlines()[0])
        for each in classes
        if each is not errors.ErrorGroup
    }
    rows[0] = ("", "Success, or yes.")
    rows[1] = (rows[1][0], "No: a smoke check failed, an audit found an error, a combination conflicts.")
    unknown = "`why` finds neither a conflict nor that all is compatible, nothing explains a log"
    rows[2] = ("", f"Unknown: {unknown}, or `verify` may not build the lock again.")
    rows[70] = ("`internal`", "A bug in imagegen. `imagegen --debug COMMAND` shows the traceback.")
    table = "".join(f"| {code} | {kind} | {_cell(text)} |\n" for code, (kind, text) in sorted(rows.items()))
    text = (
        "The class of an error has the exit code; each error has a [code](errors.md) of its own. A signal ends "
        "imagegen with 128 and its number: 130 for SIGINT. It ends within two seconds: the programs that it started "
        "are killed, its containers and temporary files are removed, and the last line names the steps that were "
        "stopped. As a user other than root, mmdebstrap gets ten seconds to remove its files."
    )
    rest = f"| exit code | class | meaning |\n|---|---|---|\n{table}"
    return _page("Exit codes", "`imagegen/core/errors.py`", text, rest)


def _matrix() -> str:
    schema = MatrixFile.model_json_schema()
    sections = {name: value for name, value in schema["properties"].items() if name != "recipes"}
    text = (
        "A matrix is all files below `matrices/`: the shipped ones and those of your project. Each file has some of "
        "these sections; entries are named. A name that a shipped file defines needs `override: true`, unless both "
        "entries are equal. Unknown keys are errors. `matrices/schema.json` is the JSON schema of a file, for editors."
    )
    rows = "".join(f"| `{name}` | {_type(value)} |\n" for name, value in sections.items())
    rest = f"| section | entries |\n|---|---|\n{rows}\n{_definitions(schema, sections)}"
    return _page("Matrix files", "`imagegen/spec/schema.py`", text, rest)


def _recipe() -> str:
    schema = MatrixFile.model_json_schema()
    text = (
        "`wheels/*.yaml` has a section `recipes`: name of a component → [RecipeEntry](#recipeentry). [Source "
        "builds](../how-to/source-builds.md) has an example."
    )
    rest = _definitions(schema, {"recipes": schema["properties"]["recipes"]})
    return _page("Recipes of source builds", "`imagegen/spec/recipe_file.py`", text, rest)


def _publish() -> str:
    schema = ProjectFile.model_json_schema()
    text = (
        "The file lies next to `matrices/` and `locks/`; paths are relative to it. [Trust "
        "model](../explanation/trust.md) explains keys and identities."
    )
    rest = f"{_table(schema)}\n{_definitions(schema, schema['properties'])}"
    return _page("publish.yaml", "`imagegen/trust/project.py`", text, rest)


_TYPES = {"type", "$ref", "anyOf", "const", "enum"}  # keys of a JSON schema that has a type


def _lock() -> str:
    schema = TypeAdapter(Lock).json_schema()
    for table in (schema, *schema["$defs"].values()):  # a field that no file has takes any value
        table["properties"] = {key: value for key, value in table["properties"].items() if value.keys() & _TYPES}
    for definition in schema["$defs"].values():
        definition["properties"] = _with_inlined(definition["properties"], schema)
    version = {"version": {"type": "integer"}}
    schema["properties"] = version | schema["properties"]
    schema["required"] = ["version", *schema["required"]]
    for key, value in schema["properties"].items():
        value["description"] = _LOCK_KEYS[key]
    text = (
        "`locks/<cell>.toml` is TOML, written by `imagegen lock`. Indexes are named by alias, never by address; files "
        "by name, size and sha256. The inputs hash covers all tables but `record`. A lock that is edited against its "
        "matrix is rejected."
    )
    rest = f"{_table(schema)}\n{_definitions(schema, schema['properties'])}\n{_combined_lock()}"
    return _page("Lock file", "`imagegen/lock/model.py` and `environments.py`", text, rest)


def _combined_lock() -> str:
    schema = TypeAdapter(CombinedFile).json_schema()
    schema["properties"] = {"version": {"type": "integer"}} | schema["properties"]
    schema["required"] = ["version", *schema["required"]]
    for key, value in schema["properties"].items():
        value["description"] = _LOCK_KEYS[key]
    rows = {"environment": schema["properties"]["environment"]}
    text = (
        "The lock of an [image with several environments](../how-to/several-environments.md) names the locks of their "
        "cells. It is stale when one of them pins something else."
    )
    return f"## Of several environments\n\n{text}\n\n{_table(schema)}\n{_definitions(schema, rows)}"


def _with_inlined(properties: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a table with those of its inlined tables, whose names begin with a dot."""
    found: dict[str, Any] = {}
    for key, value in properties.items():
        if key.startswith("."):
            (name,) = _references(value)
            found |= schema["$defs"][name]["properties"]
        else:
            found[key] = value
    return found


def _definitions(schema: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """Return a section for each definition that `start` refers to, in the order in which they are met."""
    todo, done = list(_references(start)), dict[str, str]()
    while todo:
        name = todo.pop(0)
        if name not in done:
            definition = schema["$defs"][name]
            text = _markdown(" ".join(str(definition.get("description", "")).split()))
            done[name] = "\n\n".join(each for each in (f"## {_title(name)}", text, _table(definition)) if each)
            todo += _references(definition)
    return "\n".join(done.values())


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _title(name: str) -> str:
    return _TITLES.get(name, name.lstrip("_"))


def _table(definition: Mapping[str, Any]) -> str:
    rows = "| key | type | default | meaning |\n|---|---|---|---|\n"
    for key, value in definition["properties"].items():
        default = "required" if key in definition.get("required", ()) else _default(value.get("default"))
        rows += f"| `{key}` | {_type(value)} | {default} | {_markdown(_cell(value.get('description', '')))} |\n"
    return rows


def _default(value: Any) -> str:
    if value is None or value in ([], {}, ""):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(value: Mapping[str, Any]) -> str:
    """Return the type of a JSON schema in words, with links to the definitions on the same page."""
    if "$ref" in value:
        name = _title(value["$ref"].rpartition("/")[2])
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_type(each) for each in value["anyOf"] if each.get("type") != "null")
    if "enum" in value or "const" in value:
        return " or ".join(f"`{each}`" for each in value.get("enum", [value.get("const")]))
    if value.get("type") == "array":
        return f"list of {_type(value['items'])}"
    if value.get("type") == "object":
        parts = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
        return f"name → {_type(next((each for each in parts if isinstance(each, dict)), {}))}"
    return str(value.get("type", "any"))
