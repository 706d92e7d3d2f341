"""Jobs whose processes a cluster starts and numbers: Slurm, Kubernetes, MPI, by hand."""

import asyncio
import json
import os
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest

from flowmx import cli, settings
from flowmx.comm.launch.plan import Plan
from flowmx.kvstore.launching import node_command, process_numbers
from flowmx.kvstore.launching.kubernetes import Pods, manifest
from flowmx.kvstore.launching.process_numbers import ProcessNumber, count_workers, first_host, name_of, process_number
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
    """Run processes to their ends; return their statuses, and all of their lines in order."""
    started = [
        await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **environ}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        for command, environ in processes
    ]
    async with asyncio.timeout(90):
        outputs = [await item.communicate() for item in started]
    lines = sorted(line for out, _ in outputs for line in out.decode().splitlines() if line.startswith("worker"))
    return [item.returncode for item in started], lines, b"".join(err for _, err in outputs).decode()


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
    document = manifest(Plan([sys.executable, "-c", PROGRAM], workers=2, servers=1), Pods("image", "train"))
    keeper, _, *jobs = document["items"]
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(keeper["stringData"]["secret"])
    scheduler, served = f"127.0.0.1:{free_port()}", str(free_port())
    changed = {"train-scheduler-0.train:9091": scheduler, "9092": served, "python": sys.executable}
    processes = []
    for job in jobs:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        command = [changed.get(item, item) for item in container["command"]]
        for index in range(job["spec"]["completions"]):
            environ = {"JOB_COMPLETION_INDEX": str(index), "FLOWMX_SECRET_FILE": str(secret)}
            processes.append((command, {**environ, "FLOWMX_NODE_HOST": "127.0.0.1"}))
    statuses, lines, errors = await ended(*processes)
    assert statuses == [0] * 4, errors
    assert lines == ["worker 0 of 2 has 3.0", "worker 1 of 2 has 3.0"]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("policy", ["stop", "elastic"])
def test_the_manifest_is_valid_for_kubernetes(version, policy):
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
    document = manifest(plan, Pods("image:1", "train", "ours", {"cpu": "4", "nvidia.com/gpu": "1"}))
    for entry in document["items"]:
        kubernetes_validate.validate(entry, version, strict=True)
        assert entry["metadata"]["namespace"] == "ours"
    jobs = {item["metadata"]["name"]: item["spec"] for item in document["items"][2:]}
    assert {name: spec["completions"] for name, spec in jobs.items()} == {
        "train-scheduler": 1, "train-server": 2, "train-worker": 4,
    }  # fmt: skip
    for spec in jobs.values():
        assert spec["backoffLimit"] == (plan.restarts if policy == "elastic" else 0)
        pod = spec["template"]["spec"]
        assert pod["restartPolicy"] == ("OnFailure" if policy == "elastic" else "Never")
        assert {"name": "DATA", "value": "/data"} in pod["containers"][0]["env"]
    assert jobs["train-worker"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


JOBSET = json.loads((Path(__file__).parent.parent / "fixtures" / "jobset-v1alpha2.json").read_text())
"""The schema of JobSets, from their CustomResourceDefinition."""


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("policy", ["stop", "elastic"])
def test_a_jobset_is_valid_for_its_controller(version, policy):
    plan = Plan(["python", "train.py"], 4, 2, policy, restarts=7)
    keeper, document = manifest(plan, Pods("image:1", "train", "ours", jobset=True))["items"]
    kubernetes_validate.validate(keeper, version, strict=True)
    jsonschema.validate(document, JOBSET)
    with pytest.raises(jsonschema.ValidationError, match="operater"):  # the schema rejects unknown fields
        jsonschema.validate({**document, "spec": {**document["spec"], "successPolicy": {"operater": "All"}}}, JOBSET)
    assert document["spec"]["network"]["subdomain"] == "train"
    parts = {item["name"]: item["template"] for item in document["spec"]["replicatedJobs"]}
    assert {name: each["spec"]["completions"] for name, each in parts.items()} == {
        "scheduler": 1, "server": 2, "worker": 4,
    }  # fmt: skip
    assert [item["replicas"] for item in document["spec"]["replicatedJobs"]] == [1, 1, 1]
    for name, each in parts.items():
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"train-{name}-0"}, **each}
        job["metadata"] |= each["metadata"]
        kubernetes_validate.validate(job, version, strict=True)
        (container,) = each["spec"]["template"]["spec"]["containers"]
        command = container["command"]
        assert command[command.index("--scheduler") + 1] == "train-scheduler-0-0.train:9091"


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("jobset", [False, True])
def test_containers_of_any_user_can_read_the_secret(version, jobset):
    plan = Plan(["python", "train.py"], 4, 2)
    for user in (None, 1000):
        *_, last = manifest(plan, Pods("image:1", "train", jobset=jobset, user=user))["items"]
        job = last["spec"]["replicatedJobs"][-1]["template"] if jobset else last
        job = {"apiVersion": "batch/v1", "kind": "Job", **job, "metadata": {"name": "train-worker"}}
        kubernetes_validate.validate(job, version, strict=True)
        pod = job["spec"]["template"]["spec"]
        (secret,) = pod["volumes"]
        assert secret["secret"]["defaultMode"] == 0o440  # only root and the group below can read it
        assert pod["securityContext"]["fsGroup"] == (user or 65532)
        (container,) = pod["containers"]
        if user is None:
            assert "runAsUser" not in pod["securityContext"]
            assert "securityContext" not in container
        else:
            assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (user, True)
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
    with pytest.raises(ValueError, match="the user is 0, expected a user id of at least 1: 0 is root"):
        Pods("image", user=0)


