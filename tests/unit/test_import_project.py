"""Importing a project's file: the written entry, the choices of base, CUDA and Python, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from imagegen.app import make_locks
from imagegen.app.import_project import Imported, Selection, find_file, import_project, known_facts
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.errors import (
    ImagegenError,
    Location,
    LockError,
    ProjectFileError,
    UsageError,
)
from imagegen.core.progress import Quiet
from imagegen.lock.make.options import LockOptions
from imagegen.projects import dockerfile, entry
from imagegen.projects.model import MarkerTarget
from imagegen.spec.document import parse
from tests.support.errors import raises

pytestmark = pytest.mark.usefixtures("shared_results")
REQUIREMENTS = """\
--extra-index-url https://download.pytorch.org/whl/cu128
torch==2.8.0+cu128
vllm==0.11.0
transformers>=4.55
math_verify[antlr4_13_2]==0.8.0
-e .
"""


ENTRY = """\
images:
  my-rl:
    description: An image.
    purpose: A test.
    base: debian12
    axes: {cuda: [cpu], python: ["3.11"]}
    components:
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def session_of(project: Path) -> Session:
    return Session(ProjectContext({"XDG_CACHE_HOME": str(project.parent / "cache")}, project, Quiet()))


def run(
    project: Path, text: str, name: str | None = "my-rl", file: str = "requirements.txt", cuda: str = "", gpu: str = ""
) -> Imported:
    (project / file).write_text(text)
    return import_project(session_of(project), project / file, name, Selection(cuda=cuda, gpu=gpu))


def test_the_entry_is_complete_and_explained(project: Path, golden: Callable[[str, str], None]) -> None:
    imported = run(project, REQUIREMENTS)
    golden("import/requirements.yaml", imported.path.read_text())
    cell = session_of(project).matrices.matrix.select_one("my-rl")
    assert (cell.id, cell.base.name, cell.cuda) == ("my-rl-cu128-py311", "debian12-gpu", "cu128")
    assert {each.component.name: each.pep508 for each in cell.requirements}["torch"] == "torch==2.8.0"
    assert [each.place.line for each in imported.omissions] == [6]
    assert imported.missing == 1


