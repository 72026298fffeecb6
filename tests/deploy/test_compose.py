"""`docker-compose.yml` and the Dockerfile: valid by the compose specification, complete, and without a secret."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError

ROOT = Path(__file__).parents[2]
SCHEMA = (
    ROOT / "frontend/node_modules/dclint/schemas/compose.schema.json"
)  # the compose specification's, as dclint ships it
SECRETS = ("SECRET_KEY", "KEY_PEPPER", "ENGINE_TOKEN", "POSTGRES_PASSWORD")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """Return the parsed file, merge keys resolved."""
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_file_follows_the_specification(compose: dict[str, Any]) -> None:
    """Every key and value is one that the compose specification allows."""
    Draft7Validator(json.loads(SCHEMA.read_text())).validate(compose)


def test_schema_refuses_a_wrong_file(compose: dict[str, Any]) -> None:
    """The check above can fail: an unknown service key is refused."""
    broken = {**compose, "services": {"web": {**compose["services"]["web"], "replicaz": 3}}}
    with pytest.raises(ValidationError):
        Draft7Validator(json.loads(SCHEMA.read_text())).validate(broken)


def test_every_part_of_the_map_has_a_service(compose: dict[str, Any]) -> None:
    """Each process of the design runs as a service of its own."""
    expected = {"postgres", "valkey", "migrate", "web", "celery", "beat", "controller", "engine", "engine-gpu"}
    assert set(compose["services"]) == expected


def test_engines_are_chosen_by_profile(compose: dict[str, Any]) -> None:
    """The CPU engine asks for no device, the GPU engine reserves one."""
    services = compose["services"]
    assert services["engine"]["profiles"] == ["cpu"]
    assert services["engine-gpu"]["profiles"] == ["gpu"]
    (device,) = services["engine-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert "deploy" not in services["engine"]


def test_every_service_that_stays_up_says_how_it_is_healthy(compose: dict[str, Any]) -> None:
    """A health check, or a reasoned `disable`, for all but the one-shot migration."""
    without = {name for name, service in compose["services"].items() if "healthcheck" not in service}
    assert without == {"migrate"}


def test_named_volumes_are_declared(compose: dict[str, Any]) -> None:
    """Each named volume in use is declared, and none is declared for nothing."""
    used = {mount.split(":")[0] for service in compose["services"].values() for mount in service.get("volumes", [])}
    assert used == set(compose["volumes"])


def test_no_secret_in_the_file(compose: dict[str, Any]) -> None:
    """Secrets come from the environment, and a missing one stops compose with its name."""
    text = (ROOT / "docker-compose.yml").read_text()
    for name in SECRETS:
        assert f"${{{name}:?" in text
    for service in compose["services"].values():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET|PEPPER", key):
                assert str(value).startswith("${"), key


def test_example_environment_names_every_secret_and_holds_none() -> None:
    """`.env.example` has a blank line for each secret."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    for name in SECRETS:
        assert f"{name}=" in lines


def test_dockerfile_has_every_target_that_compose_builds(compose: dict[str, Any]) -> None:
    """Each `build.target` is a stage of the Dockerfile."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    targets = {service["build"]["target"] for service in compose["services"].values() if "build" in service}
    assert targets <= stages


def test_dockerfile_copies_only_paths_that_exist() -> None:
    """No COPY names a path that the repository does not have."""
    text = (ROOT / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


@pytest.mark.parametrize(("service", "target"), [("web", "control"), ("engine", "engine-cpu")])
def test_settings_of_a_service_are_ones_that_the_code_reads(compose: dict[str, Any], service: str, target: str) -> None:
    """A misspelt variable would be ignored in silence; each is one that a config class reads."""
    from engine.config import EngineConfig
    from gateway.config import GatewayConfig
    from gateway.metrics.requests import FOLDER

    fields = GatewayConfig.__dataclass_fields__ if target == "control" else EngineConfig.__dataclass_fields__
    prefix = "" if target == "control" else "ENGINE_"
    known = {f"{prefix}{name.upper()}" for name in fields} | {FOLDER}
    assert set(compose["services"][service]["environment"]) <= known
