"""Kubernetes manifest of a job: an indexed Job for each role, a headless Service, and the job's secret.

This module does no I/O.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowmx.comm.launch.plan import Plan
from flowmx.kvstore.launching.process_numbers import ROLES

__all__ = ["Pods", "manifest"]

SCHEDULER_PORT, SERVER_PORT = 9091, 9092
_SECRETS = "/run/secrets/flowmx"
_GROUP = 65532  # the group ID of "nonroot" in distroless images
_KEY = "secret"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?")


@dataclass(frozen=True)
class Pods:
    """The pods of a job.

    Args:
        image: the image of all containers, with flowmx and the workers' program.
        name: the name of the job: lower-case letters, digits and dashes.
        namespace: the namespace of all objects; empty for the default of ``kubectl``.
        resources: the limits of a worker, in Kubernetes' names: ``{"cpu": "4", "nvidia.com/gpu": "1"}``.
        seconds: the grace period of pods between SIGTERM and SIGKILL.
        jobset: use one JobSet (https://jobset.sigs.k8s.io) instead of the Jobs and their Service.
        user: the ID of the user that containers run as, in the profile ``restricted`` of the Pod Security
            Standards; None for the default of the image.

    Raises:
        ValueError: the name or the user is invalid.
    """

    image: str
    name: str = "flowmx"
    namespace: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)
    seconds: int = 30
    jobset: bool = False
    user: int | None = None

    @property
    def scheduler(self) -> str:
        """The scheduler's address: in a JobSet, pod names also contain the number of the Job."""
        number = "0-0" if self.jobset else "0"
        return f"{self.name}-scheduler-{number}.{self.name}:{SCHEDULER_PORT}"

    def __post_init__(self) -> None:
        if self.user is not None and self.user < 1:
            raise ValueError(f"the user is {self.user}, expected a user id of at least 1: 0 is root")
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"the name is {self.name!r}, expected at most 42 lower-case letters, digits and dashes, such as 'train'"
            )


def manifest(plan: Plan, pods: Pods, secret: str = "") -> dict[str, object]:
    """Build the manifest: a List of objects for ``kubectl apply -f``.

    Args:
        plan: the job.
        pods: its pods.
        secret: the secret that all nodes share (default: a new one).
    """
    counts = {"scheduler": 1, "server": plan.servers, "worker": plan.workers}
    key = {_KEY: secret or secrets.token_hex(32)}
    jobs = [_job(plan, pods, role, counts[role]) for role in ROLES if counts[role]]
    secret_object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(pods),
        "type": "Opaque",
        "stringData": key,
    }
    items = [_jobset(pods, jobs)] if pods.jobset else [_service(pods), *jobs]
    return {"apiVersion": "v1", "kind": "List", "items": [secret_object, *items]}


def _metadata(pods: Pods, role: str = "") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "flowmx", "app.kubernetes.io/instance": pods.name}
    if role:
        labels["app.kubernetes.io/component"] = role
    place = {"namespace": pods.namespace} if pods.namespace else {}
    return {"name": f"{pods.name}-{role}" if role else pods.name, "labels": labels, **place}


def _service(pods: Pods) -> dict[str, object]:
    """Return the headless Service that gives pods their DNS names."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # nodes connect to each other before they are ready
        "selector": {"app.kubernetes.io/instance": pods.name},
        "ports": [{"name": "scheduler", "port": SCHEDULER_PORT}, {"name": "server", "port": SERVER_PORT}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(pods), "spec": spec}


def _jobset(pods: Pods, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a JobSet of the Jobs: it makes the Service, stops all Jobs if one fails, and ends when all have ended."""
    replicated = []
    for job in jobs:
        spec, labels = job["spec"], job["metadata"]["labels"]
        del spec["template"]["spec"]["subdomain"]  # the JobSet sets it
        role = labels["app.kubernetes.io/component"]
        replicated.append({"name": role, "replicas": 1, "template": {"metadata": {"labels": labels}, "spec": spec}})
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": pods.name, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},  # the policy of the flowmx job decides about restarts
        "successPolicy": {"operator": "All"},
        "replicatedJobs": replicated,
    }
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _metadata(pods), "spec": spec}


def _job(plan: Plan, pods: Pods, role: str, count: int) -> dict[str, object]:
    is_elastic = plan.policy == "elastic"
    metadata = _metadata(pods, role)
    pod = {
        "subdomain": pods.name,
        "restartPolicy": "OnFailure" if is_elastic else "Never",
        "terminationGracePeriodSeconds": pods.seconds,
        "securityContext": _security(pods),
        "containers": [_container(plan, pods, role)],
        "volumes": [{"name": "secret", "secret": {"secretName": pods.name, "defaultMode": 0o440}}],
    }
    spec = {
        "completionMode": "Indexed", "completions": count, "parallelism": count,
        "backoffLimit": plan.restarts if is_elastic else 0,
        "template": {"metadata": {"labels": metadata["labels"]}, "spec": pod},
    }  # fmt: skip
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _security(pods: Pods) -> dict[str, object]:
    """Return a pod's security context. All containers are in the group of its volumes, so they can read the secret."""
    context: dict[str, object] = {"fsGroup": pods.user or _GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    if pods.user is None:
        return context
    user = {"runAsNonRoot": True, "runAsUser": pods.user, "runAsGroup": pods.user}
    return {**context, **user, "seccompProfile": {"type": "RuntimeDefault"}}


def _container(plan: Plan, pods: Pods, role: str) -> dict[str, object]:
    options = {
        "--role": role, "--scheduler": pods.scheduler, "--workers": str(plan.workers), "--servers": str(plan.servers),
        "--server-port": str(SERVER_PORT), "--policy": plan.policy, "--job": plan.job,
    }  # fmt: skip
    if plan.snapshot:
        options |= {"--snapshot": plan.snapshot, "--snapshot-every": str(plan.snapshot_every)}
    command = ["python", "-m", "flowmx", "node", *(word for pair in options.items() for word in pair)]
    container: dict[str, object] = {
        "name": role,
        "image": pods.image,
        "command": [*command, "--", *plan.command],
        "env": [
            {"name": "FLOWMX_SECRET_FILE", "value": f"{_SECRETS}/{_KEY}"},
            {"name": "FLOWMX_NODE_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": name, "value": plan.environ[name]} for name in plan.forward if name in plan.environ),
        ],
        "volumeMounts": [{"name": "secret", "mountPath": _SECRETS, "readOnly": True}],
    }
    if pods.user is not None:
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    if role == "worker":
        # No probes: a busy worker is not dead, and the scheduler watches its heartbeats.
        return container | ({"resources": {"limits": dict(pods.resources)}} if pods.resources else {})
    port = {"port": SCHEDULER_PORT if role == "scheduler" else SERVER_PORT}
    return container | {
        "ports": [{"containerPort": port["port"]}],
        "startupProbe": {"tcpSocket": port, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {"tcpSocket": port, "periodSeconds": 10, "failureThreshold": 3},
    }