OWN_PROJECT = """\
[build-system]
requires = ["setuptools"]
[project]
name = "Six"
version = "99"
[project.optional-dependencies]
all = ["certifi"]
"""
_CONDA = "dependencies:\n- pip:\n  - six[all]\n"


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a project named as a package of PyPI is required by name, path or address",
    "its directory is locked, no index is asked",
)
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("requirements.txt", "-e .[all]\n"),
        ("requirements.txt", "./ [ALL] ; python_version >= '3.8'\n"),
        ("requirements.txt", "SIX[all] @ file:.\n"),
        ("requirements.txt", "-e file:./[all]\n"),
        ("requirements.txt", "six [all] @ file://{project}#egg=six\n"),
        ("requirements.txt", "six[All]==99\n"),
        ("requirements.in", "six\n.[all]\n"),
        ("environment.yml", _CONDA),
    ],
)
def test_a_requirement_of_the_project_itself_is_its_directory(project: Path, file: str, text: str) -> None:
    (project / "pyproject.toml").write_text(OWN_PROJECT)
    imported = run(project, text.replace("{project}", str(project)), file=file)
    (requirement,) = (each for each in imported.cell.requirements if each.component.package == "six")
    assert requirement.own and requirement.own.path == "."
    assert requirement.extras == ("all",)
    assert imported.omissions == ()


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("Dockerfile", "FROM rocm/pytorch:rocm7.0_ubuntu24.04_py3.12_pytorch_release_2.7.1\nRUN pip install trl\n", 1),
        ("Dockerfile", "FROM docker.io/vllm/vllm-openai-rocm:v0.23.0\nRUN pip install trl\n", 1),
        ("Dockerfile", "FROM lmsysorg/sglang:v0.5.15.post1-rocm720-mi30x\nRUN pip install trl\n", 1),
        ("Dockerfile", "FROM rocm/dev-ubuntu-22.04:6.2 AS base\nRUN true\nFROM base\nRUN pip install trl\n", 1),
        ("Dockerfile", "FROM ubuntu:22.04\nENV PYTORCH_ROCM_ARCH=gfx942\nRUN pip install vllm\n", 2),
        ("Dockerfile", "FROM ubuntu:22.04\nENV A=1 PYTORCH_ROCM_ARCH=$ARCH\nRUN pip install vllm\n", 2),
        ("Dockerfile", "FROM ubuntu\nRUN pip install torch --index-url https://download.pytorch.org/whl/rocm6.2\n", 2),
        ("Dockerfile", "FROM ubuntu\nRUN apt-get install -y git rocm-libs\n", 2),
        ("Dockerfile", "FROM quay.io/ascend/vllm-ascend:v0.11.0\nRUN pip install trl\n", 1),
        ("Dockerfile", "FROM gcr.io/acme/vllm-tpu:nightly\nRUN pip install trl\n", 1),
        ("Dockerfile", "FROM ubuntu\nRUN uv pip install --torch-backend=rocm6.3 torch\n", 2),
        ("requirements.txt", "trl\ntorch==2.8.0+rocm6.4\n", 2),
        ("requirements.txt", "trl\npytorch-triton-rocm\n", 2),
        ("requirements.txt", "--extra-index-url https://download.pytorch.org/whl/xpu\ntorch\n", 1),
        ("pyproject.toml", '[project]\nname = "a"\ndependencies = ["torch==2.8.0+rocm6.4"]\n', 3),
    ],
)
def test_a_file_for_another_accelerator_is_refused(project: Path, file: str, text: str, line: int) -> None:
    with pytest.raises(ProjectFileError) as raised:
        run(project, text, file=file)
    assert raised.value.code == "project-accelerator"
    assert isinstance(raised.value.where, Location) and raised.value.where.line == line
    assert not (project / "matrices").exists()


@pytest.mark.parametrize(
    ("base", "packages", "cuda"),
    [
        ("nvcr.io/nvidia/pytorch:24.02-py3", "transformers deepspeed", None),
        ("verlai/verl:vllm011.latest", "trl", None),
        ("acme/base:1", "numpy", None),
        ("acme/base:1", "vllm", None),  # for GPUs, of an unknown CUDA
        ("${BASE}", "numpy", None),
        ("acme/base:1", "vllm==0.11.0", "cu128"),
        ("acme/base:1", "torch==2.8.0", "cu128"),
        ("acme/base:1", "--extra-index-url https://download.pytorch.org/whl/cu126 torch", "cu126"),
        ("acme/base:1", "nvidia-nccl-cu12", "cu129"),
        ("acme/base:dev-cu13", "trl", "cu130"),
        ("acme/base:1-cpu", "trl", "cpu"),
        ("continuumio/miniconda3", "trl==0.24.0 torch==2.8.0", "cu128"),
        ("continuumio/miniconda3", "numpy", "cpu"),
        ("hiyouga/verl:ngc-th2.8.0-vllm0.11.0", "trl", "cu128"),
        ("nvidia/cuda:12.4.1-devel-ubuntu22.04", "vllm==0.11.0", "cu128"),  # pip installs PyPI's torch
        ("nvidia/cuda:12.4.1-devel-ubuntu22.04", "trl", "cu124"),
        ("pytorch/pytorch:2.8.0-cuda12.6-cudnn9-devel", "trl", "cu126"),
        ("pytorch/pytorch:2.8.0-cuda12.6-cudnn9-devel", "torch==2.8.0", "cu126"),  # it is there
        ("pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", "torch==2.8.0", "cu128"),
        ("ubuntu:22.04", "--torch-backend=cu126 torch==2.8.0", "cu126"),
        ("ubuntu:22.04", "--torch-backend auto torch==2.8.0", "cu128"),
    ],
)
def test_an_unknown_base_image_never_gives_an_image_without_cuda(
    project: Path, base: str, packages: str, cuda: str | None
) -> None:
    (project / "Dockerfile").write_text(f"FROM {base}\nRUN pip install {packages}\n")
    found = dockerfile.read(project / "Dockerfile", {}).recover(MarkerTarget("3.11"))
    facts = known_facts(session_of(project).matrices)
    if cuda:
        assert entry.choose_cuda(found, facts).value == cuda
        return
    with pytest.raises(ProjectFileError) as raised:
        entry.choose_cuda(found, facts)
    assert raised.value.code == "project-cuda-unknown"
    assert isinstance(raised.value.where, Location) and raised.value.where.line == 1


