"""Describing, starting, and the texts that users see."""

from __future__ import annotations

from dataclasses import replace

from volplane.errors import AlreadyExists, BackendError, InvalidArgument
from volplane.requests import DescribeRequest, ProbeRequest, ValidateRequest
from volplane.schemas import ParameterKind
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.provisioning import (
    provision_again_gives_the_same_asset,
    provision_makes_an_asset,
)
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES"]

_LONGEST_MESSAGE = 1024


@rule("describe", waivable=False, sanity="GetPluginInfo should return appropriate information")
def describe_is_constant(bench: Bench) -> None:
    """`describe` returns the same before and after `start`, later, and in every process: volplane calls it once."""
    request = DescribeRequest(context=bench.instance.context())
    made = bench.make()
    bench.remove(made)
    for instance, when in ((bench.instance, "after work"), (bench.another(start=False), "in another process")):
        said = instance.once("describe", request)
        bench.require(said == bench.info, f"describe {when} says {said!r}, at load it said {bench.info!r}")


@rule("describe")
def describe_touches_nothing(bench: Bench) -> None:
    """Making an instance and calling `describe` changes nothing on the storage; both happen when nobody asked for
    work.
    """
    with bench.unchanged("building a backend and describing it"):
        instance = bench.another(start=False)
        instance.once("describe", DescribeRequest(context=instance.context()))


@rule("start", after=(provision_again_gives_the_same_asset,))
def start_can_be_repeated(bench: Bench) -> None:
    """`start` works on a storage that is in use: after a crash, beside another process, and again after `stop`."""
    made = bench.make()
    beside = bench.another()
    bench.require_intact(made, "another process has started")
    beside.stop()
    beside.start()
    bench.require_intact(made, "another process has stopped and started again")


@rule("probe", sanity="Probe should return appropriate information")
def probe_is_done_while_all_is_well(bench: Bench) -> None:
    """`probe` of a started backend whose storage is there is `Done`."""
    bench.instance.once("probe", ProbeRequest(context=bench.instance.context()))


@rule()
def unknown_parameters_are_refused(bench: Bench) -> None:
    """A class parameter that the schema does not have is refused by name; a misspelled one is never ignored."""
    if any(each.kind is ParameterKind.KEYS and not each.name for each in bench.info.parameters.parameters):
        raise NotApplicable("it takes every parameter")
    try:
        bench.parameters({**bench.subject.parameters, "no-such-parameter": "x"})
    except InvalidArgument as error:
        bench.require("no-such-parameter" in str(error), f"the refusal does not name the parameter: {error}")
    else:
        bench.require(False, "the parameter no-such-parameter was taken")


@rule("validate")
def validate_accepts_good_parameters_and_changes_nothing(bench: Bench) -> None:
    """`validate` is `Done` for the parameters with which assets are made, and changes nothing."""
    parameters = bench.parameters(bench.subject.parameters)
    with bench.unchanged("validate"):
        bench.instance.once("validate", ValidateRequest(context=bench.instance.context(), parameters=parameters))


@rule(waivable=False, after=(provision_makes_an_asset,))
def secrets_are_not_shown(bench: Bench) -> None:
    """No secret of the options is in a `repr`, an error, a result or `describe`: all of them end in logs and events."""
    if not bench.subject.secrets:
        raise NotApplicable("Subject.secrets names none")
    made = bench.make()
    other = replace(made.demand, capacity_bytes=made.asset.capacity_bytes * 2 + 1)
    texts = {"the repr of the backend": repr(bench.instance.backend), "its str": str(bench.instance.backend)}
    texts |= {"describe": repr(bench.info), "the asset": repr(made.asset)}
    try:
        bench.instance.once("provision", other)
    except BackendError as error:
        texts["an error"] = f"{error!r} {error}"
    for where, text in texts.items():
        bench.require(not any(secret in text for secret in bench.subject.secrets), f"{where} shows a secret")


@rule(after=(provision_makes_an_asset,))
def refusals_say_why(bench: Bench) -> None:
    """The message of an error is one sentence in one line, without a dot at its end: it becomes part of an event."""
    made = bench.make()
    other = replace(made.demand, capacity_bytes=made.asset.capacity_bytes * 2 + 1)
    try:
        bench.instance.once("provision", other)
    except AlreadyExists as error:
        text = error.message
    else:
        raise NotApplicable("another size is not refused")
    right = bool(text.strip()) and "\n" not in text and len(text) <= _LONGEST_MESSAGE and not text.endswith(".")
    bench.require(right, f"the message is {text!r}, expected one line without a dot at its end")


RULES = (
    describe_is_constant,
    describe_touches_nothing,
    start_can_be_repeated,
    probe_is_done_while_all_is_well,
    unknown_parameters_are_refused,
    validate_accepts_good_parameters_and_changes_nothing,
    secrets_are_not_shown,
    refusals_say_why,
)
