"""One thread for numpy and torch in every test and every process it starts: CI has two cores and many processes.

Two processes run the tests side by side (pytest-xdist): about half of the time a test waits for processes of its own.
"""

import os
from collections.abc import Iterator
from typing import Any

import docker
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from judges.sandbox import AnySandbox, Level, made

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

LEVELS: tuple[Level, ...] = ("namespaces", "docker", "process")

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


class BySharedThings(LoadScopeScheduling):
    """What shares a module's fixtures, or the Docker engine, stays on one of the two processes that run the tests."""

    def _split_scope(self, nodeid: str) -> str:
        module, _, test = nodeid.partition("::")
        level = next((level for level in LEVELS if f"[{level}" in test), "")
        return "docker" if level == "docker" or "docker" in module else f"{module} {level}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return BySharedThings(config, log)


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Any]:
    """The API of the engine at DOCKER_HOST, which has the judges' image: .ci/run starts one where it can."""
    if not os.environ.get("DOCKER_HOST"):
        pytest.skip("no Docker engine: DOCKER_HOST is not set")
    client = docker.from_env(version="auto").api
    yield client
    client.close()


@pytest.fixture(scope="module", params=LEVELS)
def every_sandbox(request: pytest.FixtureRequest) -> Iterator[AnySandbox]:
    """A sandbox of each level that this machine allows, started."""
    level: Level = request.param
    if level == "docker":
        request.getfixturevalue("docker_engine")
    sandbox = made(level)
    try:
        sandbox.start()
        if sandbox.level != level:
            pytest.skip(f"this machine allows no {level}: {sandbox.missing}")
        yield sandbox
    finally:
        sandbox.close()