@pytest.mark.parametrize("value", ["cpu", "cu128"])
def test_the_user_states_the_cuda_of_an_unknown_base_image(project: Path, value: str) -> None:
    (project / "Dockerfile").write_text("FROM ${BASE}\nRUN pip install numpy\n")
    with raises("project-cuda-unknown"):
        import_project(session_of(project), project / "Dockerfile", "my-rl", Selection())
    imported = import_project(session_of(project), project / "Dockerfile", "my-rl", Selection(cuda=value))
    assert (imported.platform.cuda.value, imported.cell.cuda) == (value, value)


def test_the_chosen_cuda_counts_more_than_the_file_and_must_exist(project: Path) -> None:
    (project / "requirements.txt").write_text("vllm==0.11.0\n")
    with pytest.raises(UsageError) as raised:
        import_project(session_of(project), project / "requirements.txt", "my-rl", Selection(cuda="cu999"))
    assert raised.value.code == "usage-unknown-cuda"
    imported = import_project(session_of(project), project / "requirements.txt", "my-rl", Selection(cuda="cu129"))
    assert imported.cell.cuda == "cu129"


@pytest.mark.parametrize(
    ("text", "extras", "lines"),
    [
        ("verl[cupy-cu130,vllm]==0.9.0", ("vllm",), [1]),
        ("verl[cupy_cu130,vllm]==0.9.1", ("cupy-cu130", "vllm"), []),
        ("verl[cupy-cu130]<0.9.1", (), [1]),
        ("verl[cupy-cu130]>=0.9.0", ("cupy-cu130",), []),  # a release that is admitted has it
        ("verl[unheard-of]==0.9.0", ("unheard-of",), []),  # whose requirements are not harvested
    ],
)
def test_an_extra_that_no_admitted_release_has_is_named(
    project: Path, text: str, extras: tuple[str, ...], lines: list[int]
) -> None:
    imported = run(project, text, cuda="cu128")
    assert [each.place.line for each in imported.omissions] == lines
    assert {each.component.package: each.extras for each in imported.cell.requirements}["verl"] == extras


@pytest.mark.parametrize(
    "packages", ["trl\n", "accelerate\n", "flash-attn\n", "vllm<=0.6.3\n", "torch>=2\n", "onnxruntime-gpu"]
)
def test_an_unknown_cuda_is_a_question_with_two_ways_to_answer(project: Path, packages: str) -> None:
    with pytest.raises(ProjectFileError) as raised:
        run(project, packages)
    assert raised.value.code == "project-cuda-unknown"
    assert raised.value.fix and "--cuda" in raised.value.fix and "--gpu" in raised.value.fix
    assert run(project, packages, cuda="cu128").cell.cuda == "cu128"
    imported = run(project, packages, gpu="H100")
    assert imported.platform.gpus == ("sm_90",) and imported.cell.cuda != "cpu"


def test_a_gpu_that_no_matrix_has_is_refused(project: Path) -> None:
    with raises("usage-unknown-gpu"):
        run(project, "torch==2.8.0\n", gpu="H1000")


