"""Deployment files: their form, what they name, and their processes by hand on a PostgreSQL server."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import dagster as dg
import pytest
import yaml
from dagster._core.storage.tags import GRPC_INFO_TAG
from pydantic import BaseModel, ConfigDict

from navi_pipeline.lib.studies.trial_queue import TrialQueue
from tests.pipeline.deployment import DEPLOY, ROOT, SERVICES, Deployment
from tests.pipeline.postgres import binaries
from tests.pipeline.studies.small_studies import complete_by, small_study

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
PAGE = (ROOT / "docs/operate/deploy.md").read_text()


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Build(Strict):
    context: str
    dockerfile: str
    args: dict[str, str] = {}


class Healthcheck(Strict):
    test: list[str]
    interval: str
    timeout: str
    retries: int


class Dependency(Strict):
    condition: Literal["service_started", "service_healthy"]


class Service(Strict):
    """The part of the Compose specification that the file uses."""

    image: str
    build: Build | None = None
    hostname: str | None = None
    command: list[str] | None = None
    environment: dict[str, str] = {}
    volumes: list[str] = []
    ports: list[str] = []
    restart: Literal["unless-stopped"]
    depends_on: dict[str, Dependency] = {}
    healthcheck: Healthcheck | None = None
    shm_size: str | None = None


def test_compose_file_has_the_services_and_names_only_what_exists():
    services = {name: Service.model_validate(given) for name, given in SERVICES.items()}
    assert set(services) == {"postgres", "code", "webserver", "daemon", "worker"}
    for service in services.values():
        for other, dependency in service.depends_on.items():
            assert services[other].healthcheck is not None or dependency.condition != "service_healthy"
        for volume in service.volumes:
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]
        if service.build is not None:
            assert (DEPLOY / service.build.context / service.build.dockerfile).is_file()
            assert {f"ARG {name}" for name in service.build.args} <= {
                line.split("=")[0] for line in DOCKERFILE.split("\n")
            }
        assert all(port.startswith("127.0.0.1:") for port in service.ports)
    more = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())
    assert set(more["services"]) <= set(services)


def test_every_variable_of_the_compose_file_is_explained():
    texts = [(DEPLOY / name).read_text() for name in ("compose.yaml", "compose.gpu.yaml")]
    used = set(re.findall(r"\$\{(\w+)", "".join(texts)))
    assert used and {name for name in used if f"`{name}`" not in PAGE} == set()


@pytest.mark.parametrize("service", [name for name in SERVICES if name not in ("postgres", "worker")])
def test_command_of_a_service_is_installed(service):
    for command in (
        SERVICES[service]["command"],
        SERVICES[service].get("healthcheck", {}).get("test", ["", "dagster"])[1:],
    ):
        assert (Path(sys.executable).parent / command[0]).exists(), command


def test_image_copies_what_exists_and_is_not_ignored():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    kept = [line[1:] for line in ignored if line.startswith("!")]
    sources = [word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.M) for word in line.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, name) or name.startswith(f"{source}/") for name in kept), source
    for name in re.findall(r"dagster_home/\S+\.yaml", DOCKERFILE):
        assert (ROOT / name).is_file()
    # Links within the package lead to folders that are copied too.
    assert {link.resolve().name for link in (ROOT / "navi_pipeline").iterdir() if link.is_symlink()} <= set(sources)


def test_helm_values_agree_with_the_settings_of_dagster():
    values = yaml.safe_load((DEPLOY / "helm-values.yaml").read_text())
    settings = yaml.safe_load((ROOT / "dagster_home" / "dagster.yaml").read_text())
    daemon, (deployment,) = values["dagsterDaemon"], values["dagster-user-deployments"]["deployments"]
    assert daemon["runMonitoring"]["maxResumeRunAttempts"] == settings["run_monitoring"]["max_resume_run_attempts"]
    assert not daemon["runRetries"]["enabled"]  # the chart would write a second section
    for name, section in values["additionalInstanceConfig"].items():
        assert section == settings[name]
    assert values["concurrency"]["pools"]["granularity"] == settings["concurrency"]["pools"]["granularity"]
    assert deployment["dagsterApiGrpcArgs"] == SERVICES["code"]["command"][-2:]
    assert {mount["name"] for mount in deployment["volumeMounts"]} == {
        volume["name"] for volume in deployment["volumes"]
    }
    version = re.search(r'"dagster==([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert f"--version {version}" in PAGE and f"--version {version}" in (DEPLOY / "helm-values.yaml").read_text()


@dg.job
def nothing():
    pass


LAUNCH = """mutation Launch($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus
  locationOrLoadError { __typename } } } } }"""
STATUS = "query Status($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
DAEMONS = "{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } } }"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_services_by_hand_execute_a_run_and_survive_backup_and_restore(postgres_server, tmp_path, monkeypatch):
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[postgres]')")
    pytest.importorskip("dagster_postgres", reason="dagster-postgres is not installed (pip install -e '.[postgres]')")
    dagster_home, programs = tmp_path / "dagster", binaries()
    dagster_home.mkdir()
    (dagster_home / "dagster.yaml").write_text(
        "".join((ROOT / name).read_text() for name in re.findall(r"dagster_home/\S+\.yaml", DOCKERFILE))
    )
    reached = ["-h", str(postgres_server), "-U", "navi"]

    def sql(*statements):
        with psycopg.connect(host=str(postgres_server), user="navi", dbname="postgres", autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    sql("create database navi")
    subprocess.run([programs / "psql", *reached, "-q", "-d", "navi", "-f", DEPLOY / "databases.sql"], check=True)
    monkeypatch.setenv("DAGSTER_HOME", str(dagster_home))
    monkeypatch.setenv("NAVI_DAGSTER_DATABASE", f"postgresql+psycopg2://navi@/navi?host={postgres_server}")
    monkeypatch.setenv("NAVI_STUDY_STORAGE", f"postgresql+psycopg://navi@/studies?host={postgres_server}")
    config = small_study("kept", trials=2)
    with TrialQueue(config) as queue:
        complete_by(queue)

    services = Deployment(tmp_path, dict(os.environ))
    try:
        services.start("code")
        health = [
            str(Path(sys.executable).parent / "dagster"),
            "api",
            "grpc-health-check",
            "-p",
            services.ports["4000"],
        ]
        services.until("code location", lambda: subprocess.run(health, capture_output=True).returncode == 0)
        services.start("webserver", "daemon")

        def loaded():
            (location,) = services.ask(LOCATIONS)["workspaceOrError"]["locationEntries"]
            return (
                location["loadStatus"] == "LOADED"
                and location["locationOrLoadError"]["__typename"] == "RepositoryLocation"
            )

        services.until("location in the UI", loaded)
        selector = {
            "repositoryLocationName": "navi", "repositoryName": "__repository__", "jobName": "__ASSET_JOB",
            "assetSelection": [{"path": ["warehouse"]}],
        }  # fmt: skip
        launched = services.ask(LAUNCH, params={"selector": selector, "mode": "default", "runConfigData": "{}"})
        assert launched["launchRun"]["__typename"] == "LaunchRunSuccess", launched
        run_id = launched["launchRun"]["run"]["runId"]

        def status():
            return services.ask(STATUS, id=run_id)["runOrError"]["status"]

        services.until("end of the run", lambda: status() in ("SUCCESS", "FAILURE", "CANCELED"))
        assert status() == "SUCCESS"
        # A run that was under way when the container of the code location was started again holds no place for ever.
        with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
            for port, health in ((int(services.ports["4000"]), "NOT_FOUND"), (9, "RUNNING")):
                tags = {GRPC_INFO_TAG: json.dumps({"host": "127.0.0.1", "port": port})}
                lost = instance.create_run_for_job(nothing, tags=tags, status=dg.DagsterRunStatus.STARTED)
                assert instance.run_launcher.check_run_worker_health(lost).status.name == health
                instance.report_run_failed(lost)
        daemons = services.ask(DAEMONS)["instance"]["daemonHealth"]["allDaemonStatuses"]
        assert {one["daemonType"] for one in daemons if one["required"] and not one["healthy"]} == set()
    finally:
        services.stop()

    for name in ("navi", "studies"):
        with psycopg.connect(host=str(postgres_server), user="navi", dbname=name) as connection:
            # Why there are two databases.
            assert connection.execute("select count(*) from alembic_version").fetchone() == (1,)
        file = tmp_path / f"{name}.dump"
        subprocess.run([programs / "pg_dump", *reached, "-Fc", "-f", file, name], check=True)
        sql(f"drop database {name} with (force)", f"create database {name}")
        subprocess.run([programs / "pg_restore", *reached, "--clean", "--if-exists", "-d", name, file], check=True)
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert instance.get_run_by_id(run_id).status == dg.DagsterRunStatus.SUCCESS
        assert instance.get_latest_materialization_event(dg.AssetKey("warehouse")) is not None
    with TrialQueue(config) as queue:
        assert queue.left() == 0


def test_compose_command_accepts_the_file():
    """Docker's own parser, where its compose plugin is installed; it needs no running engine."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    files = ["-f", DEPLOY / "compose.yaml", "-f", DEPLOY / "compose.gpu.yaml"]
    made = subprocess.run(
        [docker, "compose", *files, "config", "-q"],
        capture_output=True,
        text=True,
        env=os.environ | {"NAVI_PASSWORD": "x"},
    )
    assert made.returncode == 0, made.stderr
