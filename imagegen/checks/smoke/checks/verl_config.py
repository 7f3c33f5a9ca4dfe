"""verl's training configurations compose, and everything that training with them imports is installed.

verl chooses its trainer, engines and rollout by names in a Hydra configuration, and imports many of them inside
functions: an image can pass every import check and still end with ModuleNotFoundError in the first training step.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoke.checks.loading import driver_or_stub, image_of
from smoke.program import Details, Findings, Spec, step

OPTIONAL = {"BaseException", "Exception", "ImportError", "ModuleNotFoundError"}  # a handler of these allows absence


@dataclass(frozen=True)
class Import:
    """One import statement. `names` are those of `from module import names`; empty for `import module`."""

    module: str  # absolute
    names: tuple[str, ...] = ()
    line: int = 0

    def load(self) -> None:
        """Execute the statement. Raises what it raises."""
        module = importlib.import_module(self.module)
        for name in self.names:
            if name != "*" and not hasattr(module, name):
                try:
                    importlib.import_module(f"{self.module}.{name}")
                except ModuleNotFoundError as error:
                    if error.name != f"{self.module}.{name}":
                        raise
                    raise ImportError(f"cannot import name {name!r} from {self.module!r}") from error

    def submodules(self) -> list[str]:
        """The names that are modules. Meant for a statement that was loaded."""
        return [name for each in self.names if (name := f"{self.module}.{each}") in sys.modules]


def imports_of(module: str) -> Iterator[Import]:
    """Yield the imports of a module that can be found; none for one that has no Python source."""
    found = importlib.util.find_spec(module)
    if found and found.origin and found.origin.endswith(".py"):
        package = module if found.submodule_search_locations is not None else module.rpartition(".")[0]
        yield from _imports(ast.parse(Path(found.origin).read_bytes()), package)


def _imports(node: ast.AST, package: str) -> Iterator[Import]:
    """Yield the imports below a node, but for those whose absence the code allows or that only type checkers see."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, (), node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
        name = ".".join([*base, *([node.module] if node.module else [])])
        yield Import(name, tuple(alias.name for alias in node.names), node.lineno)
    elif isinstance(node, ast.Try) and _allows_absence(node):
        for child in (*node.orelse, *node.finalbody):
            yield from _imports(child, package)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from _imports(child, package)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, package)


def _allows_absence(node: ast.Try) -> bool:
    caught = [handler.type for handler in node.handlers]
    names = {each.id for kind in caught if kind for each in ast.walk(kind) if isinstance(each, ast.Name)}
    return None in caught or bool(OPTIONAL & names)


CONFIGURATIONS = {"fsdp": "ppo_trainer", "megatron": "ppo_megatron_trainer"}  # trainer backend -> file of verl's
ALGORITHMS = {
    "ppo": ("algorithm.adv_estimator=gae",),
    "grpo": ("algorithm.adv_estimator=grpo",),
    "gspo": ("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"),
}
ROLLOUTS = {"vllm": "vLLMRollout", "sglang": "SGLangRollout"}  # rollout engine -> verl's class before the registry
ENTRY = "verl.trainer.main_ppo"
# Named in config/ref/megatron_ref.yaml of verl 0.6; no release defines it, and nothing instantiates that part.
UNUSED = "verl.workers.config.MegatronEngineConfig"
# Read in the wheels of 0.3.0.post1, 0.4.1, 0.5.0, 0.6.0, 0.6.1, 0.7.1, 0.8.0 and 0.9.1.
REGISTRY = (0, 6)  # the first release with registries of rollouts and engines, and the policy loss gspo
ENGINES = (0, 8)  # the first release without verl.workers.fsdp_workers and megatron_workers


def check(spec: Spec) -> Details:
    with driver_or_stub(image_of(spec)):  # verl 0.6 imports SGLang's kernels in its processes without a GPU too
        return check_imports(spec)