@pytest.mark.parametrize(
    ("statement", "gpus"),
    [
        ('ENV TORCH_CUDA_ARCH_LIST="9.0"', ("sm_90",)),
        ('ARG TORCH_CUDA_ARCH_LIST="7.0;8.0 9.0+PTX"', ("sm_80", "sm_90")),  # torch has no build for sm_70
        ("RUN export TORCH_CUDA_ARCH_LIST=12.1 && make", ("sm_121",)),
        ("RUN TORCH_CUDA_ARCH_LIST='8.9' pip install einops", ("sm_89",)),
        ("RUN true", ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")),
    ],
)
def test_a_list_of_architectures_states_the_gpus(project: Path, statement: str, gpus: tuple[str, ...]) -> None:
    text = f"FROM nvidia/cuda:12.8.1-devel-ubuntu22.04\nRUN pip install trl==0.24.0\n{statement}\n"
    assert run(project, text, file="Dockerfile").platform.gpus == gpus


@pytest.mark.parametrize(
    ("base", "command", "python"),
    [
        ("python:3.12-slim", "true", "3.12"),
        ("anyscale/ray:2.57.0-py312-cu130", "true", "3.12"),
        ("nvcr.io/nvidia/pytorch:25.05-py3", "true", "3.12"),
        ("nvcr.io/nvidia/pytorch:24.02-py3", "true", "3.10"),
        ("nvidia/cuda:12.8.1-devel-ubuntu22.04", "apt-get install -y python3.12 python3.12-venv", "3.12"),
        ("nvidia/cuda:12.8.1-devel-ubuntu22.04", "conda create -n x python=3.10", "3.10"),
        ("nvidia/cuda:12.8.1-devel-ubuntu22.04", "uv venv --python 3.13 /opt/v", "3.13"),
        (
            "nvidia/cuda:12.8.1-devel-ubuntu22.04",
            "curl -O https://e.org/Miniconda3-py312_25.1.1-2-Linux-x86_64.sh",
            "3.12",
        ),
        (
            "nvidia/cuda:12.8.1-devel-ubuntu22.04",
            "pip install https://e.org/a-1.0-cp310-cp310-linux_x86_64.whl",
            "3.10",
        ),
        ("python:3.12-slim", "rm -rf /usr/lib/python3.10/dist-packages", "3.12"),
        ("python:3.12-slim", "apt-get install -y python3.10 python3.13", "3.12"),
        ("ubuntu:22.04", "pip install https://e.org/a-1.0-cp38-abi3-manylinux1_x86_64.whl", "3.11"),
    ],
)
def test_a_dockerfile_states_its_python(project: Path, base: str, command: str, python: str) -> None:
    text = f"FROM {base}\nRUN {command}\nRUN pip install numpy\n"
    imported = run(project, text, file="Dockerfile", cuda="cu128")
    assert (imported.cell.python, [name for name in imported.cell.packages if "python" in name]) == (python, [])


def test_a_directory_for_another_platform_is_left_out(project: Path) -> None:
    (project / "pyproject.toml").write_text(OWN_PROJECT)
    imported = run(project, "numpy\n. ; sys_platform == 'win32'\n")
    assert [each.component.package for each in imported.cell.requirements] == ["numpy"]
    assert imported.found.other_platforms == 1


def test_extras_of_a_lock_file_are_compared_normalised(project: Path) -> None:
    (project / "uv.lock").write_text(
        'version = 1\nrequires-python = ">=3.11"\n'
        '[[package]]\nname = "six"\nversion = "99"\nsource = { virtual = "." }\n'
        '[package.optional-dependencies]\nall = [{ name = "six", extra = ["in-fer"] }]\nin-fer = [{ name = "idna" }]\n'
        '[[package]]\nname = "idna"\nversion = "3.10"\nsource = { registry = "https://i.example.org/simple" }\n'
    )
    imported = import_project(session_of(project), project / "uv.lock", "my-rl", Selection(("All",)))
    assert imported.cell.stack and imported.cell.stack.extras == ("all",)
    assert [pin.package for pin in imported.found.pins] == ["idna"]


@pytest.mark.parametrize(
    ("index", "version"),
    [
        ("https://download.pytorch.org/whl/cpu", "2.8.0+cpu"),
        ("https://i.example.org/simple", "2.8.0+cpu"),  # a mirror
        ("https://download.pytorch.org/whl/cu126", "2.8.0+cu126"),
        (PYPI_SIMPLE_ENDPOINT.rstrip("/"), "2.8.0"),
    ],
)
def test_import_and_lock_give_one_answer_about_a_lock_file(
    project: Path, index: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "uv.lock").write_text(
        'version = 1\nrequires-python = ">=3.11"\n'
        '[[package]]\nname = "app"\nversion = "1"\nsource = { virtual = "." }\ndependencies = [{ name = "torch" }]\n'
        f'[[package]]\nname = "torch"\nversion = "{version}"\nsource = {{ registry = "{index}" }}\n'
    )
    imported = import_project(session_of(project), project / "uv.lock", "my-rl", Selection())
    assert imported.answer.answer == "compatible"

    def resolve(*_: object) -> None:
        raise LockError("it is resolved", code="lock-resolved")

    monkeypatch.setattr(make_locks, "lock_cell", resolve)
    session = session_of(project)
    with pytest.raises(LockError) as raised:
        make_locks.resolve_cell(session, session.matrix.select_one("my-rl"), None, LockOptions())
    assert raised.value.code == "lock-resolved"


def test_a_dockerfile_gives_config_and_files(project: Path, golden: Callable[[str, str], None]) -> None:
    (project / "serve.py").write_text("")
    text = """\
FROM nvcr.io/nvidia/pytorch:25.08-py3
RUN pip install trl==0.20.0
LABEL org.acme.team="rl: one"
EXPOSE 8000
COPY serve.py .env /srv/
COPY serve.py /opt/venv/serve.py
ENTRYPOINT ["python", "/srv/serve.py"]
COPY scorer /opt/scorer
RUN echo /opt/scorer/lib > /etc/ld.so.conf.d/scorer.conf && ldconfig
"""
    (project / "scorer" / "lib").mkdir(parents=True)
    (project / "scorer" / "lib" / "libscorer.so").write_text("")
    (project / ".env").write_text("")
    imported = run(project, text, file="Dockerfile")
    golden("import/dockerfile.yaml", imported.path.read_text())
    cell = session_of(project).matrices.matrix.select_one("my-rl")
    assert {each.name: each.value for each in cell.config} == {"entrypoint": ("python", "/srv/serve.py")}
    assert [(each.path, each.source) for each in cell.copies] == [
        ("/opt/scorer", "scorer"), ("/srv/serve.py", "serve.py"),
    ]  # fmt: skip
    assert [each.path for each in cell.ldconfig] == ["/opt/scorer/lib"]
    assert (cell.cuda, [each.port for each in cell.ports]) == ("cu129", ["8000/tcp"])  # the image's CUDA is 13.0
    assert [each.place.line for each in imported.omissions] == [1, 5, 6]


def test_torch_of_a_base_image_gives_way_to_what_a_package_requires(project: Path) -> None:
    text = "FROM nvcr.io/nvidia/pytorch:26.03-py3\nRUN pip install vllm==0.11.0\n"
    imported = run(project, text, file="Dockerfile")
    assert [pin.package for pin in imported.found.pins] == ["vllm"]
    assert imported.cell.cuda == "cu128"  # of the torch 2.8.0 that vllm 0.11.0 requires
    kept = run(project, text.replace("26.03", "25.08"), file="Dockerfile")
    assert [pin.package for pin in kept.found.pins] == ["torch", "vllm"]


def test_a_directory_with_a_pyproject_is_a_component(project: Path) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "app"\n')
    (project / "lib").mkdir()
    imported = run(project, "numpy\n-e .[gpu]\n./lib\n")
    own = {each.component.package: each.own and each.own.path for each in imported.cell.requirements}
    assert own == {"app": ".", "numpy": None}
    assert [(each.place.line, each.is_package) for each in imported.omissions] == [(3, True)]


def test_a_conda_environment_gives_debian_packages(project: Path, golden: Callable[[str, str], None]) -> None:
    text = """\
dependencies:
  - python=3.12
  - pytorch=2.7.1
  - pytorch-cuda=12.6
  - ffmpeg
  - pip:
      - trl==0.20.0
"""
    imported = run(project, text, file="environment.yml")
    golden("import/environment.yaml", imported.path.read_text())
    assert (imported.cell.cuda, imported.cell.python) == ("cu126", "3.12")
    assert list(imported.cell.packages) == ["ffmpeg"]


def test_a_uv_lock_gives_its_overrides(project: Path, golden: Callable[[str, str], None]) -> None:
    text = """\
version = 1
requires-python = ">=3.12"
[manifest]
overrides = [{ name = "numpy", specifier = "<3" }]
[[package]]
name = "app"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "numpy" }]
[[package]]
name = "numpy"
version = "2.3.5"
source = { registry = "https://index.example/simple" }
"""
    imported = run(project, text, file="uv.lock")
    golden("import/uv-lock.yaml", imported.path.read_text())
    assert [(each.package, each.specifier) for each in imported.cell.overrides] == [("numpy", "<3")]
    assert (imported.cell.cuda, imported.cell.python) == ("cpu", "3.12")


@pytest.mark.parametrize(
    ("text", "cuda", "base"),
    [
        ("numpy\n", "cpu", "debian12"),
        ("torch==2.8.0\n", "cu128", "debian12-gpu"),
        ("torch==2.8.0+cpu\n", "cpu", "debian12"),
        ("torch==2.8.0\nflash-attn\n", "cu128", "debian12-gpu"),  # PyPI's build of that torch
        ("vllm==0.11.0\n", "cu128", "debian12-gpu"),  # which requires torch 2.8.0
        ("nvidia-nccl-cu12\n", "cu129", "debian12-gpu"),
        ("jax[cuda12]\n", "cu129", "debian12-gpu"),
        ("--index-url https://download.pytorch.org/whl/cu126/\ntorch>=2.6\n", "cu126", "debian12-gpu"),
        ("torch==2.5.1+cu121\n", "cu124", "debian12-gpu"),
    ],
)
def test_cuda_and_base_follow_from_the_file(project: Path, text: str, cuda: str, base: str) -> None:
    cell = run(project, text).cell
    assert (cell.cuda, cell.base.name) == (cuda, base)


def test_a_cuda_that_the_matrix_lacks_is_reported(project: Path) -> None:
    (omission,) = run(project, "torch==2.5.1+cu121\n").omissions
    assert (omission.place.line, omission.is_package) == (1, False)


@pytest.mark.parametrize("package", ["accelerate", "trl"])  # trl requires accelerate, which requires torch
def test_torch_is_named_where_another_package_would_bring_its_cuda(project: Path, package: str) -> None:
    imported = run(project, f"{package}\n", cuda="cpu")
    torch = next(each for each in imported.cell.requirements if each.component.name == "torch")
    assert torch.index == "pytorch-cpu"
    assert [pin.package for pin in imported.found.pins] == [package]  # the report counts what the file has


def test_an_index_that_is_not_known_is_reported_without_its_password(project: Path) -> None:
    imported = run(project, "-i https://user:secret@index.acme.example/simple\nnumpy\n")
    (omission,) = imported.omissions
    assert omission.place.line == 1
    assert "secret" not in f"{omission}{imported.path.read_text()}"


@pytest.mark.parametrize(
    ("pin", "pyproject", "python"),
    [
        ("3.12.4\n", None, "3.12"),
        ("# why\ncpython-3.13\n", None, "3.13"),
        (None, '[project]\nrequires-python = ">=3.12"\n', "3.12"),
        (None, None, "3.11"),
        ("3.12", '[project]\nrequires-python = ">=3.10,<3.13"\n', "3.12"),
    ],
)
def test_the_python_follows_from_the_files_beside_it(
    project: Path, pin: str | None, pyproject: str | None, python: str
) -> None:
    for name, text in ((".python-version", pin), ("pyproject.toml", pyproject)):
        if text:
            (project / name).write_text(text)
    assert run(project, "numpy\n").cell.python == python


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({".python-version": "pypy3.10\n"}, "project-malformed"),
        ({".python-version": "3.7\n"}, "project-mismatch"),
        ({"pyproject.toml": '[project]\nrequires-python = ">=4"\n'}, "project-mismatch"),
        ({"pyproject.toml": '[project]\nrequires-python = "new"\n'}, "project-malformed"),
        ({"requirements.txt": "# nothing\n"}, "project-malformed"),
        ({"requirements.txt": "-e .\n"}, "project-malformed"),
        ({"requirements.txt": "numpy==1, ==2\n"}, "project-malformed"),
        ({"requirements.txt": b"\xff\xfe"}, "project-unreadable"),
    ],
)
def test_after_an_error_nothing_is_written(project: Path, files: dict[str, str | bytes], code: str) -> None:
    (project / "requirements.txt").write_text("numpy\n")
    for name, content in files.items():
        (project / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ImagegenError) as raised:
        import_project(session_of(project), project / "requirements.txt", "my-rl", Selection())
    assert raised.value.code == code
    assert not (project / "matrices").exists()


