"""Specifications that run images: their text, their values, and what cannot be in them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from imagegen.app import launch
from imagegen.app.launch import LaunchSpec
from imagegen.checks.preflight import system_checks
from imagegen.checks.preflight.model import Image, Machine
from imagegen.core.data import shipped
from imagegen.core.errors import LockError, UsageError
from tests.support.command_line import Run
from tests.support.matrix_samples import shipped_matrix

GPU = LaunchSpec(
    cell="tiny-cu130-py311",
    reference="ghcr.io/acme/rl/tiny@sha256:" + "e" * 64,
    published=True,
    modules=("torch", "megatron.core"),
    capabilities=("9.0", "10.3"),
    products=("H100", "B300"),
    accelerators=("H100", "B300"),
    driver="580.65.06",
    gpus=8,
    ray="2.60.0",
)
CPU = LaunchSpec("tiny-cpu-py311", "imagegen/tiny@sha256:" + "d" * 64, published=False, modules=("torch",))


@pytest.mark.parametrize("target", launch.TARGETS)
def test_the_specifications(target: str, golden: Callable[[str, str], None]) -> None:
    golden(f"launch/gpu.{target}", launch.render(GPU, target))
    if launch.can_run(CPU, target):
        golden(f"launch/cpu.{target}", launch.render(CPU, target))


def parsed(spec: LaunchSpec, target: str) -> Any:
    text = launch.render(spec, target)
    if target == "devcontainer":
        return json.loads("".join(line for line in text.splitlines() if not line.startswith("//")))
    return list(yaml.safe_load_all(text))[-1]


def test_values_are_where_each_target_reads_them() -> None:
    (service,) = parsed(GPU, "compose")["services"].values()
    assert (service["image"], service["command"]) == (GPU.reference, list(GPU.command))
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == 8
    container = parsed(GPU, "devcontainer")
    assert (container["image"], container["hostRequirements"]) == (GPU.reference, {"gpu": True})
    pod = parsed(GPU, "kubernetes")["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[each["values"] for each in term["matchExpressions"]] for term in terms] == [
        [["9"], ["0"], ["579"]],
        [["10"], ["3"], ["579"]],
    ]
    assert parsed(GPU, "skypilot")["resources"]["accelerators"] == {"H100": 8, "B300": 8}
    assert shlex.split(parsed(GPU, "skypilot")["run"]) == list(GPU.command)
    slurm = shlex.split(launch.render(GPU, "slurm"), comments=True)
    assert f"--container-image=ghcr.io#acme/rl/tiny@sha256:{'e' * 64}" in slurm


@pytest.mark.parametrize(
    ("file", "named"), [("a.sqsh", "./a.sqsh"), ("../a b.sqsh", "../a b.sqsh"), ("/lustre/a.sqsh", "/lustre/a.sqsh")]
)
def test_slurm_starts_an_exported_file(file: str, named: str) -> None:
    words = shlex.split(launch.render(replace(GPU, squashfs=file), "slurm"), comments=True)
    assert f"--container-image={named}" in words
    assert "--container-entrypoint" in words


def test_an_exported_file_is_for_slurm_alone(run: Run) -> None:
    assert run("launch", "cpu-grpo", "--for", "docker", "--squashfs", "x.sqsh").code == 64
    ended = run("launch", "cpu-grpo", "--for", "slurm", "--squashfs", "x.sqsh")
    assert (ended.code, "./x.sqsh" in ended.out) == (0, True)


@pytest.mark.parametrize("target", [each for each in launch.TARGETS if each != "kuberay"])
def test_an_image_for_the_cpu_requests_no_gpu(target: str) -> None:
    assert "gpu" not in launch.render(CPU, target).lower()


def test_shared_memory_is_what_the_startup_checks_accept() -> None:
    image = Image(packages={"torch": "2.13.0"})
    assert not list(system_checks.check_shm(image, Machine({}, shm=launch.SHM << 30)))
    (finding,) = system_checks.check_shm(image, Machine({}, shm=64 << 20))
    assert f"--shm-size={launch.SHM}g" in finding.fix


def test_a_specification_is_refused_where_the_image_cannot_run() -> None:
    with pytest.raises(UsageError) as refused:
        launch.render(CPU, "kuberay")
    assert refused.value.code == "usage-no-ray"
    with pytest.raises(UsageError) as refused:
        launch.render(replace(GPU, accelerators=()), "skypilot")
    assert refused.value.code == "usage-no-accelerator"


FIELDS = ("cell", "reference", "driver", "ray", "modules", "products", "accelerators")


@given(st.text(min_size=1), st.sampled_from(FIELDS))
def test_no_value_leaves_its_field(text: str, field: str) -> None:
    value: Any = (text,) if isinstance(getattr(GPU, field), tuple) else text
    if all(each.isascii() and (each.isalnum() or each in " ._:/@;=,+-") for each in text):
        assert getattr(replace(GPU, **{field: value}), field) == value
        return
    with pytest.raises(LockError) as refused:
        replace(GPU, **{field: value})
    assert refused.value.code == "lock-value-unsupported"


@pytest.mark.parametrize("value", ["x\nrun: evil", 'x"', "x'", "$(id)", "`id`", "x\\", "{{ 7 }}", "x # y"])
def test_attacks_are_refused(value: str) -> None:
    with pytest.raises(LockError):
        replace(GPU, cell=value)


def test_accelerators_are_of_known_gpus() -> None:
    known = {product for gpu in shipped_matrix().gpus.values() for product in gpu.products}
    names = yaml.safe_load((shipped("pages") / "launch" / "skypilot.yaml").read_text())["accelerators"]
    assert set(names) <= known


def test_the_command(run: Run) -> None:
    ended = run("launch", "hopper-vllm", "--for", "kuberay", "--gpus", "8")
    assert ended.code == 0
    assert yaml.safe_load(ended.out)["spec"]["rayVersion"]
    assert run("launch", "cpu-grpo", "--for", "docker").code == 0


def test_the_command_writes_a_file(run: Run, tmp_path: Any) -> None:
    file = tmp_path / "compose.yaml"
    assert run("launch", "cpu-grpo", "--for", "compose", "-o", str(file)).out == ""
    assert yaml.safe_load(file.read_text())["services"]


def test_bad_input_of_the_command(run: Run) -> None:
    for arguments, code in (
        (["cpu-grpo", "--for", "docker", "--gpus", "1"], "usage-no-gpus"),
        (["cpu-grpo", "--for", "kuberay"], "usage-no-ray"),
        (["hopper-*", "--for", "docker"], "usage-several-cells"),
        (["hopper-vllm-cu130-py311-flash-attn", "--for", "docker"], "lock-no-record"),
    ):
        ended = run("launch", *arguments)
        assert ended.code not in (0, None)
        assert code in ended.err, arguments