def test_all_pods_of_a_manifest_name_one_job_and_no_two_manifests_the_same():
    jobs = []
    for _ in range(2):
        _, _, *items = manifest(Plan(["train"], 2, 1), Pods("image"))["items"]
        commands = [item["spec"]["template"]["spec"]["containers"][0]["command"] for item in items]
        jobs.append({command[command.index("--job") + 1] for command in commands})
    assert [len(job) for job in jobs] == [1, 1]
    assert jobs[0] != jobs[1]


def test_no_two_manifests_have_one_secret_and_no_command_shows_it():
    one, other = (manifest(Plan(["train"]), Pods("image")) for _ in range(2))
    secret = one["items"][0]["stringData"]["secret"]
    assert secret != other["items"][0]["stringData"]["secret"]
    assert len(secret) == 64
    assert secret not in json.dumps(one["items"][1:])


def test_the_command_line_writes_the_manifest(capsys):
    inputs = [
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
    assert cli.main(["launch", *inputs]) == 0
    text = capsys.readouterr().out
    assert text.endswith("}\n")
    result = json.loads(text)
    assert result["items"][-1]["spec"]["completions"] == 3
    assert result["items"][-1]["spec"]["template"]["spec"]["containers"][0]["command"][-2:] == ["python", "t.py"]
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
    assert process_number(slurm) == ProcessNumber(3, 7, "n1:21234", "Slurm job 31234")
    assert process_number(slurm | {"SLURM_JOB_ID": "9"}).scheduler == "n1:20009"
    assert process_number({"JOB_COMPLETION_INDEX": "2"}) == ProcessNumber(2)
    assert process_number({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}) == ProcessNumber(1, 4)
    assert process_number({"PMI_RANK": "0", "PMI_SIZE": "3"}) == ProcessNumber(0, 3)
    with pytest.raises(ValueError, match=r"pass --index, or run it where one of these is set: SLURM_PROCID \(Slurm\)"):
        process_number({})


def test_steps_attempts_and_tasks_of_a_slurm_job_are_separate_jobs():
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_ID": "101"}
    inputs = [
        slurm | dict(more)
        for job in ("101", "102")
        for task in ((), (("SLURM_ARRAY_TASK_ID", "1"),), (("SLURM_ARRAY_TASK_ID", "2"),))
        for step in ("0", "1", "2")
        for attempt in ((), (("SLURM_RESTART_COUNT", "1"),), (("SLURM_RESTART_COUNT", "2"),))
        for more in [(("SLURM_JOB_ID", job), ("SLURM_STEP_ID", step), *task, *attempt)]
    ]
    result = [process_number(item) for item in inputs]
    assert len({item.job for item in result}) == len(inputs)
    assert len({item.scheduler for item in result}) == len(inputs)
    parts = {"SLURM_ARRAY_TASK_ID": "4", "SLURM_STEP_ID": "3", "SLURM_RESTART_COUNT": "2"}
    assert process_number(slurm | parts).job == "Slurm job 101 task 4 step 3 attempt 2"


def test_runs_of_mpi_are_distinguished_if_they_have_an_identifier():
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    assert process_number(mpi | {"PMIX_NAMESPACE": "prterun-a-77@1"}).job == "Open MPI run prterun-a-77@1"
    assert process_number(mpi | {"PBS_JOBID": "12.head"}).job == "Open MPI job 12.head"
    assert process_number({"PMI_RANK": "0", "PMI_SIZE": "3", "SLURM_JOB_ID": "5"}).job == "MPICH or Intel MPI job 5"


def environment(*inputs, **environ):
    """Return the name of the job in a node's variables."""
    arguments = ["--servers", "1", "--scheduler", "127.0.0.1:1", *inputs, "--", "python", "train.py"]
    parsed = node_command._parser().parse_args(arguments)
    parsed.command = parsed.command[1:]
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "101", "SLURM_STEP_ID": "7"}
    return node_command.build_command(parsed, {**slurm, **environ})[1]["FLOWMX_JOB"]