@pytest.mark.parametrize(
    ("name", "code"), [("cpu-grpo", "usage-name-taken"), ("own", "usage-name-taken"), ("../x", "usage-name-invalid")]
)
def test_another_image_is_never_replaced(project: Path, name: str, code: str) -> None:
    (project / "matrices").mkdir()
    own = project / "matrices/own.yaml"
    own.write_text("images: {own: {extends: cpu-grpo}}\n")
    with pytest.raises(UsageError) as raised:
        run(project, "numpy\n", name)
    assert raised.value.code == code
    assert [each.name for each in (project / "matrices").iterdir()] == ["own.yaml"]
    assert own.read_text() == "images: {own: {extends: cpu-grpo}}\n"


def test_the_same_command_replaces_its_own_file(project: Path) -> None:
    run(project, "numpy\n")
    assert "scipy" in run(project, "scipy\n").path.read_text()
    assert "override: true" not in (project / "matrices/my-rl.yaml").read_text()


def test_without_a_name_the_directory_gives_it(project: Path) -> None:
    assert run(project, "numpy\n", None).cell.image == "home"


def test_files_outside_the_project_are_named_without_their_directory(project: Path) -> None:
    source = project.parent / "other"
    source.mkdir()
    (source / "requirements.txt").write_text("numpy\n")
    imported = import_project(session_of(project), source / "requirements.txt", "my-rl", Selection())
    assert str(project.parent) not in imported.path.read_text()


