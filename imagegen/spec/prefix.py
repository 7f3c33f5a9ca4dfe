"""The patch that makes a wheel of sources that are not a Python package, by their own commands.

The worker compiles whatever has a build backend. A recipe with `prefix` adds one to the sources, as a patch of the
recipe would: so sources, commands and backend are in the lock, in the key of the build and in the SBOM.
"""

from __future__ import annotations

import json

from imagegen.checks import PREFIX_BACKEND
from imagegen.core.deferred import dataclass
from imagegen.core.image_format import PREFIX

VENVS = "/opt/venvs"  # of an image with several: every environment but the default one lies below it, by its name
_PYPROJECT = """\
[build-system]
requires = []
build-backend = "imagegen_prefix"
backend-path = ["."]
"""


@dataclass(frozen=True)
class Prefix:
    """The commands that install sources below PREFIX, each a program with its arguments, and files that then exist."""

    package: str
    commands: tuple[tuple[str, ...], ...]
    files: tuple[str, ...]


def backend_patch(prefix: Prefix, version: str, requires: tuple[str, ...]) -> bytes:
    """Return the unified diff that adds a build backend to the sources of a release; `requires` are the wheel's."""
    described = {
        "name": prefix.package,
        "version": version,
        "requires": requires,
        "prefix": PREFIX,
        "commands": prefix.commands,
        "files": prefix.files,
    }
    files = {
        "imagegen_prefix.json": json.dumps(described, indent=1, sort_keys=True) + "\n",
        "imagegen_prefix.py": PREFIX_BACKEND.read_text(encoding="utf-8"),
        "pyproject.toml": _PYPROJECT,
    }
    return "".join(_new_file(name, text) for name, text in files.items()).encode()


def _new_file(name: str, text: str) -> str:
    lines = text.splitlines()
    head = (
        f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,{len(lines)} @@\n"
    )
    return head + "".join(f"+{line}\n" for line in lines)
