"""One run of the suite: find out what the cluster has, run the sections, remove everything, report."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from volplane.errors import ApiError, ConfigurationError, VolplaneError
from volplane.intents.bootstrap import cluster_id_of
from volplane.kube.client import Client
from volplane.kube.http.route import refused
from volplane.kube.http.transport import HttpTransport
from volplane.process.duties import parse_controllers
from volplane_testing.qualification import preflight
from volplane_testing.qualification.assets import Assets
from volplane_testing.qualification.cleanup import clean, empty
from volplane_testing.qualification.controllers import Controllers
from volplane_testing.qualification.plan import Plan, Section
from volplane_testing.qualification.report import (
    Facts,
    Failed,
    NotPossible,
    SectionResult,
    SectionStatus,
    SuiteReport,
)
from volplane_testing.qualification.site import Site

__all__ = ["run_suite"]

NO_BINDER = (
    "nobody binds claims in this cluster; --controllers all has volplane do it, which then acts on every claim and "
    "volume of the cluster"
)
INTERRUPTED = "interrupted"
EXPECTED = (Failed, VolplaneError, OSError)
"""What a section raises of a cluster that is not as it should be; anything else is a fault of the suite."""

Observe = Callable[[str, SectionResult | None], None]
"""Called with the name of what begins, then with its result."""


async def run_suite(plan: Plan, stop: asyncio.Event, *, observe: Observe = lambda _name, _result: None) -> SuiteReport:
    """Run the sections of the plan until the end, or until `stop` is set; then remove what was made.

    Raises ConfigurationError for a plan that this cluster cannot have, and ApiError if a right is missing for the
    first steps. A failure of anything later is in the report.
    """
    async with _opened(plan) as (client, server, work):
        observe("preflight", None)
        site = await _site(plan, client, server, work)
        results: list[SectionResult] = []
        try:
            await preflight.make_namespaces(site)
            site = replace(site, facts=await _facts(site))
            for section in plan.chosen():
                observe(section.name, None)
                missing = sorted(section.needs - parse_controllers(plan.controllers))
                results.append(_without(section, missing) if missing else await _judged(section, site, stop))
                observe(section.name, results[-1])
        finally:
            observe("cleaning up", None)
            # Also after Ctrl-C and after a failure of the suite itself.
            left = await asyncio.shield(asyncio.ensure_future(clean(site)))
        report = SuiteReport(
            run=plan.run,
            volplane=version("volplane"),
            controllers=plan.controllers,
            backend=plan.backend,
            facts=site.facts,
            results=tuple(results),
            left=left,
        )
        if report.passed:
            shutil.rmtree(work, ignore_errors=True)
            return report
        return replace(report, logs=str(work))


@asynccontextmanager
async def _opened(plan: Plan) -> AsyncIterator[tuple[Client, str, Path]]:
    """Return the client, the address of its server, and the run's own directory on this machine."""
    transport = await HttpTransport.connect(plan.kubeconfig)
    client = Client(transport)
    try:
        yield client, transport.server, await asyncio.to_thread(_directory, plan)
    except ApiError as error:
        if (told := refused(transport.server, error)) is error:
            raise
        raise told from error
    finally:
        await client.close()


def _directory(plan: Plan) -> Path:
    if plan.work is not None:
        plan.work.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{plan.run}-", dir=plan.work)).resolve()
    made.chmod(0o755)  # pods may run as anybody
    return made


async def _site(plan: Plan, client: Client, server: str, work: Path) -> Site:
    driver = f"{plan.run}.volplane.dev"
    configuration = work / "volplane.yaml"
    hostpath = plan.backend == "hostpath" and "root" not in plan.options
    options: dict[str, Any] = dict(plan.options)
    root = work / "volumes"
    if hostpath:
        options = {"root": str(root), "create_root": True, "shared": True, **options}
    content = {
        "drivers": [{"name": driver, "backend": plan.backend, "options": options}],
        "scrubber": {"image": plan.image},
    }
    configuration.write_text(yaml.safe_dump(content), "utf-8")
    cluster_id = await cluster_id_of(client, None)
    arguments = ["--controllers", plan.controllers, "--namespace", f"{plan.run}-system", "--config", str(configuration)]
    if plan.kubeconfig is not None:
        arguments += ["--kubeconfig", str(plan.kubeconfig)]
    return Site(
        run=plan.run,
        client=client,
        controllers=Controllers(arguments, work),
        assets=await asyncio.to_thread(Assets.of, configuration, cluster_id),
        facts=await preflight.look(client, server),
        driver=driver,
        local=root if hostpath else None,
        whole="binder" in parse_controllers(plan.controllers),
        image=plan.image,
        capacity=plan.capacity,
        parameters=dict(plan.parameters),
        kubeconfig=plan.kubeconfig,
        churn_seconds=plan.churn_seconds,
        kills=plan.kills,
        patience=plan.patience,
    )


async def _facts(site: Site) -> Facts:
    """Find what only a trial tells. Raises ConfigurationError for controllers that do not fit the cluster."""
    binder = False
    if site.whole:
        await preflight.nobody_binds(site)
    else:
        binder = await preflight.somebody_binds(site)
        if not binder:
            raise ConfigurationError(NO_BINDER)
    return replace(site.facts, binder=binder, no_pods=await preflight.pods_see(site))


def _without(section: Section, missing: Sequence[str]) -> SectionResult:
    """Return the reason to skip a section for whose work this run has no controller."""
    why = f"--controllers does not name {', '.join(missing)}"
    return SectionResult(name=section.name, status=SectionStatus.NOT_POSSIBLE, reason=why, seconds=0.0)


async def _judged(section: Section, site: Site, stop: asyncio.Event) -> SectionResult:
    """Run one section, and leave nothing for the next one to see."""
    loop = asyncio.get_running_loop()
    begun = loop.time()

    def result(status: SectionStatus, reason: str = "", **measured: Any) -> SectionResult:
        seconds = loop.time() - begun
        return SectionResult(name=section.name, status=status, reason=reason, seconds=seconds, **measured)

    if section.pods and site.facts.no_pods:
        return result(SectionStatus.NOT_POSSIBLE, site.facts.no_pods)
    if stop.is_set():
        return result(SectionStatus.FAILED, INTERRUPTED)
    working = asyncio.ensure_future(section.run(site))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
            return result(SectionStatus.FAILED, INTERRUPTED)
        measured = working.result()
        await empty(site)
    except NotPossible as missing:
        return result(SectionStatus.NOT_POSSIBLE, str(missing))
    except EXPECTED as failure:
        return result(SectionStatus.FAILED, str(failure))
    except ExceptionGroup as failures:
        if failures.split(EXPECTED)[1] is not None:
            raise
        return result(SectionStatus.FAILED, _why(failures))
    else:
        return result(SectionStatus.PASSED, measured=measured)
    finally:
        stopped.cancel()


def _why(failures: BaseExceptionGroup[Exception]) -> str:
    """Return the leaves' texts."""
    texts = (_why(each) if isinstance(each, BaseExceptionGroup) else str(each) for each in failures.exceptions)
    return "; ".join(dict.fromkeys(texts))