def test_init_takes_the_first_file_and_names_the_others(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "requirements.txt", "Dockerfile", "environment.yml"):
        (tmp_path / name).touch()
    source, others = find_file(tmp_path)
    assert source.name == "requirements.txt"
    assert others == ("environment.yml", "pyproject.toml", "Dockerfile")


def test_init_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        find_file(tmp_path)
    assert raised.value.code == "usage-nothing-to-import"


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=40))
def test_a_scalar_is_read_as_the_same_text(text: str) -> None:
    document = parse(Path("x.yaml"), f"a: {entry.scalar(text)}\n".encode())
    assert document.errors == []
    assert document.data == {"a": text}


PACKAGE = """\
[project]
name = "my-app"
version = "0.1"
dependencies = ["numpy"]
[build-system]
requires = ["uv_build"]
build-backend = "uv_build"
"""


def test_a_project_that_is_a_package_is_in_the_image(project: Path, golden: Callable[[str, str], None]) -> None:
    imported = run(project, PACKAGE, file="pyproject.toml")
    golden("import/package.yaml", imported.path.read_text())
    cell = session_of(project).matrices.matrix.select_one("my-rl")
    own = {each.component.name: each.own.path for each in cell.requirements if each.own}
    assert own == {"my-app": "."}
    assert imported.missing == 0


