"""The rules of the house that no other test would miss: skips, services, the compose file, the wheel."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from config import probe
from tests import conftest

ROOT = Path(__file__).resolve().parents[2]


def finished_session(*, skipped: int) -> Any:
    reporter = SimpleNamespace(stats={"skipped": [object()] * skipped}, write_line=lambda *_, **__: None)
    plugins = SimpleNamespace(get_plugin=lambda _name: reporter)
    return SimpleNamespace(config=SimpleNamespace(pluginmanager=plugins), exitstatus=0)


@pytest.mark.parametrize(("under_ci", "skipped", "status"), [(True, 1, 1), (True, 0, 0), (False, 1, 0)])
def test_a_skipped_test_fails_the_run_under_ci_alone(
    monkeypatch: pytest.MonkeyPatch, under_ci: bool, skipped: int, status: int
) -> None:
    monkeypatch.setattr(conftest, "UNDER_CI", under_ci)
    session = finished_session(skipped=skipped)

    conftest.pytest_sessionfinish(session, 0)

    assert session.exitstatus == status


def test_a_service_that_is_missing_is_named_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe.problem(f"redis://127.0.0.1:{port}/0") is None

    said = probe.problem(f"redis://127.0.0.1:{port}/0")
    assert said is not None
    assert said.startswith(f"No redis service at 127.0.0.1:{port}")


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    services: dict[str, Any] = loaded["services"]
    return services


def test_the_compose_file_runs_the_production_shape() -> None:
    services = compose()

    assert set(services) == {"postgres", "redis", "migrate", "web", "worker", "beat"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert all(
        services[name]["environment"]["DATABASE_URL"].startswith("postgres://")
        for name in ("migrate", "web", "worker", "beat")
    )


def test_the_compose_file_keeps_what_redis_was_given() -> None:
    command = " ".join(compose()["redis"]["command"])

    assert "--maxmemory-policy noeviction" in command
    assert "--appendonly yes" in command


@pytest.mark.parametrize("lock", ["runtime.txt", "dev.txt"])
def test_a_lock_names_no_index_and_hashes_everything(lock: str) -> None:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()

    assert not [line for line in lines if "://" in line or line.startswith("-")]
    pinned = [number for number, line in enumerate(lines) if "==" in line and line[0].isalnum()]
    assert pinned
    assert all(lines[number + 1].strip().startswith("--hash=sha256:") for number in pinned)
