"""Jobs whose processes a cluster starts and numbers: Slurm, Kubernetes, MPI, by hand."""

import asyncio
import json
import os
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest

from flowmx import cli
from flowmx.comm.launch.plan import Plan
from flowmx.kvstore.launching import slot
from flowmx.kvstore.launching.kubernetes import Pods, manifest
from flowmx.kvstore.launching.slot import Numbered, first_host, name_of, numbered, workers_of
from tests.ports import free_port

PROGRAM = """
import flowmx as mx
kv = mx.kv.create("dist_sync")
kv.init(3, mx.nd.zeros(2))
kv.push(3, mx.nd.ones(2) * (kv.rank + 1))
out = mx.nd.zeros(2)
kv.pull(3, out=out)
print("worker", kv.rank, "of", kv.num_workers, "has", float(out.asnumpy()[0]), flush=True)
"""
KUBERNETES = ["1.29", "1.31", "1.37"]


async def ended(*processes):
    """Run processes to their ends: their statuses, and all lines of them in order."""
    started = [
        await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **environ}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        for command, environ in processes
    ]
    async with asyncio.timeout(90):
        outputs = [await each.communicate() for each in started]
    lines = sorted(line for out, _ in outputs for line in out.decode().splitlines() if line.startswith("worker"))
    return [each.returncode for each in started], lines, b"".join(err for _, err in outputs).decode()


def node(*arguments):
    return [sys.executable, "-m", "flowmx", "node", *arguments]


@pytest.mark.parametrize("cluster", ["Slurm", pytest.param("Open MPI", marks=pytest.mark.soak)])
async def test_the_same_command_is_every_node_of_a_job(cluster):
    scheduler = f"127.0.0.1:{free_port()}"

    def process(index):
        if cluster == "Slurm":
            environ = {"SLURM_PROCID": str(index), "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node[07-09]"}
        else:
            environ = {"OMPI_COMM_WORLD_RANK": str(index), "OMPI_COMM_WORLD_SIZE": "4"}
        arguments = ["--servers", "1", "--scheduler", scheduler]
        return node(*arguments, "--", sys.executable, "-c", PROGRAM), environ

    statuses, lines, errors = await ended(*map(process, range(4)))
    assert statuses == [0] * 4, errors
    assert lines == ["worker 0 of 2 has 3.0", "worker 1 of 2 has 3.0"]


async def test_the_containers_of_a_manifest_are_the_nodes_of_a_job(tmp_path):
    found = manifest(Plan([sys.executable, "-c", PROGRAM], workers=2, servers=1), Pods("image", "train"))
    keeper, _, *jobs = found["items"]
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(keeper["stringData"]["secret"])
    scheduler, served = f"127.0.0.1:{free_port()}", str(free_port())
    changed = {"train-scheduler-0.train:9091": scheduler, "9092": served, "python": sys.executable}
    processes = []
    for job in jobs:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        command = [changed.get(each, each) for each in container["command"]]
        for index in range(job["spec"]["completions"]):
            environ = {"JOB_COMPLETION_INDEX": str(index), "FLOWMX_SECRET_FILE": str(secret)}
            processes.append((command, {**environ, "FLOWMX_NODE_HOST": "127.0.0.1"}))
    statuses, lines, errors = await ended(*processes)
    assert statuses == [0] * 4, errors
    assert lines == ["worker 0 of 2 has 3.0", "worker 1 of 2 has 3.0"]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("policy", ["stop", "elastic"])
def test_the_manifest_is_what_kubernetes_takes(version, policy):
    plan = Plan(
        ["python", "train.py"],
        4,
        2,
        policy,
        restarts=7,
        snapshot="/data/kept",
        forward=["DATA"],
        environ={"DATA": "/data"},
    )
    found = manifest(plan, Pods("image:1", "train", "ours", {"cpu": "4", "nvidia.com/gpu": "1"}))
    for each in found["items"]:
        kubernetes_validate.validate(each, version, strict=True)
        assert each["metadata"]["namespace"] == "ours"
    jobs = {each["metadata"]["name"]: each["spec"] for each in found["items"][2:]}
    assert {name: spec["completions"] for name, spec in jobs.items()} == {
        "train-scheduler": 1, "train-server": 2, "train-worker": 4,
    }  # fmt: skip
    for spec in jobs.values():
        assert spec["backoffLimit"] == (plan.restarts if policy == "elastic" else 0)
        pod = spec["template"]["spec"]
        assert pod["restartPolicy"] == ("OnFailure" if policy == "elastic" else "Never")
        assert {"name": "DATA", "value": "/data"} in pod["containers"][0]["env"]
    assert jobs["train-worker"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


JOBSET = json.loads((Path(__file__).parent / "fixtures" / "jobset-v1alpha2.json").read_text())
"""The schema of JobSets, from their CustomResourceDefinition."""


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("policy", ["stop", "elastic"])
def test_a_jobset_is_what_its_controller_takes(version, policy):
    plan = Plan(["python", "train.py"], 4, 2, policy, restarts=7)
    keeper, found = manifest(plan, Pods("image:1", "train", "ours", jobset=True))["items"]
    kubernetes_validate.validate(keeper, version, strict=True)
    jsonschema.validate(found, JOBSET)
    with pytest.raises(jsonschema.ValidationError, match="operater"):  # the schema knows what it does not know
        jsonschema.validate({**found, "spec": {**found["spec"], "successPolicy": {"operater": "All"}}}, JOBSET)
    assert found["spec"]["network"]["subdomain"] == "train"
    parts = {each["name"]: each["template"] for each in found["spec"]["replicatedJobs"]}
    assert {name: each["spec"]["completions"] for name, each in parts.items()} == {
        "scheduler": 1, "server": 2, "worker": 4,
    }  # fmt: skip
    assert [each["replicas"] for each in found["spec"]["replicatedJobs"]] == [1, 1, 1]
    for name, each in parts.items():
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"train-{name}-0"}, **each}
        job["metadata"] |= each["metadata"]
        kubernetes_validate.validate(job, version, strict=True)
        (container,) = each["spec"]["template"]["spec"]["containers"]
        command = container["command"]
        assert command[command.index("--scheduler") + 1] == "train-scheduler-0-0.train:9091"


