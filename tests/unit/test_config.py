"""Settings come from where pip, uv and XDG users expect, and from nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import UsageError
from tests.support.errors import raises


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")}


def pip_conf(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def index(env: dict[str, str]) -> str | None:
    return Settings.from_environment(env).index_urls.get("pypi")


def test_later_files_of_pip_win_and_variables_win_over_all(env: dict[str, str], tmp_path: Path) -> None:
    env["XDG_CONFIG_DIRS"] = f"{tmp_path}/first:{tmp_path}/second"
    for number, folder in enumerate(("first/pip", "second/pip", ".pip", ".config/pip")):
        pip_conf(tmp_path / folder / "pip.conf", f"[global]\nindex-url = https://{number}.test/simple\n")
        assert index(env) == f"https://{number}.test/simple"
    named = pip_conf(tmp_path / "named.conf", "[global]\nindex-url = https://named.test/simple\n")
    assert index({**env, "PIP_CONFIG_FILE": str(named)}) == "https://named.test/simple"
    assert index({**env, "PIP_INDEX_URL": "https://variable.test/simple"}) == "https://variable.test/simple"


def test_a_named_file_takes_the_place_of_the_users(env: dict[str, str], tmp_path: Path) -> None:
    pip_conf(tmp_path / ".config/pip/pip.conf", "[global]\nindex-url = https://user.test/simple\n")
    named = pip_conf(tmp_path / "named.conf", "[global]\n")
    assert index(env) == "https://user.test/simple"
    assert index({**env, "PIP_CONFIG_FILE": str(named)}) != "https://user.test/simple"
    assert index({**env, "PIP_CONFIG_FILE": str(tmp_path / "absent")}) == "https://user.test/simple"


def test_pips_way_to_say_no_files_at_all(env: dict[str, str], tmp_path: Path) -> None:
    env["XDG_CONFIG_DIRS"] = str(tmp_path / "site")
    for folder in ("site/pip", ".config/pip"):
        pip_conf(tmp_path / folder / "pip.conf", "[global]\nindex-url = https://mirror.test/simple\n")
    assert index({**env, "PIP_CONFIG_FILE": os.devnull}) is None


def test_keys_are_spelled_as_pip_lets_them(env: dict[str, str], tmp_path: Path) -> None:
    text = "[global]\nindex_url = https://mirror.test/simple\nFIND-LINKS =\n    /wheels/a\n    /wheels/b%20c\n"
    pip_conf(tmp_path / ".config/pip/pip.conf", text)
    settings = Settings.from_environment(env)
    assert settings.index_urls["pypi"] == "https://mirror.test/simple"
    assert settings.find_links == ("/wheels/a", "/wheels/b%20c")


def test_a_config_dirs_variable_that_is_empty_is_no_variable(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_conf(tmp_path / "pip" / "pip.conf", "[global]\nindex-url = https://here.test/simple\n")
    monkeypatch.chdir(tmp_path)
    assert index({**env, "XDG_CONFIG_DIRS": ""}) != "https://here.test/simple"


@pytest.mark.parametrize("text", ["index-url = x\n", "[global]\na = 1\na = 2\n", "[global]\n\xff"])
def test_a_file_that_pip_could_not_read_is_named(env: dict[str, str], tmp_path: Path, text: str) -> None:
    file = tmp_path / ".config/pip/pip.conf"
    pip_conf(file, "").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        Settings.from_environment(env)
    assert str(file) in str(caught.value)


def test_places_are_absolute_since_programs_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_environment({"XDG_CACHE_HOME": "cache"}).store == tmp_path / "cache/imagegen/store"


def test_a_team_names_its_wheelhouse(env: dict[str, str]) -> None:
    assert Settings.from_environment(env).wheelhouse is None
    assert Settings.from_environment({**env, "IMAGEGEN_WHEELHOUSE": ""}).wheelhouse is None
    named = Settings.from_environment({**env, "IMAGEGEN_WHEELHOUSE": "ghcr.io/team/wheels"})
    assert named.wheelhouse == "ghcr.io/team/wheels"


def test_without_a_home_there_is_no_store() -> None:
    with raises("usage-no-store"):
        Settings.from_environment({})