def check_imports(spec: Spec) -> Details:
    findings = Findings()
    absent = Absent(spec)
    skipped = {} if release(spec) >= REGISTRY else {"gspo": f"verl {spec.versions['verl']} has no policy loss gspo"}
    starts = {Import(ENTRY): "the entry point"}
    composed = []
    for name, values in compositions(spec, skipped):
        step(name)
        composed.append(name)
        starts |= dict.fromkeys(named_classes(values), f"the configuration {name}")
    with named_gpu():
        starts |= workers(spec)
        for rollout in (each for each in ROLLOUTS if each in spec.versions):
            starts |= dict.fromkeys(rollout_classes(spec, rollout), f"rollout.name={rollout}")
        if "gspo" not in skipped:
            expect_loss("gspo", findings)
        walk = Walk(absent, findings)
        for start, why in starts.items():
            walk.visit(start, why)
        expect_spmd(findings)
    details: Details = {
        "configurations": composed,
        "skipped": skipped,
        "modules": len(walk.visited),
        "mismatches": list(walk.mismatches.values()),
        "omitted": {name: spec.omits[name] for name in sorted(absent.omitted)},
        "optional": sorted(absent.optional),
    }
    notes = list(skipped.values())
    if walk.mismatches:
        notes.append(f"{len(walk.mismatches)} imports inside functions name what installed packages lack")
    if notes:
        details["note"] = "; ".join(notes)
    return findings.done(details)


def release(spec: Spec) -> tuple[int, ...]:
    """Return verl's release as major and minor: (0, 6) of "0.6.1"."""
    return tuple(int(part) for part in spec.versions["verl"].split(".")[:2])


def backends(spec: Spec) -> tuple[str, ...]:
    return ("fsdp", "megatron") if "megatron-core" in spec.versions else ("fsdp",)


def workers(spec: Spec) -> dict[Import, str]:
    """Return the modules of verl's trainer backends, each with the reason why it is needed."""
    modules = {}
    for backend in backends(spec):
        if release(spec) >= REGISTRY:
            modules[Import(f"verl.workers.engine.{backend}")] = f"the engine {backend}"
        if release(spec) < ENGINES:
            modules[Import(f"verl.workers.{backend}_workers")] = f"actor.strategy={backend}"
    return modules


@contextlib.contextmanager
def named_gpu() -> Iterator[None]:
    """Give the GPU a name where there is none: verl 0.3 asks for it when a rollout is imported."""
    import torch

    function = torch.cuda.get_device_name
    if not torch.cuda.is_available():
        torch.cuda.get_device_name = lambda *_: ""
    try:
        yield
    finally:
        torch.cuda.get_device_name = function


def expect_loss(name: str, findings: Findings) -> None:
    """Expect verl to have a policy loss: a configuration with an unknown one composes all the same."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    findings.expect(name, name in POLICY_LOSS_REGISTRY, f"verl has no policy loss {name}: {[*POLICY_LOSS_REGISTRY]}")


def expect_spmd(findings: Findings) -> None:
    """Expect verl to drive vLLM as it is since 0.7, where verl has the choice.

    verl 0.3 compares vLLM's version with "0.6.3" as text, so that it treats 0.10 as older.
    """
    mode = getattr(sys.modules.get("verl.workers.rollout.vllm_rollout"), "vllm_mode", "spmd")
    findings.expect("vllm_mode", mode == "spmd", f"verl takes its code for vllm 0.6.3 and older: vllm_mode is {mode}")


def compositions(spec: Spec, skipped: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Compose (name, configuration) for each backend, algorithm but the skipped, and rollout engine of the image."""
    import hydra
    from omegaconf import OmegaConf

    # By its path: before 0.5 the folder is no package.
    entry = importlib.util.find_spec(ENTRY)
    folder = Path(entry.origin).parent / "config" if entry and entry.origin else Path()
    with hydra.initialize_config_dir(str(folder), version_base=None):
        for backend in backends(spec):
            for algorithm, overrides in ((each, ALGORITHMS[each]) for each in ALGORITHMS if each not in skipped):
                for rollout in (each for each in ROLLOUTS if each in spec.versions):
                    chosen = [*overrides, f"actor_rollout_ref.rollout.name={rollout}"]
                    config = hydra.compose(CONFIGURATIONS[backend], overrides=chosen)
                    yield f"{algorithm} {backend} {rollout}", OmegaConf.to_container(config)


def named_classes(value: Any) -> Iterator[Import]:
    """Yield the classes that a composed configuration names, such as `_target_: verl.a.Class`."""
    if isinstance(value, dict):
        for each in value.values():
            yield from named_classes(each)
    elif isinstance(value, list):
        for each in value:
            yield from named_classes(each)
    elif isinstance(value, str) and value != UNUSED and re.fullmatch(r"verl(\.\w+)*\.[A-Z]\w*", value):
        module, _, name = value.rpartition(".")
        yield Import(module, (name,))