def test_no_two_manifests_have_one_secret_and_no_command_shows_it():
    one, other = (manifest(Plan(["train"]), Pods("image")) for _ in range(2))
    secret = one["items"][0]["stringData"]["secret"]
    assert secret != other["items"][0]["stringData"]["secret"]
    assert len(secret) == 64
    assert secret not in json.dumps(one["items"][1:])


def test_the_command_line_writes_the_manifest(capsys):
    given = [
        "--kubernetes",
        "image:1",
        "--name",
        "train",
        "--workers",
        "3",
        "--resource",
        "cpu=2",
        "--",
        "python",
        "t.py",
    ]
    assert cli.main(["launch", *given]) == 0
    text = capsys.readouterr().out
    assert text.endswith("}\n")
    found = json.loads(text)
    assert found["items"][-1]["spec"]["completions"] == 3
    assert found["items"][-1]["spec"]["template"]["spec"]["containers"][0]["command"][-2:] == ["python", "t.py"]
    for wrong, message in [(["--resource", "cpu"], "expected NAME=N"), (["--name", "My Job"], "expected at most 42")]:
        assert cli.main(["launch", "--kubernetes", "image", *wrong, "--", "python"]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("alpha", "alpha"), ("alpha,beta", "alpha"), ("node[03-05,9],login", "node03"), ("n[7,9-12]", "n7"),
     ("rack[1-2]-node,x", "rack1-node"), ("a-b.example", "a-b.example"), ("", "")],
)  # fmt: skip
def test_the_first_host_of_a_list(hosts, first):
    assert first_host(hosts) == first


def test_each_cluster_says_the_number_of_a_process():
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "31234"}
    assert numbered(slurm) == Numbered(3, 7, "n1:21234")
    assert numbered(slurm | {"SLURM_JOB_ID": "9"}).scheduler == "n1:20009"
    assert numbered({"JOB_COMPLETION_INDEX": "2"}) == Numbered(2)
    assert numbered({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}) == Numbered(1, 4)
    assert numbered({"PMI_RANK": "0", "PMI_SIZE": "3"}) == Numbered(0, 3)
    with pytest.raises(ValueError, match=r"Give --index, or run it where one of these is set: SLURM_PROCID \(Slurm\)"):
        numbered({})


def test_the_first_is_the_scheduler_then_come_servers_then_workers():
    assert [name_of(index, 2, 2) for index in range(5)] == ["scheduler", "server 0", "server 1", "worker 0", "worker 1"]
    assert [name_of(index, 2, 2, "server") for index in range(2)] == ["server 0", "server 1"]
    assert name_of(0, 2, 2, "scheduler") == "scheduler"
    for index, role in ((5, ""), (-1, ""), (2, "worker")):
        with pytest.raises(ValueError, match="the number of this process is"):
            name_of(index, 2, 2, role)


def test_numbers_that_contradict_each_other_are_refused():
    assert workers_of(7, 2, None) == 4
    assert workers_of(None, 2, 5) == 5
    with pytest.raises(ValueError, match="the cluster started 7 processes, expected 6: a scheduler, 2 servers and 3"):
        workers_of(7, 2, 3)
    with pytest.raises(ValueError, match="the cluster started 3 processes, expected 4 or more"):
        workers_of(3, 2, None)
    with pytest.raises(ValueError, match="give --workers"):
        workers_of(None, 2, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [(["--index", "0", "--workers", "1"], "'', expected --scheduler HOST:PORT"),
     (["--index", "0", "--role", "server", "--scheduler", "127.0.0.1:1"], "give --workers"),
     (["--index", "9", "--workers", "1", "--scheduler", "127.0.0.1:1"], "is 9, expected one of 0 to 2"),
     (["--index", "1", "--workers", "1", "--scheduler", "127.0.0.1:1", "--patience", "0"], "127.0.0.1:1 was not there"),
     (["--index", "1", "--workers", "1", "--scheduler", "none.invalid:1", "--patience", "0"], "none.invalid:1")],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(given, message, capsys, monkeypatch):
    monkeypatch.setattr(slot, "_SOURCES", ())
    assert cli.main(["node", *given, "--", "python"]) == 1
    assert message in capsys.readouterr().err
