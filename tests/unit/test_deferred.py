"""core/deferred.py: classes behave as those of the standard library, from their first use on."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from pydantic import TypeAdapter

from imagegen.core.deferred import dataclass


@dataclass(frozen=True)
class Kept:
    """A class of this module, as unpickling needs it."""

    name: str
    sizes: tuple[int, ...] = ()


def classes(decorate: Callable[..., Any]) -> tuple[Any, Any]:
    """A class with defaults, a method and a property, and one that extends it."""

    @decorate(frozen=True)
    class Base:
        """A base."""

        name: str
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        size: int = 3

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError("empty")

        @property
        def text(self) -> str:
            return f"{self.name}:{self.size}"

    @decorate(frozen=True)
    class Extended(Base):
        """An extension."""

        more: str = ""

        def __str__(self) -> str:
            return self.more

    return Base, Extended


def is_refused(change: Callable[..., None], *arguments: Any) -> bool:
    try:
        change(*arguments)
    except dataclasses.FrozenInstanceError:
        return True
    return False


USES: dict[str, Callable[[Any], Any]] = {
    "repr": lambda made: repr(made).rpartition(".")[2],
    "equal": lambda made: (made == copy.copy(made), made != dataclasses.replace(made, size=4)),
    "hash": lambda made: hash(made) == hash(copy.copy(made)),
    "text": lambda made: made.text,
    "fields": lambda made: [each.name for each in dataclasses.fields(made)],
    "asdict": dataclasses.asdict,
    "frozen": lambda made: is_refused(setattr, made, "name", "x"),
    "kept": lambda made: is_refused(delattr, made, "name"),
    "match": lambda made: type(made).__match_args__,
    "params": lambda made: type(made).__dataclass_params__.frozen,
    "tags": lambda made: made.tags.append("a") or made.tags,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("number", [0, 1])
def test_a_class_does_what_the_standard_library_s_does(use: str, number: int) -> None:
    answers = []
    for decorate in (dataclasses.dataclass, dataclass):
        made = object.__new__(classes(decorate)[number])  # as pickle makes it: no method was called
        made.__dict__.update({"name": "a", "tags": [], "size": 3, **({"more": "b"} if number else {})})
        answers.append(USES[use](made))
    assert answers[0] == answers[1]


def test_instances_are_made_with_defaults_and_checked() -> None:
    base, extended = classes(dataclass)
    assert extended("a", more="x").more == "x"
    assert base("a") == base("a", ["not compared"])
    assert base("a") != extended("a")
    with pytest.raises(ValueError, match="empty"):
        base("")
    with pytest.raises(TypeError):
        base()


@pytest.mark.parametrize("options", [{}, {"kw_only": True}])
def test_unpickling_and_reading_compile_nothing(options: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps(Kept("a", (1,)))

    @dataclass(frozen=True, **options)
    class Fresh:
        """Not used yet."""

        name: str

    monkeypatch.setattr(dataclasses, "dataclass", None)
    assert pickle.loads(content).sizes == (1,)
    made = object.__new__(Fresh)
    made.__dict__["name"] = "a"
    assert made.name == "a"
    with pytest.raises(TypeError):  # the first use
        hash(made)


def test_fields_can_be_keywords_alone() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Fresh:
        """Not used yet."""

        size: int = 3
        name: str

    assert Fresh(name="a").size == 3
    with pytest.raises(TypeError):
        Fresh(3, "a")


def test_pydantic_reads_such_a_class() -> None:
    @dataclass(frozen=True)
    class Fresh:
        """Not used yet."""

        name: str
        size: int = 3

    assert TypeAdapter(Fresh).validate_json('{"name": "a"}') == Fresh("a")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Four threads, which take turns as often as they can; they start and end in the usual way."""
    before = sys.getswitchinterval()
    with ThreadPoolExecutor(4) as pool:
        together = Barrier(4)
        list(pool.map(lambda _: together.wait(), range(4)))
        sys.setswitchinterval(1e-6)
        yield pool
        sys.setswitchinterval(before)


def test_threads_may_use_a_class_while_one_finishes_it(pool: ThreadPoolExecutor) -> None:
    def use(made: Any) -> bool:
        return made == type(made)("a", size=4) and hash(made) == hash(copy.copy(made))

    for _ in range(100):
        base, _ = classes(dataclass)
        made = object.__new__(base)
        made.__dict__.update({"name": "a", "size": 4})
        assert list(pool.map(use, [made] * 8)) == [True] * 8


def test_other_classes_are_finished_at_once() -> None:
    @dataclass
    class Changing:
        name: str

    @dataclass(frozen=True, slots=True)
    class Slotted:
        name: str

    made = Changing("a")
    made.name = "b"
    assert made == Changing("b")
    assert not hasattr(Slotted("a"), "__dict__")
