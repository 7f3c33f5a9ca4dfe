"""Audit wheel files with only the library: `python -m imagegen.audit FILE.whl --gpu sm_120`.

Exit codes are as of `imagegen audit`: 1 if there is an error, else 0; an ImagegenError has its own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from imagegen.audit.check import audit
from imagegen.audit.readers.loose_wheels import named_wheels_subject
from imagegen.audit.report_text import report_lines
from imagegen.core.errors import ImagegenError, UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.text import shown


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=f"`{self.prog} --help` shows the options")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser("python -m imagegen.audit", description="Find what would fail on the GPU.")
    parser.add_argument("wheels", nargs="+", metavar="FILE.whl")
    parser.add_argument("--gpu", action="append", default=[], metavar="sm_XY", help="a GPU that it is to run on")
    parser.add_argument("--torch", metavar="VERSION", help="the torch that the wheels are to run with")
    parser.add_argument("--all", action="store_true", help="show notes too")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    try:
        options = parser.parse_args(arguments)
        gpus = tuple(map(parse_gpu, options.gpu))
        report = audit(named_wheels_subject(options.wheels, gpus, options.torch))
    except ImagegenError as error:
        print(f"error[{error.code}]: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps([report.as_dict()], indent=2))
    else:
        print("\n".join(map(shown, report_lines(report, everything=options.all))))
    return 0 if report.passed else 1


def parse_gpu(name: str) -> Gpu:
    """Return the GPU architecture of "sm_120" or "12.0". Raises UsageError for another name."""
    match = re.fullmatch(r"sm_(\d{1,2})(\d)|(\d{1,2})\.(\d)", name)
    if match is None:
        raise UsageError(f'there is no GPU "{name}"', code="usage-unknown-name", fix="write sm_120 or 12.0")
    major, minor = filter(None, match.groups())
    return Gpu(f"sm_{major}{minor}", f"{major}.{minor}", family="", products=())


if __name__ == "__main__":
    sys.exit(main())
