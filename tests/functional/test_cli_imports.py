"""What interactive commands import: none of the packages that fetch, build or run, which cost more than the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagegen.core.config import Settings

COMMANDS = [
    "--version",
    "--help",
    "list",
    "show cpu-grpo",
    "lock cpu-grpo --check",
    "why torch==2.9.1",
    "why cpu-grpo",
    "list *",
    "matrix",
]
HEAVY = {"docker", "installer", "jinja2", "requests", "urllib3", "zstandard"}
# Commands that read results of earlier runs alone; they need nothing either of what parses, solves or fetches, nor, on
# a pipe, of what draws tables.
READING = ["--version", "--help", "list", "show cpu-grpo", "lock cpu-grpo --check", "list *"]
UNREAD = {"pydantic", "pydantic_core", "rich", "yaml", "tomllib", "uv", "ssl", "http.client", "tarfile"}
UNREAD |= {"packaging.requirements", "packaging.specifiers", "packaging.tags", "packaging.utils"}
UNREAD |= {"imagegen.compat.solve", "imagegen.lock.builds"}
# Commands that judge what they read; they validate no file of their own, and what metadata and scans state is parsed.
SOLVING = ["why torch==2.9.1", "why cpu-grpo"]
UNVALIDATED = {"pydantic", "rich", "yaml", "packaging.requirements", "packaging.markers", "packaging.tags"}
UNVALIDATED |= {"imagegen.audit", "imagegen.compat.demands", "imagegen.compat.statement_tables"}
UNVALIDATED |= {"imagegen.compat.api", "imagegen.wheels.throttle"}
# The grid judges and parses nothing that an earlier run has.
GRID = {"pydantic", "rich", "yaml", "ssl", "http.client", "packaging.requirements", "imagegen.compat.solve"}
GRID |= {"imagegen.wheels.catalogue_file", "imagegen.wheels.wheelhouse", "imagegen.lock.builds"}

# Runs imagegen and prints, for each of the packages that was imported, the modules of imagegen that led to it, the
# importing one first. A finder that finds nothing sees each first import while its importers are on the stack.
PROBE = """
import atexit, json, os, sys

packages, report, chains = set(sys.argv[1].split(",")), int(sys.argv[2]), {}

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in packages:
            frame, chain = sys._getframe(), []
            while frame:
                module = frame.f_globals.get("__name__", "")
                if module.startswith("imagegen.") and module not in chain:
                    chain.append(module)
                frame = frame.f_back
            chains[name] = chain

def write():
    loaded = packages & set(sys.modules)
    os.write(report, json.dumps({name: chains.get(name, []) for name in loaded}).encode())

sys.meta_path.insert(0, Watch)
atexit.register(write)
del sys.argv[1:3]
from imagegen.cli.main import main
main()
"""


def imported(command: str, cache: Path) -> tuple[dict[str, list[str]], int]:
    """Run the command. Return the chain of importing modules for each loaded package that it does not need, and the
    exit code.
    """
    packages = HEAVY | (UNREAD if command in READING else UNVALIDATED if command in SOLVING else set())
    packages |= GRID if command == "matrix" else set()
    reader, writer = os.pipe()
    with os.fdopen(reader) as report:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", PROBE, ",".join(packages), str(writer), *command.split()],
                env={**os.environ, "XDG_CACHE_HOME": str(cache), "UV_OFFLINE": "1"},
                pass_fds=[writer],
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            os.close(writer)
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(report.read()), done.returncode


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_imports_nothing_that_it_does_not_need(command: str, shared: Path) -> None:
    chains, code = imported(command, shared / "cache")
    if chains:  # it computed results that are kept for the next time
        chains, code = imported(command, shared / "cache")
    found = [f"{name}, imported by {' <- '.join(chain)}" for name, chain in sorted(chains.items())]
    assert (found, code) == ([], 0)


def test_a_build_begins_without_what_builds() -> None:
    packages = "docker,installer,jinja2,pydantic,requests,rich,uv,yaml,zstandard,imagegen.audit,imagegen.image.layers"
    program = f"import sys, imagegen.cli.build_command; print({packages.split(',')} & sys.modules.keys())"
    program = program.replace("[", "{").replace("]", "}")
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("command", "packages"), [("audit", "docker,imagegen.app.site"), ("diff", "imagegen.app.site")]
)
def test_no_command_loads_what_others_do(command: str, packages: str) -> None:
    program = f"import sys, imagegen.cli.{command}_command; print({packages.split(',')} & sys.modules.keys())"
    program = program.replace("[", "{").replace("]", "}")
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_makes_a_layout_needs_no_engine() -> None:
    program = "import sys, imagegen.app.assemble; print({'docker', 'requests'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_talks_to_an_engine_validates_no_files() -> None:
    program = "import sys, imagegen.app.build, imagegen.engine; print({'pydantic', 'yaml'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_audits_a_cell_validates_no_files_and_compiles_no_wheels() -> None:
    modules = (
        "imagegen.cli.audit_command, imagegen.app.audit, imagegen.app.assemble, "
        "imagegen.image.inventory.cell_subject, imagegen.image.inventory.site_subject"
    )
    unused = {"pydantic", "jinja2", "imagegen.wheels.builds.store", "imagegen.lock.make.stages"}
    program = f"import sys, {modules}; print({unused} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_chain_of_an_import_is_named(shared: Path) -> None:
    chains, code = imported("show cpu-grpo --size", shared / "cache")
    assert code == 0
    assert chains["zstandard"][-3:] == ["imagegen.cli.show_command", "imagegen.cli.commands", "imagegen.cli.main"]


def test_a_saved_smoke_report_is_found_without_an_engine(tmp_path: Path) -> None:
    store = Settings.from_environment({"XDG_CACHE_HOME": str(tmp_path)}).store
    (store / "records" / "smoke").mkdir(parents=True)
    (store / "records" / "smoke" / "other").touch()  # of another image
    imported("why cpu-grpo", tmp_path)  # fills the cache of results
    assert imported("why cpu-grpo", tmp_path) == ({}, 0)
    (store / "records" / "smoke" / "another").touch()  # looking for a report is what is left
    chains, code = imported("why cpu-grpo", tmp_path)
    assert (chains.keys() & {*HEAVY, "pydantic"}, code) == ({"installer", "zstandard"}, 0)
