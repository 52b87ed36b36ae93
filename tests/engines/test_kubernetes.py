"""The manifests of engines/kubernetes, as `kubectl kustomize` renders them, and the Dockerfile.

No cluster has seen them: what is checked is their structure, and that they and the program agree.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
import yaml

from p2psgd.base.environment import check_environment
from p2psgd.cli.app import app
from p2psgd.net import tls
from p2psgd.node.stopping import DRAIN_TIMEOUT_S
from tests import DEADLINE_S
from tests.certificates import Certificates
from tests.daemons import P2PSGD
from tests.engines.pages import PROGRAM, blocks_of, path_with
from tests.operations.machines import CHECKOUT

FOLDER: Final = CHECKOUT / "engines" / "kubernetes"
LABELS: Final = {"app.kubernetes.io/name": "p2psgd"}
Manifest = dict[str, Any]


def render(overlay: str) -> dict[str, Manifest]:
    """Return the objects of an overlay, by kind."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / overlay)],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found)
    return by_kind


def pod_of(objects: dict[str, Manifest]) -> Manifest:
    spec: Manifest = objects["StatefulSet"]["spec"]["template"]["spec"]
    return spec


def node_of(objects: dict[str, Manifest]) -> Manifest:
    (container,) = pod_of(objects)["containers"]
    assert container["name"] == "node"
    return dict(container)


def variables_of(objects: dict[str, Manifest]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in node_of(objects)["env"]}


def render_with_cert_manager(place: Path) -> dict[str, Manifest]:
    """Return the objects of base with the component, by a kustomization as a user writes it."""
    folders = {name: os.path.relpath(FOLDER / name, place) for name in ("base", "cert-manager")}
    words = {"resources": [folders["base"]], "components": [folders["cert-manager"]]}
    (place / "kustomization.yaml").write_text(yaml.dump(words))
    return render(str(place))


@pytest.fixture(params=["base", "spot"])
def objects(request: pytest.FixtureRequest) -> dict[str, Manifest]:
    return render(request.param)


def test_the_objects_fit_the_schemas_of_a_current_kubernetes(
    objects: dict[str, Manifest], tmp_path: Path
) -> None:
    """But the Prometheus operator's PodMonitor, and the ClusterIssuer of cert-manager."""
    schemas: Any = pytest.importorskip("kubernetes_validate", reason="needs make .venv/.test-engines")
    version = schemas.latest_version()
    assert tuple(map(int, version.split(".")[:2])) >= (1, 37)
    for kind in objects.keys() - {"PodMonitor"}:
        schemas.validate(objects[kind], version, strict=True)
    schemas.validate(render_with_cert_manager(tmp_path)["StatefulSet"], version, strict=True)
    node_of(objects)["livenessProbe"]["httpget"] = {}
    with pytest.raises(schemas.ValidationError, match="httpget"):
        schemas.validate(objects["StatefulSet"], version, strict=True)


