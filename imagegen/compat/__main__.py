"""Judge package versions with only the library: `python -m imagegen.compat torch==2.9.1 flash-attn`.

Exit codes are as of `imagegen why`: 0 if nothing speaks against the combination, 1 if it cannot work, 2 if that is
unknown; an ImagegenError has its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import NoReturn

from imagegen.compat.answer_text import as_dict, as_text
from imagegen.compat.answers import answer
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.knowledge_files import KnowledgeFiles
from imagegen.compat.model_types import model_type_summary, one_model_type
from imagegen.core.compiled import ResultCache, TreeResults
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.errors import ImagegenError, UsageError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.text import shown
from imagegen.spec.cells import Matrix
from imagegen.spec.loader import load
from imagegen.wheels import catalogue
from imagegen.wheels.catalogue import Catalogue


class ShippedSources:
    """The matrices and harvested data that imagegen ships."""

    def __init__(self) -> None:
        results = TreeResults(ResultCache(None), [shipped("matrices"), shipped("wheels")])
        self.knowledge_files = KnowledgeFiles(results)
        self.matrix: Matrix = load(results.directories)

    @cached_property
    def knowledge(self) -> Knowledge:
        components = {component.package for component in self.matrix.components.values()}
        return self.knowledge_files.knowledge(
            self.matrix.rules, self.matrix.builds, self.matrix.pin_overrides, components
        )

    @cached_property
    def wheel_catalogue(self) -> Catalogue:
        return catalogue.load([shipped("wheels")])

    @cached_property
    def context(self) -> Context:
        settings = Settings.from_environment(os.environ)
        return Context(Store(settings.store), settings, Quiet())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=f"`{self.prog} --help` shows the options")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser("python -m imagegen.compat", description="Explain whether package versions can work together.")
    parser.add_argument("words", nargs="*", metavar="NAME==VERSION", help="a package, or what it is to run on")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    try:
        options = parser.parse_args(arguments)
        sources = ShippedSources()
        model, words, _ = one_model_type(options.words)
        models = sources.knowledge_files.model_types if model else None
        about = model_type_summary(models, model) if models else ""
        releases = models.first.get(model) if models else None
        if model and not words:
            print(_json({model: releases}) if options.json else shown(about))
            return 2 if releases is None else 0
        result = answer(sources, words, model=model)
    except ImagegenError as error:
        print(f"error[{error.code}]: {error}", file=sys.stderr)
        return error.exit_code
    notes = [] if releases is None else [about]
    print(_json(as_dict(result)) if options.json else shown("\n\n".join([as_text(result), *notes])))
    return result.exit_code


def _json(document: object) -> str:
    return json.dumps(document, indent=2, sort_keys=True)


if __name__ == "__main__":
    sys.exit(main())