def test_a_package_outside_the_project_is_named(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text(PACKAGE)
    imported = import_project(session_of(project), other / "pyproject.toml", "my-rl", Selection())
    assert [each.component.name for each in imported.cell.requirements] == ["numpy"]
    assert [each.place.line for each in imported.omissions] == [2]
    assert imported.missing == 1


@pytest.mark.fault("Matrices, rules, locks", "a file with so many packages that its entry could not be read", "refused")
def test_an_entry_that_could_not_be_read_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagegen.app.import_project.MAX_SOURCE_FILE", 1000)
    with raises("project-malformed", where=str(project / "requirements.txt")):
        run(project, "".join(f"package-{number}==1.0\n" for number in range(50)))
    assert not list(project.rglob("my-rl.yaml"))


_CONFUSION = ("a component has the name of the project, and no source", "the lock is refused, no index is asked")


@pytest.mark.fault("Matrices, rules, locks", *_CONFUSION)
@pytest.mark.parametrize(
    ("component", "code"),
    [
        ("six: {because: It is ours.}", "dependency-confusion"),
        ('six: {version: "==1.17.0", index: pypi, because: It is ours.}', "dependency-confusion"),
        ("six: {path: ., because: It is ours.}", None),
        ("certifi: {because: It is not ours.}", None),
    ],
)
@pytest.mark.parametrize(
    ("file", "text"),
    [("pyproject.toml", '[project]\nname = "Six"\n'), ("pyproject.toml", '[tool.poetry]\nname = "six"\n')],
)
def test_a_component_named_as_the_project_needs_a_source(
    project: Path, component: str, code: str | None, file: str, text: str
) -> None:
    (project / "matrices").mkdir()
    (project / "matrices" / "my-rl.yaml").write_text(f"{ENTRY}      {component}\n")
    (project / file).write_text(text)
    matrices = session_of(project).matrices
    cell = matrices.matrix.select_one("my-rl")
    if code is None:
        make_locks.lock_request(matrices, cell, LockOptions())
        return
    with raises(code):
        make_locks.lock_request(matrices, cell, LockOptions())


def test_a_declared_component_may_have_the_name_of_the_project(project: Path) -> None:
    (project / "matrices").mkdir()
    (project / "matrices" / "my-rl.yaml").write_text(f"{ENTRY}      trl: {{because: A release of ours.}}\n")
    (project / "pyproject.toml").write_text('[project]\nname = "trl"\n')
    matrices = session_of(project).matrices
    assert make_locks.lock_request(matrices, matrices.matrix.select_one("my-rl"), LockOptions())


@pytest.mark.parametrize(
    ("declaring", "text", "omitted"),
    [("pyproject.toml", '[project]\nname = "six"\n', False), ("setup.cfg", "[metadata]\nname = six\n", True)],
)
def test_a_file_in_a_folder_of_the_project_means_the_project_by_its_name(
    project: Path, declaring: str, text: str, *, omitted: bool
) -> None:
    (project / declaring).write_text(text)
    (project / "requirements").mkdir()
    (project / "requirements" / "dev.txt").write_text("six[all]\ncertifi\n")
    imported = import_project(session_of(project), project / "requirements" / "dev.txt", "my-rl", Selection())
    own = [
        requirement.own is not None
        for requirement in imported.cell.requirements
        if requirement.component.package == "six"
    ]
    assert (own, imported.missing) == (([], 1) if omitted else ([True], 0))


def test_a_package_of_an_index_that_no_matrix_has_is_not_taken_from_another_one(project: Path) -> None:
    sources = '[tool.uv.sources]\ntorch = {index = "cu126"}\nrewards = {index = "our"}\n'
    indexes = "".join(
        f'[[tool.uv.index]]\nname = "{name}"\nurl = "{url}"\n'
        for name, url in [("cu126", "https://download.pytorch.org/whl/cu126"), ("our", "https://i.example.org/simple")]
    )
    text = f'[project]\nname = "p"\ndependencies = ["torch==2.8.0", "rewards"]\n{sources}{indexes}'
    imported = run(project, text, file="pyproject.toml")
    assert ({pin.package for pin in imported.found.pins}, imported.cell.cuda) == ({"torch"}, "cu126")
    assert [(omission.place.line, omission.is_package) for omission in imported.omissions] == [(3, True)]