def test_nodes_find_each_other_by_a_headless_service_before_they_are_ready(
    objects: dict[str, Manifest],
) -> None:
    service, nodes = objects["Service"], objects["StatefulSet"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert nodes["spec"]["serviceName"] == service["metadata"]["name"]
    assert nodes["spec"]["podManagementPolicy"] == "Parallel"
    assert f"--peers=dns:{service['metadata']['name']}" in node_of(objects)["args"]


def test_every_selector_means_the_pods_and_no_others(objects: dict[str, Manifest]) -> None:
    """An empty one would mean every pod of the namespace."""
    labels = objects["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert labels == LABELS
    assert objects["Service"]["spec"]["selector"] == LABELS
    assert objects["StatefulSet"]["spec"]["selector"]["matchLabels"] == LABELS
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == LABELS
    assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == LABELS
    if "PodMonitor" in objects:
        assert objects["PodMonitor"]["spec"]["selector"]["matchLabels"] == LABELS


def test_the_number_of_nodes_is_the_same_in_all_places() -> None:
    base, spot = render("base"), render("spot")
    count = base["StatefulSet"]["spec"]["replicas"]
    assert variables_of(base)["P2PSGD_BOOTSTRAP_EXPECT"] == str(count)
    assert variables_of(base)["P2PSGD_RANK"] == f"$(POD_INDEX)/{count}"
    assert list(variables_of(base)).index("POD_INDEX") < list(variables_of(base)).index("P2PSGD_RANK")
    assert variables_of(spot)["P2PSGD_BOOTSTRAP_EXPECT"] == str(spot["StatefulSet"]["spec"]["replicas"])
    assert "P2PSGD_RANK" not in variables_of(spot)  # whose data are in shards


def test_the_options_and_variables_are_ones_that_the_program_has(objects: dict[str, Manifest]) -> None:
    name, *arguments = node_of(objects)["args"]
    command: Any = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    given = [word.partition("=")[0] for word in arguments]
    assert set(given) <= {option for parameter in command.params for option in parameter.opts}
    check_environment(variables_of(objects))
    trainer = next(word for word in arguments if word.startswith("--trainer="))
    assert shlex.split(trainer.partition("=")[2])[:2] == ["p2psgd", "train"]


def test_probes_and_metrics_are_paths_that_the_node_serves(objects: dict[str, Manifest]) -> None:
    node, served = node_of(objects), (CHECKOUT / "p2psgd" / "node" / "http.py").read_text()
    ports = {port["name"]: port["containerPort"] for port in node["ports"]}
    assert f"--http=0.0.0.0:{ports['http']}" in node["args"]
    for probe, path in (
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz"),
    ):
        assert node[probe]["httpGet"] == {"path": path, "port": "http"}
        assert f'"{path}":' in served
    if "PodMonitor" in objects:
        (endpoint,) = objects["PodMonitor"]["spec"]["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    allowed = [port["port"] for rule in objects["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]]
    assert allowed == [ports["peers"], ports["http"]]


def test_a_pod_is_closed_and_sees_no_key_but_its_own(objects: dict[str, Manifest]) -> None:
    pod = pod_of(objects)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod["containers"], *pod["initContainers"]):
        closed = container["securityContext"]
        assert closed["readOnlyRootFilesystem"] is True
        assert closed["allowPrivilegeEscalation"] is False
        assert closed["capabilities"] == {"drop": ["ALL"]}
    mounted = {mount["name"]: mount["mountPath"] for mount in node_of(objects)["volumeMounts"]}
    assert "all-certificates" not in mounted
    assert f"--tls={mounted['tls']}" in node_of(objects)["args"]
    (claim,) = objects["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert variables_of(objects)["P2PSGD_STATE"].startswith(mounted[claim["metadata"]["name"]] + "/")


def test_the_first_container_gives_a_node_its_own_certificate(tmp_path: Path) -> None:
    """Its script is run, with its directories in other places."""
    (first,) = pod_of(render("base"))["initContainers"]
    *shell, script = first["command"]
    for name in ("ca.pem", "p2psgd-0.pem", "p2psgd-0.key", "p2psgd-1.key"):
        (tmp_path / "all").mkdir(exist_ok=True)
        (tmp_path / "all" / name).write_text(name)
    (tmp_path / "tls").mkdir()
    script = script.replace("/all/", f"{tmp_path}/all/").replace("/tls/", f"{tmp_path}/tls/")
    subprocess.run([*shell, script], check=True, env={"POD_NAME": "p2psgd-0", "PATH": "/usr/bin:/bin"})
    copied = {path.name: path.read_text() for path in (tmp_path / "tls").iterdir()}
    assert copied == {"ca.pem": "ca.pem", "node.pem": "p2psgd-0.pem", "node.key": "p2psgd-0.key"}
    assert (tmp_path / "tls" / "node.key").stat().st_mode & 0o777 == 0o600


def test_cert_manager_gives_a_pod_the_certificate_of_its_own_name_where_the_node_looks_for_it(
    tmp_path: Path,
) -> None:
    objects = render_with_cert_manager(tmp_path)
    pod = pod_of(objects)
    assert not pod["initContainers"]
    assert "secret" not in str(pod["volumes"])
    (volume,) = [each for each in pod["volumes"] if each["name"] == "tls"]
    given = {key.partition("/")[2]: value for key, value in volume["csi"]["volumeAttributes"].items()}
    files = given["ca-file"], given["certificate-file"], given["privatekey-file"]
    assert files == (tls.CA_FILE, tls.CERTIFICATE_FILE, tls.KEY_FILE)
    (mount,) = [each for each in node_of(objects)["volumeMounts"] if each["name"] == "tls"]
    assert f"--tls={mount['mountPath']}" in node_of(objects)["args"]
    ids = {tls.node_of(given["uri-sans"].replace("${POD_NAME}", f"p2psgd-{index}")) for index in range(4)}
    assert len(ids - {None}) == 4
    assert given["common-name"] == "${POD_NAME}"
    assert {"server auth", "client auth"} <= set(given["key-usages"].split(","))
    assert int(given["fs-group"]) == pod["securityContext"]["runAsGroup"]
    assert given["issuer-name"] == objects["ClusterIssuer"]["metadata"]["name"]
    assert given["issuer-kind"] == "ClusterIssuer"


def kubeflow() -> tuple[Manifest, Manifest, dict[str, str]]:
    """Return the Job of Kubeflow Trainer's runtime, its container, and the variables that have a value."""
    (runtime,) = render("kubeflow").values()
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (node,) = job["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in node["env"] if "value" in each}
    count = runtime["spec"]["mlPolicy"]["numNodes"]
    assert variables["P2PSGD_BOOTSTRAP_EXPECT"] == str(count)
    assert variables["P2PSGD_RANK"] == f"$(POD_INDEX)/{count}"
    return job, node, variables


def test_the_pods_of_kubeflows_runtime_are_those_of_a_job_and_its_variables_are_options(
    tmp_path: Path,
) -> None:
    schemas: Any = pytest.importorskip("kubernetes_validate", reason="needs make .venv/.test-engines")
    job, node, variables = kubeflow()
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "first"}, "spec": job}
    schemas.validate(whole, schemas.latest_version(), strict=True)
    named = [each["name"] for each in node["env"]]
    assert named.index("RUN") < named.index("P2PSGD_PEERS")
    assert named.index("POD_INDEX") < named.index("P2PSGD_RANK")
    given = {
        name: value.replace("$(RUN)", "localhost").replace("$(POD_INDEX)", "2")
        for name, value in variables.items()
    }
    given["P2PSGD_TLS"] = str(Certificates(tmp_path).directory("p2psgd-2"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("P2PSGD_")}
    command = [*P2PSGD, "config", "show", "--json"]
    done = subprocess.run(
        command, env=environment | given, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    found = {name: shown[name]["value"] for name in ("rank", "end_with_trainer", "http_exposed", "peers")}
    assert found == {"rank": "2/4", "end_with_trainer": True, "http_exposed": True, "peers": "dns:localhost"}


def test_a_train_job_gives_its_number_of_nodes_to_all_that_need_it() -> None:
    job = yaml.safe_load((FOLDER / "kubeflow" / "train-job.yaml").read_text())
    (runtime,) = render("kubeflow").values()
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    given = {each["name"]: each["value"] for each in job["spec"]["trainer"]["env"]}
    count = job["spec"]["trainer"]["numNodes"]
    assert (given["P2PSGD_BOOTSTRAP_EXPECT"], given["P2PSGD_RANK"]) == (str(count), f"$(POD_INDEX)/{count}")
    check_environment(given)


def test_an_end_that_needs_a_person_ends_kubeflows_job() -> None:
    job, _, _ = kubeflow()
    codes, certificate, _ = job["podFailurePolicy"]["rules"]
    # Of these containers alone: an injected one may end as it likes.
    assert (codes["onExitCodes"]["containerName"], certificate["onExitCodes"]["containerName"]) == (
        "node",
        "own-certificate",
    )
    unit = (CHECKOUT / "systemd" / "p2psgd.service").read_text()
    (prevented,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert codes["onExitCodes"]["values"] == [int(code) for code in prevented.split()]
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # else Kubernetes refuses such rules


KUBECTL: Final = """case $1 in
  create) exec {kubectl} "$@" --dry-run=client -o yaml ;;
  apply) shift; [ "$1" = -f ] || exec {kubectl} kustomize "$2"; cat "$2" ;;
esac
"""


def test_the_commands_of_the_page_give_manifests_with_the_image_that_was_pushed(tmp_path: Path) -> None:
    """They are run as they stand there, but kubectl prints what it would send, and nothing is built."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    programs = {"kubectl": KUBECTL.format(kubectl=shutil.which("kubectl")), "docker": "", "p2psgd": PROGRAM}
    path = path_with(programs, tmp_path / "bin")
    shutil.copytree(CHECKOUT / "engines", tmp_path / "engines")
    main, _, flow = blocks_of("kubernetes.md")

    def type_in(block: str) -> list[Manifest]:
        done = subprocess.run(
            ["sh", "-euc", block],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr
        text = done.stdout[done.stdout.index("apiVersion") :].replace("\napiVersion", "\n---\napiVersion")
        return [each for each in yaml.safe_load_all(text) if isinstance(each, dict) and "kind" in each]

    secret, *objects = type_in(main)
    assert {"ca.pem", "p2psgd-0.key", "p2psgd-3.pem"} <= set(secret["data"])
    (nodes,) = [each for each in objects if each["kind"] == "StatefulSet"]
    pod = nodes["spec"]["template"]["spec"]
    images = [each["image"] for each in (*pod["initContainers"], *pod["containers"])]
    assert images == ["REGISTRY/p2psgd:1"] * 2
    runtime, job = type_in(flow)
    assert str(runtime).count("'image': 'REGISTRY/p2psgd:1'") == 2
    assert job["kind"] == "TrainJob"


def test_a_pod_has_the_time_that_leaving_takes_and_a_spot_machine_what_it_gives() -> None:
    base, spot = render("base"), render("spot")
    assert pod_of(base)["terminationGracePeriodSeconds"] > 3 * DRAIN_TIMEOUT_S
    assert pod_of(spot)["terminationGracePeriodSeconds"] <= 30
    assert pod_of(spot)["tolerations"]
    assert base["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def steps_of_image() -> list[list[str]]:
    """Return the Dockerfile's steps, each as its word and the rest."""
    lines = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [line.split(None, 1) for line in lines if line and not line.startswith("#")]


def copied_into_image() -> list[str]:
    return [name for word, words in steps_of_image() if word == "COPY" for name in words.split()[:-1]]


def test_the_image_runs_as_a_user_of_its_own_and_has_no_compiler() -> None:
    steps = steps_of_image()
    assert [word for word, _ in steps].count("FROM") == 2
    last = steps[[word for word, _ in steps].index("FROM", 2) :]
    (user,) = [words for word, words in last if word == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert ["ENTRYPOINT", '["p2psgd"]'] in last
    assert not any("apt-get" in words for _, words in last)
    set_there = dict(pair.split("=", 1) for word, words in last if word == "ENV" for pair in words.split())
    check_environment(set_there)


def test_no_more_than_what_the_image_copies_is_given_to_its_build() -> None:
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    given = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    assert given == set(copied_into_image())


@pytest.mark.long
def test_the_files_that_the_image_copies_make_a_wheel_with_all_that_it_needs(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    """Its step `pip wheel` is run, without the packages that p2psgd depends on."""
    needs("g++", "make")
    source = tmp_path / "source"
    source.mkdir()
    for name in copied_into_image():
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, source)
    (step,) = [words for word, words in steps_of_image() if word == "RUN" and "pip wheel" in words]
    command = step.replace("python -m pip", f"{sys.executable} -m pip --disable-pip-version-check")
    command = command.replace("/wheels", str(tmp_path)).replace(' ".$', ' --no-deps ".$')
    assert "--no-deps" in command
    subprocess.run(["sh", "-euc", command], cwd=source, check=True)
    (wheel,) = tmp_path.glob("p2psgd-*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert {"p2psgd/cli/up/install.sh", "p2psgd/net/peer_sources/dns.py"} <= names
    assert any(re.fullmatch(r"p2psgd/wire/.*\.so", name) for name in names)
