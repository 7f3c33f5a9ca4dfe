"""The subjects and conditions of rules: surroundings, components and variables, and the values that they may have."""

from __future__ import annotations

import re

from imagegen.core.types import parse_specifier

# What a rule may name besides components and env.NAME: the first by name, the others by a version or a range.
NAMED = ("base", "platform")
VERSIONED = ("cuda", "driver", "glibc", "gpu", "python")
SURROUNDINGS = (*NAMED, *VERSIONED)
ENV = "env."  # begins the name of an environment variable in a rule
NO_CUDA = "cpu"  # the cuda axis's value for stacks without it


def is_surrounding(name: str) -> bool:
    """Return whether `name` in a rule is a surrounding or a variable, and not a component."""
    return name in SURROUNDINGS or name.startswith(ENV)


def condition_error(name: str, text: str) -> str | None:
    """Return the error in one condition of a rule: versions, a component's local version label, a variable's glob."""
    if name.startswith(ENV) or (name == "cuda" and text == NO_CUDA):
        return None
    for part in condition_parts(text):
        if part.startswith("+"):
            if name in SURROUNDINGS or not re.fullmatch(r"\+[a-z0-9.*?]*", part):
                return f'"{part}" is not a local version label of a component'
            continue
        try:
            parse_specifier(part)
        except ValueError as error:
            return str(error)
    return None


def condition_parts(text: str) -> tuple[str, ...]:
    """Return the parts of a condition, all of which must hold: a specifier, "+" and a glob over the label, or both.

    "+cpu" is that label, "+*torch2.8*" one like it, "+?*" any, and "+" alone is none: the version has no label.
    """
    specifier, both, label = text.partition(" +")
    return (specifier, f"+{label}") if both else (text,)