def rollout_classes(spec: Spec, rollout: str) -> Iterator[Import]:
    """Yield the classes of the worker and, where it has one, the server that verl chooses for a rollout engine."""
    if release(spec) < REGISTRY:
        yield Import(f"verl.workers.rollout.{rollout}_rollout", (ROLLOUTS[rollout],))
        return
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    for each in (get_rollout_class(rollout, "async"), get_rollout_replica_class(rollout)):
        yield Import(each.__module__, (each.__name__,))


class Absent:
    """Judges a module that is not installed: omitted on purpose, optional, or missing.

    It is missing where an extra of verl names its distribution and the matrix does not omit that.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._named: dict[str, tuple[str, str]] = {}  # module without separators -> distribution, extra
        for text in importlib.metadata.requires("verl") or ():
            extra = re.search(r"extra\s*==\s*[\"']([^\"']+)", text)
            name = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", text, maxsplit=1)[0]).lower()
            if extra and name != "verl":
                self._named.setdefault(_squash(spec.modules.get(name, name)), (name, extra[1]))
        self.omitted: set[str] = set()
        self.optional: set[str] = set()

    def judge(self, module: str) -> str | None:
        """Return why it is a fault that `module` is not installed; None where it is none."""
        # Its parents too: SGLang's kernels bring a folder flash_attn, without the package of that name.
        parts = module.split(".")
        squashed = (_squash(".".join(parts[:length])) for length in range(len(parts), 0, -1))
        found = next((self._named[each] for each in squashed if each in self._named), None)
        if found is None:
            self.optional.add(module)
            return None
        name, extra = found
        if name in self._spec.omits:
            self.omitted.add(name)
            return None
        return f"{name} is not installed, which verl's extra {extra} names"


def _squash(name: str) -> str:
    return re.sub(r"[-_.]+", "", name).lower()


class Walk:
    """Imports modules of verl, what they import anywhere in their code, and so on.

    A name that an installed package lacks is a fault only where it stops one of the first modules: verl keeps code for
    several releases of an engine side by side, in functions of which one is called.
    """

    def __init__(self, absent: Absent, findings: Findings) -> None:
        self._absent, self._findings = absent, findings
        self.visited: set[str] = set()
        self.mismatches: dict[str, str] = {}  # module -> what went wrong

    def visit(self, start: Import, why: str) -> None:
        """Walk from `start`, which `why` says is needed."""
        if not self._works(start.module, why, start.load):
            fault = self.mismatches.get(start.module)
            self._findings.expect(start.module, fault is None, f"{fault}")
            return
        waiting = [start.module]
        while waiting:
            module = waiting.pop()
            if module not in self.visited:
                self.visited.add(module)
                step(module)
                waiting += self._followed(module)

    def _followed(self, module: str) -> Iterator[str]:
        """Import what the code of `module` imports, and yield those modules that are verl's own."""
        for found in imports_of(module):
            loaded = self._works(found.module, f"{module}:{found.line}", found.load)
            if loaded and found.module.partition(".")[0] == "verl":
                yield from (found.module, *found.submodules())

    def _works(self, name: str, why: str, load: Callable[[], object]) -> bool:
        try:
            load()
        except Exception as error:  # noqa: BLE001  # a module may raise anything while it is imported
            missing = _not_installed(error)
            if missing:
                fault = self._absent.judge(missing)
                self._findings.expect(missing, fault is None, f"{why} imports {name}: {fault}")
            else:
                self.mismatches.setdefault(name, f"{why} imports {name}: {type(error).__name__}: {error}")
            return False
        return True


def _not_installed(error: Exception) -> str | None:
    """Return the first part of a module's name that nothing provides: "a.b" of a.b.c where a is installed."""
    parts = error.name.split(".") if isinstance(error, ModuleNotFoundError) and error.name else []
    if all(map(str.isidentifier, parts)):  # verl raises some itself, with a sentence as the name
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            if not _is_installed(name):
                regular = length > 1 and getattr(sys.modules.get(".".join(parts[: length - 1])), "__file__", None)
                return None if regular else name
    return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # verl puts an empty module in the place of an engine that is absent
        return False