def test_the_name_of_a_job_is_given_or_the_clusters():
    assert environment() == "Slurm job 101 step 7"
    assert environment("--job", "mine") == "mine"
    with settings.override(job="ours"):
        assert environment() == "ours"
    # Processes of one role are a separate step, and do not know the step of the others.
    assert environment("--role", "scheduler", "--workers", "2") == ""


async def test_steps_at_one_address_do_not_join_each_others_job():
    scheduler = f"127.0.0.1:{free_port()}"

    def process(step, index):
        environ = {"SLURM_PROCID": str(index), "SLURM_NTASKS": "3", "SLURM_JOB_ID": "101", "SLURM_STEP_ID": str(step)}
        return node("--servers", "1", "--scheduler", scheduler, "--", sys.executable, "-c", PROGRAM), environ

    # The worker of step 1 arrives while step 0 still waits for its worker.
    scheduling = asyncio.create_task(ended(process(0, 0), process(0, 1)))
    (status,), _, errors = await ended(process(1, 2))
    assert status == 1
    assert "this is the scheduler of the job 'Slurm job 101 step 0', and worker" in errors
    assert "belongs to the job 'Slurm job 101 step 1': two jobs have the same address" in errors
    statuses, lines, errors = await ended(process(0, 2))
    assert (statuses, lines) == ([0], ["worker 0 of 1 has 1.0"]), errors
    statuses, _, errors = await scheduling
    assert statuses == [0, 0], errors


def test_the_first_is_the_scheduler_then_come_servers_then_workers():
    assert [name_of(index, 2, 2) for index in range(5)] == ["scheduler", "server 0", "server 1", "worker 0", "worker 1"]
    assert [name_of(index, 2, 2, "server") for index in range(2)] == ["server 0", "server 1"]
    assert name_of(0, 2, 2, "scheduler") == "scheduler"
    for index, role in ((5, ""), (-1, ""), (2, "worker")):
        with pytest.raises(ValueError, match="the index of this process is"):
            name_of(index, 2, 2, role)


def test_numbers_that_contradict_each_other_are_refused():
    assert count_workers(7, 2, None) == 4
    assert count_workers(None, 2, 5) == 5
    with pytest.raises(ValueError, match="the cluster started 7 processes, expected 6: a scheduler, 2 servers and 3"):
        count_workers(7, 2, 3)
    with pytest.raises(ValueError, match="the cluster started 3 processes, expected 4 or more"):
        count_workers(3, 2, None)
    with pytest.raises(ValueError, match="pass --workers"):
        count_workers(None, 2, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--index", "0", "--workers", "1"], "'', expected --scheduler HOST:PORT"),
     (["--index", "0", "--role", "server", "--scheduler", "127.0.0.1:1"], "pass --workers"),
     (["--index", "9", "--workers", "1", "--scheduler", "127.0.0.1:1"], "is 9, expected one of 0 to 2"),
     (["--index", "1", "--workers", "1", "--scheduler", "127.0.0.1:1", "--patience", "0"], "1 could not be reached"),
     (["--index", "1", "--workers", "1", "--scheduler", "none.invalid:1", "--patience", "0"], "none.invalid:1")],
)  # fmt: skip
def test_errors_are_one_line(options, message, capsys, monkeypatch):
    monkeypatch.setattr(process_numbers, "_CLUSTERS", ())
    assert cli.main(["node", *options, "--", "python"]) == 1
    assert message in capsys.readouterr().err
