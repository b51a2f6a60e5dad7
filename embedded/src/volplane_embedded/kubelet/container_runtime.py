"""Starts and ends the containers of one pod (pkg/kubelet/kuberuntime)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from volplane.controller.actions import EventRecord, Recorder
from volplane.controller.runner import Steps
from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane_embedded.informers import Informers
from volplane_embedded.kubelet.container_config import ContainerConfigError, ContainerPaths, MountedVolume, sandbox_spec
from volplane_embedded.kubelet.environment import Missing, config_references, make_environment
from volplane_embedded.kubelet.pod_actions import should_restart
from volplane_embedded.kubelet.pod_directory import PodDirectory, terminated_state
from volplane_embedded.kubelet.pod_state import ContainerRecord, PodRecord, Terminated
from volplane_embedded.kubelet.sandboxes import Sandbox, Sandboxes
from volplane_embedded.kubelet.volume_manager import VolumeManager
from volplane_embedded.objects import PODS, Container, Now, Pod, timestamp
from volplane_embedded.sandbox.limits import default_memory
from volplane_embedded.sandbox.spec import Report, Spec

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What all pod workers share (kubelet.Dependencies). root: the pods' directories. hidden: paths that no container
    sees.
    """

    client: Client
    informers: Informers
    steps: Steps
    recorder: Recorder
    now: Now
    sandboxes: Sandboxes
    volumes: VolumeManager
    root: Path
    hidden: Sequence[Path]


class ContainerRuntime:
    """Starts and ends containers, and records their states in the pod's record. Calls `changed` after each change."""

    def __init__(
        self,
        deps: Dependencies,
        files: PodDirectory,
        record: PodRecord,
        *,
        tasks: asyncio.TaskGroup,
        starts: asyncio.Semaphore,
        changed: Callable[[], None],
    ) -> None:
        self._deps = deps
        self._files = files
        self._record = record
        self._tasks = tasks
        self._starts = starts
        self._changed = changed
        self._sandboxes: dict[str, Sandbox] = {}

    def launch(self, pod: Pod, name: str, sources: Mapping[str, MountedVolume]) -> None:
        """Start a container in a task of its own."""
        self._record.container(name).launch()
        self._tasks.create_task(self._run_container(pod, name, sources), name=f"{pod.key}/{name}")

    def stop(self, pod: Pod) -> None:
        """Send SIGTERM to all. Containers that are not started yet are not started any more."""
        for container in self._record.active:
            self._notice(pod, "Normal", "Killing", f"Stopping container {container.name}")
            if (sandbox := self._sandboxes.get(container.name)) is not None:
                sandbox.terminate()

    def sandbox(self, container: str) -> Sandbox | None:
        """Return the sandbox of a container, None if it does not run."""
        return self._sandboxes.get(container)

    def kill(self) -> None:
        """Send SIGKILL to all."""
        for sandbox in self._sandboxes.values():
            sandbox.kill()

    async def _run_container(self, pod: Pod, name: str, sources: Mapping[str, MountedVolume]) -> None:
        """Run one start of a container, from its preparation to its end."""
        container = next(one for one in (*(pod.spec.init_containers or ()), *pod.spec.containers) if one.name == name)
        record = self._record.container(name)
        try:
            await self._start(pod, container, record, sources)
        except (Missing, ApiError) as error:
            self._refuse(pod, record, "CreateContainerConfigError", str(error))
        except ContainerConfigError as refused:
            self._refuse(pod, record, refused.reason, refused.message)
        except OSError as error:
            self._refuse(pod, record, "CreateContainerError", str(error))
        except Exception as error:  # noqa: BLE001 -- one container must not end the kubelet
            _LOG.exception("running container %s of pod %s failed", name, pod.key)
            self._refuse(pod, record, "CreateContainerError", f"an internal error: {type(error).__name__}: {error}")
        finally:
            self._sandboxes.pop(name, None)
            self._changed()

    async def _start(
        self, pod: Pod, container: Container, record: ContainerRecord, sources: Mapping[str, MountedVolume]
    ) -> None:
        configuration = await self._deps.volumes.configuration(pod, *config_references(container))
        env = make_environment(pod, container, configuration)
        places = await asyncio.to_thread(self._files.make, container.name, record.attempt)
        spec = sandbox_spec(
            pod,
            container,
            env=env,
            sources=sources,
            places=places,
            hidden=self._deps.hidden,
            memory=default_memory(),
        )
        await self._run(pod, container, record, spec, places)

    async def _run(
        self, pod: Pod, container: Container, record: ContainerRecord, spec: Spec, places: ContainerPaths
    ) -> None:
        await self._starts.acquire()
        held = True
        try:
            if self._is_stopping():
                self._refuse(pod, record, "ContainerCreating", "the pod ended before the container was started")
                return
            sandbox = await self._deps.sandboxes.launch(spec)
            self._sandboxes[container.name] = sandbox
            if self._is_stopping():
                sandbox.terminate()
            try:
                async for report in sandbox.reports():
                    if held:
                        self._starts.release()
                        held = False
                    await self._handle_report(pod, container, record, report, places)
            except Exception:
                sandbox.close()  # kills the command; on cancellation `Sandboxes` kills it and waits
                raise
            sandbox.close()
        finally:
            if held:
                self._starts.release()

    async def _handle_report(
        self, pod: Pod, container: Container, record: ContainerRecord, report: Report, places: ContainerPaths
    ) -> None:
        mono = asyncio.get_running_loop().time()
        if report.event == "started":
            record.run(timestamp(self._deps.now()), mono)
            self._notice(pod, "Normal", "Started", f"Started container {container.name}")
        elif report.event == "exited":
            ended = await asyncio.to_thread(
                terminated_state, report, places, policy=container.termination_message_policy
            )
            self._end(pod, record, ended)
        elif report.stage == "namespaces":
            record.refuse("SandboxUnavailable", report.message, mono)
            self._record.failure = ("SandboxUnavailable", report.message)
            self._notice(pod, "Warning", "FailedCreatePodSandBox", report.message)
        elif report.stage == "mounts":
            self._refuse(pod, record, "CreateContainerError", report.message)
        else:
            self._notice(pod, "Warning", "Failed", f"Error: {report.message}")
            now = timestamp(self._deps.now())
            self._end(pod, record, Terminated(code=128, reason="StartError", message=report.message, finished=now))
        self._changed()

    def _is_stopping(self) -> bool:
        return self._record.stopping is not None

    def _end(self, pod: Pod, record: ContainerRecord, ended: Terminated) -> None:
        record.end(ended, asyncio.get_running_loop().time())
        if record.pause and should_restart(pod, record) and not self._is_stopping():
            whose = f"{pod.name}_{pod.namespace}({pod.uid})"
            message = f"Back-off restarting failed container {record.name} in pod {whose}"
            self._notice(pod, "Warning", "BackOff", message)

    def _refuse(self, pod: Pod, record: ContainerRecord, reason: str, message: str) -> None:
        record.refuse(reason, message, asyncio.get_running_loop().time())
        self._notice(pod, "Warning", "Failed", f"Error: {message}")

    def _notice(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        self._deps.recorder.record(EventRecord(PODS, pod, kind, reason, message))
