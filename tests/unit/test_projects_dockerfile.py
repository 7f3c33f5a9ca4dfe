"""Dockerfiles: stages, variables, shell words and here-documents, and what is recovered of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import ProjectFileError
from imagegen.projects import dockerfile
from imagegen.projects.dockerfile_syntax import Variables, commands, parse
from imagegen.projects.model import MarkerTarget, Recovered
from imagegen.projects.names import KnownImage, cuda_in_name, is_system, known_image
from tests.support.errors import raises
from tests.support.golden import Golden

LINUX = MarkerTarget("3.12.14")
TEXT = """\
# syntax=docker/dockerfile:1
ARG CUDA=12.8.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu22.04 AS base
ENV HF_HOME="/data/hf" PATH=/opt/x:$PATH
ARG VLLM=0.11.0
RUN apt-get update && apt-get install -y --no-install-recommends \\
    git \\
    # a comment
    libibverbs-dev=44.0-2 \\
    && rm -rf /var/lib/apt/lists/*
FROM scratch AS unused
RUN pip install never
FROM base
RUN --mount=type=cache,target=/root/.cache pip3 install --no-cache-dir "torch==2.8.0" \\
      "vllm==${VLLM}" --extra-index-url https://download.pytorch.org/whl/cu128 > /dev/null 2>&1
RUN <<EOF
set -e
python3 -m pip install 'ray[default]>=2.40' # why
if [ -n "$X" ]; then
  pip install apex
fi
EOF
RUN uv pip install --system "math-verify" git+https://token@example.org/b@main#egg=b && make -j
RUN ["pip", "install", "click==8.1"]
RUN bash -c "pip install click==8.2" && pip install $UNSET
COPY . /app
"""


def recover(folder: Path, text: str) -> Recovered:
    (folder / "Dockerfile").write_text(text)
    return dockerfile.read(folder / "Dockerfile", {}).recover(LINUX)


def test_a_search_path_with_a_relative_directory_is_omitted(tmp_path: Path) -> None:
    """An entry would be refused: a matrix takes only absolute directories there."""
    found = recover(tmp_path, "FROM debian:12\nENV LD_LIBRARY_PATH=lib LIBRARY_PATH=/a::/b\n")
    assert {name: value for name, (value, _) in found.env.items()} == {"LIBRARY_PATH": "/a::/b"}
    assert any("LD_LIBRARY_PATH" in each.what for each in found.omissions)


def test_what_is_recovered_and_what_is_not(tmp_path: Path) -> None:
    found = recover(tmp_path, TEXT)
    pins = {pin.package: (pin.specifier, pin.places[0].line) for pin in found.pins}
    assert pins == {
        "click": ("==8.2", 25),
        "math-verify": ("", 23),
        "ray": (">=2.40", 18),
        "torch": ("==2.8.0", 14),
        "vllm": ("==0.11.0", 15),
    }
    assert {name: place.line for name, place in found.debian.items()} == {"git": 7, "libibverbs-dev": 9}
    assert {name: value for name, (value, _) in found.env.items()} == {"HF_HOME": "/data/hf"}
    assert found.cuda and (found.cuda[0], found.cuda[1].line) == ("12.8", 3)
    assert [each.line for each in found.indexes.values()] == [15]
    assert [each.place.line or 0 for each in found.omissions] == [4, 9, 20, 23, 23, 25, 26]
    assert sorted(each.place.line or 0 for each in found.omissions if each.is_package) == [20, 23, 25]
    assert "token" not in str(found.omissions)


def test_comments_of_a_script_are_left_out(tmp_path: Path) -> None:
    text = """\
FROM debian:12
RUN <<"EOF" bash -exu
# It can't move, and "this is open
pip install \\
    numpy # it's why
pip install 'a#b' "# no comment" c#d; # can't
pip install idle\\#x
EOF
RUN pip install click==8.1 'trl#x' # can't
"""
    (tmp_path / "Dockerfile").write_text(text)
    script, last = (each.document or each.pieces for each in parse(text, tmp_path) if each.name == "RUN")
    found = [list(each.words) for pieces in (script, last) for each in commands(pieces, Variables(), tmp_path)]
    assert found == [
        ["pip", "install", "numpy"],
        ["pip", "install", "a#b", "# no comment", "c#d"],
        ["pip", "install", "idle#x"],
        ["pip", "install", "click==8.1", "trl#x"],
    ]
    assert [each.lines[0] for each in commands(script, Variables(), tmp_path)] == [4, 6, 7]


def test_words_that_only_a_shell_knows_are_no_requirements(tmp_path: Path) -> None:
    text = """\
FROM debian:12
RUN pip install "$@" && pip install `cat x` && pip install torch==$(uname -r)
RUN if true; then pip uninstall -y a; fi; pip install numpy
"""
    found = recover(tmp_path, text)
    assert [pin.package for pin in found.pins] == ["numpy"]
    assert {(each.place.line, each.is_package) for each in found.omissions} >= {(2, True)}
    assert not [each for each in found.omissions if each.place.line == 3]


def test_files_of_requirements_are_read_beside_the_dockerfile(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy<2\n")
    found = recover(tmp_path, "FROM debian:12\nRUN pip install -r requirements.txt && pip install -r /other.txt\n")
    assert [pin.package for pin in found.pins] == ["numpy"]
    assert [(each.place.line, each.is_package) for each in found.omissions] == [(2, True)]


@pytest.mark.parametrize(
    ("image", "packages", "cuda"),
    [
        ("nvidia/cuda:13.0.2-devel-ubuntu24.04", {}, "13.0"),
        ("docker.io/vllm/vllm-openai:v0.11.0@sha256:0", {"vllm": "0.11.0"}, None),
        ("lmsysorg/sglang:v0.5.2-cu129", {"sglang": "0.5.2"}, "12.9"),
        ("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel", {"torch": "2.8.0"}, "12.8"),
    ],
)
def test_images_that_are_known_by_their_names(image: str, packages: dict[str, str], cuda: str | None) -> None:
    known = known_image(image, {})
    assert known and (known.packages, known.cuda) == (packages, cuda)
    assert known_image("acme/private:latest", {}) is None


@pytest.mark.parametrize(
    ("image", "cuda"),
    [
        ("anyscale/ray:2.57.0-py312-cu130", "13.0"),
        ("verlai/verl:vemlp-th2.4.0-cu124-vllm0.6.3-ray2.10-te1.7-v0.0.3", "12.4"),
        ("inclusionai/areal:cuda12.9.1-torch2.8.0", "12.9"),
        ("mambaorg/micromamba:jammy-cuda-12.1.0", "12.1"),
        ("registry.example.org/nvidia/cuda:12.4.1-devel-ubuntu22.04@sha256:cu1", "12.4"),
        ("acme/base:cuda-12-8", "12.8"),
        ("acme/base:torch2.6.0cu118", "11.8"),
        ("lmsysorg/sglang:dev-cu13", "13"),
        ("lmsysorg/sglang:dev-cu13-20251201", "13"),
        ("acme/dlc:2.6.0-cpu-py312-ubuntu22.04", "cpu"),
        ("acme/cpuset:1", None),
        ("acme/base:cudnn9.8", None),
        ("acme/accu12:1", None),
        ("nvcr.io/nvidia/pytorch:24.02-py3", None),
    ],
)
def test_a_tag_states_the_cuda_of_an_unknown_image(tmp_path: Path, image: str, cuda: str | None) -> None:
    found = recover(tmp_path, f"FROM {image}\n")
    assert (found.cuda and found.cuda[0]) == cuda
    assert (found.unknown_base is None) == (cuda is not None)


@pytest.mark.parametrize(
    "image",
    [
        "python", "ubuntu", "debian:12-slim", "docker.io/library/python:3.12",
        "public.ecr.aws/docker/library/debian:12",
        "alpine:3.20", "continuumio/miniconda3", "mambaorg/micromamba:1.5.10",
        "ghcr.io/astral-sh/uv:python3.12-bookworm",
        "quay.io/jupyter/scipy-notebook:latest", "gcr.io/distroless/python3-debian12", "scratch",
    ],
)  # fmt: skip
def test_an_image_of_a_system_has_no_cuda(tmp_path: Path, image: str) -> None:
    found = recover(tmp_path, f"FROM {image}\n")
    assert (found.cuda, found.unknown_base) == (None, None)


@given(st.text(st.sampled_from("acdupy-_:./@x123"), max_size=60))
def test_any_name_of_an_image_states_a_cuda_or_nothing(name: str) -> None:
    stated = cuda_in_name(name)
    assert stated is None or stated == "cpu" or re.fullmatch(r"1[1-9](\.\d)?", stated)
    assert is_system(name) in (True, False)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("FROM a\nRUN <<EOF\npip install a\n", 2),
        ("FROM a\nINSTALL b\n", 2),
        ("FROM\n", 1),
        ("RUN pip install a\n", None),
        ("FROM a\nRUN pip install 'a\n", 2),
        ("FROM a\nENV A='b\n", 2),
    ],
)
def test_what_is_no_dockerfile(tmp_path: Path, text: str, line: int | None) -> None:
    with pytest.raises(ProjectFileError) as caught:
        recover(tmp_path, text)
    assert caught.value.code == "project-malformed"
    assert getattr(caught.value.where, "line", 0) == line


def test_another_escape_character(tmp_path: Path) -> None:
    found = recover(tmp_path, "# escape=`\nFROM debian:12\nRUN apt-get install -y `\n  git\n")
    assert list(found.debian) == ["git"]


@given(st.text(alphabet="FROMRUN abc\n\\\"'$({<#;&|EOF=-"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        for each in parse(f"FROM a\nRUN {text}", Path("Dockerfile")):
            list(commands(each.document or each.pieces, Variables(), Path("Dockerfile")))
    except ProjectFileError:
        pass


CONFIG = """\
FROM nvidia/cuda:12.8.1-devel-ubuntu22.04 AS base
CMD ["sleep", "infinity"]
WORKDIR /srv
FROM base
LABEL org.acme.team="rl" com.Acme=no
EXPOSE 8000 6000-6001/udp $PORT
WORKDIR app
COPY --chmod=755 run.sh setup.cfg ./
COPY configs /etc/acme
ADD data.tar.gz /data/
ADD https://example.org/x /x
COPY --from=ghcr.io/acme/tool:1 /tool /usr/bin/tool
COPY missing.txt /tmp
COPY <<EOF /etc/inline
text
EOF
USER acme
ENTRYPOINT ["./run.sh"]
HEALTHCHECK CMD true
RUN rm -rf /etc/acme/old && chmod +x /srv/app/setup.cfg && chmod +x run.sh
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name in ("run.sh", "setup.cfg", "configs/a.yaml", "data.tar.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


def test_config_and_files_are_recovered(context: Path) -> None:
    found = recover(context, CONFIG)
    assert {name: value for name, (value, _) in found.config.items()} == {
        "entrypoint": ("./run.sh",),
        "workdir": ("/srv/app",),
    }
    assert {name: value for name, (value, _) in found.labels.items()} == {"org.acme.team": "rl"}
    assert not found.ports  # a variable of the line has no value
    assert {path: source.relative_to(context).as_posix() for path, (source, _) in found.files.items()} == {
        "/srv/app/run.sh": "run.sh",
        "/srv/app/setup.cfg": "setup.cfg",
        "/etc/acme": "configs",
    }
    # Of line 8, the mode of one of two files; of line 20, two of the commands.
    assert [each.place.line for each in found.omissions] == [5, 6, 8, 10, 11, 12, 13, 14, 17, 19, 20, 20]


@pytest.mark.parametrize(
    ("text", "config", "lines"),
    [
        ("CMD python x.py\n", {"cmd": ("/bin/sh", "-c", "python x.py")}, []),
        ('SHELL ["bash", "-lc"]\nCMD a $B\n', {"cmd": ("bash", "-lc", "a $B")}, []),
        ('CMD ["a"]\nENTRYPOINT ["b"]\n', {"cmd": ("a",), "entrypoint": ("b",)}, []),
        ('ENTRYPOINT ["b"]\nENTRYPOINT []\nCMD []\n', {}, []),
        ("USER 1000:100\n", {"user": ("1000:100",)}, []),
        ("USER acme\nUSER root\n", {}, []),
        ("WORKDIR /\n", {}, [2]),
        ('CMD ["a\\nb"]\n', {}, [2]),
    ],
)
def test_the_last_instruction_counts(
    context: Path, text: str, config: dict[str, tuple[str, ...]], lines: list[int]
) -> None:
    found = recover(context, f"FROM python:3.12\n{text}")
    assert {name: value for name, (value, _) in found.config.items()} == config
    assert [each.place.line for each in found.omissions] == lines


def test_a_base_image_whose_config_is_not_known(context: Path) -> None:
    text = 'FROM vllm/vllm-openai:v0.11.0\nCMD ["--model", "m"]\nCOPY run.sh .\nWORKDIR x\nWORKDIR /x\nCOPY run.sh .\n'
    found = recover(context, text)
    assert list(found.config) == ["workdir"]
    assert list(found.files) == ["/x/run.sh"]
    assert [each.place.line for each in found.omissions] == [2, 3, 4]


def test_ports_and_patterns(context: Path) -> None:
    found = recover(context, "FROM debian:12\nEXPOSE 8000/TCP 53/udp 7000-7001 x 0\nCOPY *.cfg *.sh /opt/acme/\n")
    assert sorted(found.ports) == ["53/udp", "7000", "7001", "8000"]
    assert sorted(found.files) == ["/opt/acme/run.sh", "/opt/acme/setup.cfg"]
    assert [each.place.line for each in found.omissions] == [2, 2]


def test_directories_that_copy_brought_are_packages(context: Path) -> None:
    (context / "pyproject.toml").write_text('[project]\nname = "Acme.RL"\n')
    (context / "requirements.txt").write_text("numpy<2\n")
    text = """\
FROM debian:12
WORKDIR /app
COPY . .
RUN pip install -r /app/requirements.txt && pip install -e ".[vllm]"
RUN git clone https://example.org/b /b && cd /b && pip install -e . -r requirements.txt
"""
    found = recover(context, text)
    own = next(pin for pin in found.pins if pin.directory)
    assert (own.package, own.extras, own.directory, own.places[0].line) == ("acme-rl", ("vllm",), context, 4)
    assert [pin.package for pin in found.pins] == ["acme-rl", "numpy"]
    assert [each.place.line for each in found.omissions if each.is_package] == [5, 5]


def test_an_image_of_nvidia(context: Path) -> None:
    known = KnownImage({"torch": "2.7.0"}, "12.6", note=("what", "why", "fix"))
    (context / "Dockerfile").write_text("FROM nvcr.io/nvidia/pytorch:25.03-py3\n")
    read = dockerfile.read(context / "Dockerfile", {"nvcr.io/nvidia/pytorch:25.03-py3": known})
    found = read.recover(LINUX)
    assert [(pin.package, pin.specifier) for pin in found.pins] == [("torch", "==2.7.0")]
    assert [(each.place.line, each.what) for each in found.omissions] == [(1, "what")]


STAGES = """\
FROM debian:12 AS base
RUN pip install click==8.1
FROM base AS build
FROM base AS Test
RUN pip install pytest
FROM base AS tools
FROM base
RUN pip install idle
FROM base AS release
COPY --from=build /x /x
RUN --mount=from=tools,target=/t pip install rich
"""


@pytest.mark.parametrize(
    ("target", "packages", "others"),
    [
        ("", ["click", "rich"], ("test", "4")),
        ("release", ["click", "rich"], ("test", "4")),
        ("TEST", ["click", "pytest"], ("4", "release")),
        ("4", ["click", "idle"], ("test", "release")),
        ("base", ["click"], ("test", "4", "release")),
    ],
)
def test_a_stage_is_chosen_as_docker_does(
    tmp_path: Path, target: str, packages: list[str], others: tuple[str, ...]
) -> None:
    (tmp_path / "Dockerfile").write_text(STAGES)
    found = dockerfile.read(tmp_path / "Dockerfile", {}, target).recover(LINUX)
    assert [pin.package for pin in found.pins] == packages
    assert found.other_stages == others


@pytest.mark.parametrize("target", ["other", "6", "-1"])
def test_a_stage_that_is_not_there(tmp_path: Path, target: str) -> None:
    (tmp_path / "Dockerfile").write_text(STAGES)
    with raises("usage-unknown-stage") as raised:
        dockerfile.read(tmp_path / "Dockerfile", {}, target).recover(LINUX)
    assert "release" in str(raised.value.fix)


LOADER = """\
FROM debian:bookworm
COPY lib /opt/scorer/lib
COPY lib/libown.so /usr/local/lib/
COPY loader.conf /etc/ld.so.conf.d/own.conf
RUN {command}
RUN ldconfig
"""


@pytest.mark.parametrize(
    "command",
    [
        "echo /opt/scorer/lib > /etc/ld.so.conf.d/x.conf",
        'echo "/opt/scorer/lib" >> /etc/ld.so.conf && ldconfig',
        "printf '%s\\n' /opt/scorer/lib > /etc/ld.so.conf.d/x.conf",
        "printf '/usr/lib\\n/opt/scorer/lib # ours\\n' > /etc/ld.so.conf.d/x.conf",
        "echo -e '/usr/lib\\n/opt/scorer/lib' | sudo tee -a /etc/ld.so.conf.d/x.conf > /dev/null",
        "sh -c 'echo /opt/scorer/lib > /etc/ld.so.conf.d/x.conf'",
        "ldconfig /opt/scorer/lib",
        "cat > /etc/ld.so.conf.d/x.conf <<EOF\n/opt/scorer/lib\nEOF",
    ],
)
def test_directories_of_the_loader_are_recovered(tmp_path: Path, command: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libown.so").write_text("")
    (tmp_path / "loader.conf").write_text("# none\n/usr/lib/x86_64-linux-gnu\n/opt/scorer/lib\n")
    found = recover(tmp_path, LOADER.format(command=command))
    assert {path: place.line for path, place in found.ldconfig.items()} == {
        "/opt/scorer/lib": 4,  # the first that names it
        "/usr/local/lib": 6 + 2 * command.count("\n") // 2,
    }
    assert found.files.keys() == {"/opt/scorer/lib", "/usr/local/lib/libown.so"}
    assert found.omissions == ()
    alone = recover(
        tmp_path, LOADER.format(command=command).replace("COPY loader.conf /etc/ld.so.conf.d/own.conf\n", "")
    )
    assert alone.ldconfig["/opt/scorer/lib"].line == 4


def test_directories_of_the_loader_that_no_file_is_copied_to(tmp_path: Path, golden: Golden) -> None:
    text = """\
FROM debian:bookworm
RUN echo /usr/local/lib > /etc/ld.so.conf.d/a.conf && ldconfig
RUN echo /usr/local/cuda/lib64 > /etc/ld.so.conf.d/b.conf
RUN echo $UNSET/lib > /etc/ld.so.conf.d/c.conf
RUN echo "include more" >> /etc/ld.so.conf
RUN if true; then echo /opt/lib > /etc/ld.so.conf.d/d.conf; fi
RUN cat /proc/paths > /etc/ld.so.conf.d/e.conf
COPY missing.conf /etc/ld.so.conf.d/
"""
    found = recover(tmp_path, text)
    assert found.ldconfig == {}
    assert [each.place.line for each in found.omissions] == [3, 4, 5, 6, 7, 8]
    golden.check(found.omissions[1].why)


def test_each_clone_that_is_installed_is_one_missing_package(tmp_path: Path) -> None:
    text = """\
FROM debian:12
RUN git clone https://e.org/a/one && cd one && pip install -e .
RUN git clone --depth 1 https://e.org/a/two.git && cd two && pip install .
RUN git clone https://e.org/a/data
RUN pip install numpy
"""
    recovered = recover(tmp_path, text)
    packages = [(omission.place.line, omission.is_package) for omission in recovered.omissions]
    assert packages == [(2, True), (3, True), (4, False)]
    assert all(
        name in omission.what for omission, name in zip(recovered.omissions, ("one", "two", "data"), strict=True)
    )


def test_an_uninstalled_package_is_not_recovered(tmp_path: Path) -> None:
    text = """\
FROM pytorch/pytorch:2.8.0-cuda12.6-cudnn9-devel
RUN pip install xformers==0.0.32 numpy && pip uninstall -y xformers torch
"""
    assert [pin.package for pin in recover(tmp_path, text).pins] == ["numpy"]


@pytest.mark.parametrize(
    ("command", "pins", "missing"),
    [
        ("/opt/sim/python.sh -m pip install vllm==0.11.0", ["numpy", "vllm"], 0),
        ("conda install -y faiss-gpu", ["numpy"], 1),
        ("micromamba create -n x python=3.12 faiss-gpu", ["numpy"], 1),
        ("conda clean -a", ["numpy"], 0),
        ('A=1 pip install "b @ git+https://e.org/b@${SHA}"', ["numpy"], 1),
    ],
)
def test_other_installers_count(tmp_path: Path, command: str, pins: list[str], missing: int) -> None:
    recovered = recover(tmp_path, f"FROM debian:12\nARG SHA={'1' * 40}\nRUN pip install numpy\nRUN {command}\n")
    assert [pin.package for pin in recovered.pins] == pins
    assert sum(omission.is_package for omission in recovered.omissions) == missing


def test_quotes_are_not_a_part_of_the_base(tmp_path: Path) -> None:
    recovered = recover(tmp_path, 'ARG B="nvidia/cuda:12.8.1-devel-ubuntu22.04"\nFROM "${B}"\nRUN pip install numpy\n')
    assert recovered.cuda is not None and recovered.cuda[0] == "12.8"


def test_a_stage_without_packages_names_the_stages_that_may_have_them(tmp_path: Path) -> None:
    text = "FROM debian:12 AS build\nRUN pip install numpy\nFROM debian:12\nCOPY --from=build /opt/venv /opt/venv\n"
    assert recover(tmp_path, text).other_stages == ("build",)
