"""deploy/compose.yaml and deploy/kubernetes: their linters accept them, and their keys are keys of the bookie."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import bkspark
from bookie_service.settings.arguments import variables
from bookie_service.settings.configuration import load

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OF_THE_ENTRY_POINT = {"zkServers"}
"""Keys that deploy/entrypoint.sh makes another key of."""


def linter(module: str) -> list[str]:
    """Return the command of a linter; skip the test without it."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module} is installed: pip install {module.replace('_', '-')}")
    return [sys.executable, "-m", module]


def accepted(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())  # type: ignore[no-any-return]


def objects() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def pod_specs() -> dict[str, dict[str, Any]]:
    kinds = ("Deployment", "StatefulSet")
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in objects() if each["kind"] in kinds}


def test_yamllint_accepts_every_file() -> None:
    accepted([*linter("yamllint"), "--strict", "--config-file", str(DEPLOY / ".yamllint"), str(DEPLOY)])


def test_the_compose_file_fits_the_schema_of_compose() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    accepted([*linter("check_jsonschema"), *schema, str(DEPLOY / "compose.yaml")])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_manifest_fits_the_schema_of_kubernetes(path: Path) -> None:
    """Strictly: a field that Kubernetes does not know is an error."""
    accepted([*linter("kubernetes_validate"), "--strict", str(path)])


def settings(environment: dict[str, str]) -> list[tuple[str, str]]:
    return [pair for pair in variables(environment) if pair[0] not in OF_THE_ENTRY_POINT]


def test_the_keys_of_the_manifests_are_all_used_by_the_bookie() -> None:
    (config,) = (each["data"] for each in objects() if each["kind"] == "ConfigMap")
    services = compose()["services"]
    for environment in (config, *(services[f"bookie{n}"]["environment"] for n in (1, 2, 3))):
        configuration = load(None, settings(environment))
        assert configuration.unused_keys == ()
        assert configuration.notes == ()
        assert configuration.http.serves_api


def test_the_example_of_a_configuration_file_is_used_whole() -> None:
    configuration = load(DEPLOY / "systemd" / "bookie.conf", [])
    assert configuration.unused_keys == ()
    assert configuration.notes == ()
    assert configuration.http.serves_api
    assert configuration.http.serves_metrics


def test_compose_has_three_bookies_with_names_and_volumes_of_their_own() -> None:
    file = compose()
    bookies = [file["services"][f"bookie{number}"] for number in (1, 2, 3)]
    assert len({bookie["hostname"] for bookie in bookies}) == 3
    volumes = [bookie["volumes"][0].partition(":")[0] for bookie in bookies]
    assert len(set(volumes)) == 3
    assert set(volumes) <= file["volumes"].keys()


def test_prometheus_scrapes_what_compose_runs() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {target for job in scraped for each in job["static_configs"] for target in each["targets"]}
    services = compose()["services"]
    assert targets == {f"{name}:8080" for name in services if name.startswith(("bookie", "autorecovery"))}


def test_the_dashboard_uses_the_data_source_that_is_provisioned() -> None:
    folder = DEPLOY / "grafana"
    source = yaml.safe_load((folder / "provisioning" / "datasources" / "prometheus.yaml").read_text())["datasources"][0]
    assert source["type"] == "prometheus"
    board = json.loads((folder / "dashboards" / "bookies.json").read_text())
    assert {"datasource", "job", "instance"} == {each["name"] for each in board["templating"]["list"]}


def test_files_that_compose_mounts_exist() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).is_dir(), source


def test_pods_run_the_image_of_this_version_as_its_user_without_rights() -> None:
    for name in ("bookie", "autorecovery"):
        spec = pod_specs()[name]
        (container,) = spec["containers"]
        assert container["image"] == f"bkspark-bookie:{bkspark.__version__}"
        assert spec["securityContext"]["runAsUser"] == 10000
        assert spec["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        # A service called bookie would set BOOKIE_PORT=tcp://..., which the entry point takes for a port.
        assert spec["enableServiceLinks"] is False


def test_a_pod_gets_no_more_traffic_than_it_can_serve_and_is_not_killed_in_replay() -> None:
    (container,) = pod_specs()["bookie"]["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == "/api/v1/bookie/is_ready"
    assert container["readinessProbe"]["httpGet"]["path"] == "/api/v1/bookie/is_ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/heartbeat"
    (budget,) = (each for each in objects() if each["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
