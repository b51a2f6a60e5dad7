"""The containers of one pod that are being started or run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from volplane.controller.actions import Notice
from volplane.errors import ApiError
from volplane_embedded.informers import timestamp
from volplane_embedded.kubelet.container_config import Places, Refused, Source, spec_of
from volplane_embedded.kubelet.environment import Missing, environment_of, references
from volplane_embedded.kubelet.pod_actions import restarts
from volplane_embedded.kubelet.pod_directory import PodFiles, end_of
from volplane_embedded.kubelet.pod_state import ContainerRecord, Ended, PodRecord
from volplane_embedded.kubelet.sandboxes import Sandbox
from volplane_embedded.kubelet.surroundings import Surroundings
from volplane_embedded.objects import PODS, Container, Pod
from volplane_embedded.sandbox.spec import Report, Spec

__all__ = ["Running"]

_LOG = logging.getLogger(__name__)


class Running:
    """Starts and ends containers and writes into the pod's record what becomes of them; `changed` is called then."""

    def __init__(
        self,
        around: Surroundings,
        files: PodFiles,
        record: PodRecord,
        *,
        tasks: asyncio.TaskGroup,
        starts: asyncio.Semaphore,
        changed: Callable[[], None],
    ) -> None:
        self._around = around
        self._files = files
        self._record = record
        self._tasks = tasks
        self._starts = starts
        self._changed = changed
        self._sandboxes: dict[str, Sandbox] = {}

    def launch(self, pod: Pod, name: str, sources: Mapping[str, Source]) -> None:
        """Start a container; what happens to it comes into its record."""
        self._record.container(name).launch()
        self._tasks.create_task(self._attend(pod, name, sources), name=f"{pod.key}/{name}")

    def stop(self, pod: Pod) -> None:
        """Ask all to end. Those that are not started yet never will be."""
        for container in self._record.active:
            self._notice(pod, "Normal", "Killing", f"Stopping container {container.name}")
            if (sandbox := self._sandboxes.get(container.name)) is not None:
                sandbox.terminate()

    def kill(self) -> None:
        """End all at once."""
        for sandbox in self._sandboxes.values():
            sandbox.kill()

    async def _attend(self, pod: Pod, name: str, sources: Mapping[str, Source]) -> None:
        """One start of a container, from its preparation to its end."""
        container = next(one for one in (*(pod.spec.init_containers or ()), *pod.spec.containers) if one.name == name)
        record = self._record.container(name)
        try:
            await self._start(pod, container, record, sources)
        except (Missing, ApiError) as error:
            self._refuse(pod, record, "CreateContainerConfigError", str(error))
        except Refused as refused:
            self._refuse(pod, record, refused.reason, refused.message)
        except OSError as error:
            self._refuse(pod, record, "CreateContainerError", str(error))
        except Exception as error:  # noqa: BLE001 -- one container may not end the agent
            _LOG.exception("running container %s of pod %s failed", name, pod.key)
            self._refuse(pod, record, "CreateContainerError", f"an internal error: {type(error).__name__}: {error}")
        finally:
            self._sandboxes.pop(name, None)
            self._changed()

    async def _start(
        self, pod: Pod, container: Container, record: ContainerRecord, sources: Mapping[str, Source]
    ) -> None:
        configuration = await self._around.volumes.configuration(pod, *references(container))
        env = environment_of(pod, container, configuration)
        places = await asyncio.to_thread(self._files.make, container.name, record.attempt)
        spec = spec_of(pod, container, env=env, sources=sources, places=places, hidden=self._around.hidden)
        await self._run(pod, container, record, spec, places)

    async def _run(self, pod: Pod, container: Container, record: ContainerRecord, spec: Spec, places: Places) -> None:
        await self._starts.acquire()
        held = True
        try:
            if self._is_stopping():
                self._refuse(pod, record, "ContainerCreating", "the pod ended before the container was started")
                return
            sandbox = await self._around.sandboxes.launch(spec)
            self._sandboxes[container.name] = sandbox
            if self._is_stopping():
                sandbox.terminate()
            try:
                async for report in sandbox.reports():
                    if held:
                        self._starts.release()
                        held = False
                    await self._hear(pod, container, record, report, places)
            except Exception:
                sandbox.close()  # which ends it; on cancellation `Sandboxes` does, and waits
                raise
            sandbox.close()
        finally:
            if held:
                self._starts.release()

    async def _hear(
        self, pod: Pod, container: Container, record: ContainerRecord, report: Report, places: Places
    ) -> None:
        mono = asyncio.get_running_loop().time()
        if report.event == "started":
            record.run(timestamp(self._around.now()), mono)
            self._notice(pod, "Normal", "Started", f"Started container {container.name}")
        elif report.event == "exited":
            ended = await asyncio.to_thread(end_of, report, places, policy=container.termination_message_policy)
            self._end(pod, record, ended)
        elif report.stage == "namespaces":
            record.refuse("SandboxUnavailable", report.message, mono)
            self._record.failure = ("SandboxUnavailable", report.message)
            self._notice(pod, "Warning", "FailedCreatePodSandBox", report.message)
        elif report.stage == "mounts":
            self._refuse(pod, record, "CreateContainerError", report.message)
        else:
            self._notice(pod, "Warning", "Failed", f"Error: {report.message}")
            now = timestamp(self._around.now())
            self._end(pod, record, Ended(code=128, reason="StartError", message=report.message, finished=now))
        self._changed()

    def _is_stopping(self) -> bool:
        return self._record.stopping is not None

    def _end(self, pod: Pod, record: ContainerRecord, ended: Ended) -> None:
        record.end(ended, asyncio.get_running_loop().time())
        if record.pause and restarts(pod, record) and not self._is_stopping():
            whose = f"{pod.name}_{pod.namespace}({pod.uid})"
            message = f"Back-off restarting failed container {record.name} in pod {whose}"
            self._notice(pod, "Warning", "BackOff", message)

    def _refuse(self, pod: Pod, record: ContainerRecord, reason: str, message: str) -> None:
        record.refuse(reason, message, asyncio.get_running_loop().time())
        self._notice(pod, "Warning", "Failed", f"Error: {message}")

    def _notice(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        self._around.recorder.record(Notice(PODS, pod, kind, reason, message))
