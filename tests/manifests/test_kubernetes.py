"""The manifests for Kubernetes say what its schemas allow, and their pods do what they should."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

pytestmark = pytest.mark.checkout

ROOT, DATA = Path(__file__).parents[2], Path(__file__).parent / "data"
FILES = ("kubernetes.yaml", "jobset.yaml")
KINDS = {
    "Job": "io.k8s.api.batch.v1.Job",
    "Service": "io.k8s.api.core.v1.Service",
    "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
}
KUBERNETES = json.loads((DATA / "kubernetes-1.37.json").read_text())
JOBSET = json.loads((DATA / "jobset-v1alpha2.json").read_text())


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "docs" / name).read_text()))


def problems(document: dict[str, Any]) -> list[str]:
    """What the schema of a document's kind has against it."""
    own = JOBSET if document["kind"] == "JobSet" else {"$ref": f"#/$defs/{KINDS[document['kind']]}"}
    validator = Draft202012Validator({**own, "$defs": KUBERNETES["$defs"]})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def jobs(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The specifications of all jobs of a document."""
    if document["kind"] == "Job":
        yield document["spec"]
    for one in document["spec"].get("replicatedJobs", ()):
        yield one["template"]["spec"]


# Where the tests travel without the documentation, there is nothing to be looked at.
THERE = [name for name in FILES if (ROOT / "docs" / name).exists()]
ALL = [(name, job) for name in THERE for document in documents(name) for job in jobs(document)]


@pytest.mark.parametrize("name", FILES)
def test_manifests_are_what_kubernetes_takes(name: str) -> None:
    """Each document of a file is valid by the schema of its kind, in which unknown keys are errors."""
    found = documents(name)
    assert len(found) >= 2
    assert [problem for document in found for problem in problems(document)] == []


SPOILT: dict[str, tuple[str, tuple[str | int, ...], Any]] = {
    "a mistyped key": ("kubernetes.yaml", ("spec", "backofLimit"), 3),
    "a text for a number": ("kubernetes.yaml", ("spec", "completions"), "6"),
    "a key of a container that there is not": (
        "kubernetes.yaml", ("spec", "template", "spec", "containers", 0, "img"), "x",
    ),
    "an action that JobSet has not": ("jobset.yaml", ("spec", "failurePolicy", "rules", 0, "action"), "RestartPod"),
    "a rule without a name": ("jobset.yaml", ("spec", "failurePolicy", "rules", 0), {"action": "FailJobSet"}),
    "a mistyped key in a job's template": (
        "jobset.yaml", ("spec", "replicatedJobs", 1, "template", "spec", "podReplacmentPolicy"), "Failed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_manifest_is_refused(what: str) -> None:
    """The schemas would find what is easily done wrong."""
    name, place, value = SPOILT[what]
    document = deepcopy(documents(name)[-1])
    inner: Any = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert len(problems(document)) >= 1


@pytest.mark.parametrize(("name", "job"), ALL, ids=[f"{name}-{number}" for number, (name, _) in enumerate(ALL)])
def test_single_pods_are_replaced(name: str, job: dict[str, Any]) -> None:
    """What the API server checks beyond its schema, of jobs whose pods are replaced one by one.

    Source: what Kubernetes' OpenAPI says of podReplacementPolicy, backoffLimitPerIndex and PodFailurePolicy.
    """
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # what podFailurePolicy and backoffLimitPerIndex demand
    assert job["podReplacementPolicy"] == "Failed"  # the only value beside a podFailurePolicy
    rules = job["podFailurePolicy"]["rules"]
    fails = next(rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob")
    assert fails["containerName"] in {one["name"] for one in pod["containers"]}
    assert fails["values"] == sorted(fails["values"]) and 0 not in fails["values"]
    mounts = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    if job.get("completionMode") == "Indexed":
        assert job["completions"] == job["parallelism"] and job["backoffLimitPerIndex"] > 0


def test_workers_find_their_coordinator() -> None:
    """The address that workers are given is that of the Service, and in a JobSet that of the coordinator's pod."""
    service, workers = documents("kubernetes.yaml")[0], documents("kubernetes.yaml")[-1]
    port = service["spec"]["ports"][0]["port"]
    assert f"--coordinator {service['metadata']['name']}:{port} " in script_of(workers["spec"])
    whole = documents("jobset.yaml")[-1]
    name, first = whole["metadata"]["name"], whole["spec"]["replicatedJobs"][0]["name"]
    pod = f"{name}-{first}-0-0.{whole['spec']['network']['subdomain']}"
    assert f"--coordinator {pod}:{port} " in script_of(whole["spec"]["replicatedJobs"][1]["template"]["spec"])
    assert whole["spec"]["successPolicy"]["targetReplicatedJobs"] == [first]


def script_of(job: dict[str, Any]) -> str:
    """What a worker's pod runs in its shell."""
    script: str = job["template"]["spec"]["containers"][0]["args"][0]
    return script


WORKERS = [job for _, job in ALL if job.get("completionMode") == "Indexed"]
NAMES = ["job", "jobset"][: len(WORKERS)]
# What stands for rtk: leaves with 0 when it is told to, and else ends with what the test wants.
STUB = """#!/bin/sh
trap 'exit 0' TERM
echo "$RANK $*" >>"$SAID"
if [ "$ENDS" = waits ]; then while :; do sleep 0.05; done; fi
exit "$ENDS"
"""


@pytest.fixture
def rtk_stub(tmp_path: Path) -> dict[str, str]:
    """An environment in which `rtk` is a stand-in."""
    (tmp_path / "rtk").write_text(STUB)
    (tmp_path / "rtk").chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "RANK": "3", "SAID": str(tmp_path / "said")}


@pytest.mark.parametrize("job", WORKERS, ids=NAMES)
def test_a_pod_ends_as_its_worker_does(job: dict[str, Any], rtk_stub: dict[str, str]) -> None:
    """A pod has its worker's exit code: 0 is its index's success, 5 fails the job, 1 is answered by a new pod."""
    for code in (0, 1, 5):
        done = subprocess.run(
            ["/bin/sh", "-c", script_of(job)], env={**rtk_stub, "ENDS": str(code)}, check=False, timeout=30
        )
        assert done.returncode == code
    assert Path(rtk_stub["SAID"]).read_text().startswith("3 run /plan/plan.json --model gpt-tiny --coordinator ")


@pytest.mark.parametrize("job", WORKERS, ids=NAMES)
def test_a_pod_that_is_drained_has_not_succeeded(job: dict[str, Any], rtk_stub: dict[str, str]) -> None:
    """SIGTERM reaches the worker, which leaves with 0; the pod ends with 143, so its index gets a new one."""
    process = subprocess.Popen(["/bin/sh", "-c", script_of(job)], env={**rtk_stub, "ENDS": "waits"})
    for _ in range(200):
        if Path(rtk_stub["SAID"]).exists():
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143


@pytest.mark.parametrize("job", WORKERS, ids=NAMES)
def test_a_pod_that_is_drained_at_its_start_ends_too(job: dict[str, Any], rtk_stub: dict[str, str]) -> None:
    """SIGTERM that comes before the shell has noted its worker is passed on as well: nobody trains on in a pod that is
    to go."""
    early = script_of(job).replace("worker=$!", "kill -TERM $$; worker=$!")
    assert early != script_of(job)
    done = subprocess.run(["/bin/sh", "-c", early], env={**rtk_stub, "ENDS": "waits"}, check=False, timeout=60)
    assert done.returncode == 143
