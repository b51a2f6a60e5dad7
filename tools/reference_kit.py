"""Pages of docs/reference about the testing kit and its conformance suite."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator

from tools.reference_definitions import Index, definition_of
from tools.reference_docstrings import BAR, MARK, contract
from tools.reference_names import Name, closure, exported

from volplane_testing.conformance import RULES, Subject

SUBJECT = Name(Subject.__module__, Subject.__name__)
KITS = {
    "testing.md": "volplane_testing",
    "cloud.md": "volplane.cloud",
    "directory.md": "volplane.directory",
    "cloud_testing.md": "volplane_testing.cloud",
    "hostpath_testing.md": "volplane_hostpath.testing",
    "aws_ebs_testing.md": "volplane_aws_ebs.testing",
    "gce_pd_testing.md": "volplane_gce_pd.testing",
    "nfs_testing.md": "volplane_nfs.testing",
    "nfs_client.md": "volplane_nfs.nfs4",
    "csi_testing.md": "volplane_csi.testing",
}
TITLES = {
    "testing.md": "Testing kit",
    "cloud.md": "For authors of cloud backends",
    "directory.md": "For authors of backends whose volumes are directories",
    "cloud_testing.md": "Testing kit for clouds: the frame of a fake cloud",
    "hostpath_testing.md": "Testing kit of hostpath",
    "aws_ebs_testing.md": "Testing kit of aws_ebs: a mocked EC2",
    "gce_pd_testing.md": "Testing kit of gce_pd: a mocked Compute Engine",
    "nfs_testing.md": "Testing kit of nfs: servers",
    "nfs_client.md": "The NFSv4 client of nfs",
    "csi_testing.md": "Testing kit of csi: a strict driver",
}
HOW_TO = {
    "testing.md": "[How to use it](../how-to/test-a-backend.md). "
    "The rules, and `Subject`, are in [conformance.md](conformance.md).",
    "cloud.md": "[How to use it](../how-to/write-a-cloud-backend.md).",
    "directory.md": "hostpath and nfs are built on it.",
    "cloud_testing.md": "[How to use it](../how-to/write-a-cloud-backend.md).",
    "hostpath_testing.md": "`volplane check volplane_hostpath.testing:subject` judges the backend with it.",
    "aws_ebs_testing.md": "[How to use it](../how-to/test-against-a-mocked-ec2.md).",
    "gce_pd_testing.md": "Over HTTP `FakeComputeServer` serves it, in the process `InProcess`.",
    "csi_testing.md": "`volplane check volplane_csi.testing:subject` judges the backend with it.",
    "nfs_client.md": "[The driver's page](nfs.md) says what it does with it.",
    "nfs_testing.md": "`volplane check volplane_nfs.testing:subject` judges the backend on the model in memory, "
    "`volplane_nfs.testing:ganesha_subject` on a real NFS-Ganesha.",
}


def names_of_kits(elsewhere: Collection[Name]) -> dict[str, list[Name]]:
    """What each page defines: the names of its kit, and those that their signatures use."""
    pages = {"conformance.md": [SUBJECT]}
    known = {*elsewhere, SUBJECT}
    for page, module in KITS.items():
        listed = [name for name in exported(module) if name not in known]
        pages[page] = [*listed, *closure(listed, known)]
        known.update(pages[page])
    return pages


def kit_page(page: str, index: Index) -> Iterator[str]:
    """Every public name of a kit, and every name that their signatures use."""
    module = KITS[page]
    listed = exported(module)
    yield f"# {TITLES[page]}\n"
    yield MARK + "\n"
    yield contract(importlib.import_module(module)) + "\n"
    yield HOW_TO[page] + "\n"
    defined = index.defined_on(page)
    for name in sorted((name for name in defined if name in listed), key=lambda each: each.name.lower()):
        yield from definition_of(name, page, index, level=2)
    if others := sorted((name for name in defined if name not in listed), key=lambda each: each.name.lower()):
        yield "\n## Types named above\n"
        for name in others:
            yield from definition_of(name, page, index, level=3, constructed=False)


def conformance_page(index: Index) -> Iterator[str]:
    """The rules of the conformance suite, and the settings that a backend's tests may pass to it."""
    fixed = sum(not rule.waivable for rule in RULES)
    yield "# Conformance\n"
    yield MARK + "\n"
    yield f"""\
{len(RULES)} rules say what every backend promises. [How to run them](../how-to/test-a-backend.md), with pytest or from
the command line. They are judged in this order; a rule that builds on one that is violated is not judged. A rule that
says nothing about a backend (it lacks the hook, or the subject the means) is reported as not applicable, with the
reason.

A backend that cannot keep a rule declares that in `describe().waived_rules`, rule -> reason, and every report shows it.
{fixed} rules cannot be waived: without them nothing that volplane promises could be kept. An unknown rule, one that
cannot be waived, or a missing reason there is itself a violation (`waivers-are-honest`).
"""
    yield "| rule | the backend promises | needs | can be waived |\n|---|---|---|---|"
    for rule in RULES:
        needs = ", ".join(f"`{hook}`" for hook in sorted(rule.hooks))
        yield f"| `{rule.name}` | {rule.says.replace('|', BAR)} | {needs} | {'yes' if rule.waivable else 'no'} |"
    yield "\n## After csi-sanity\n"
    yield "These rules follow a check of csi-test's sanity suite:\n"
    yield "| rule | csi-sanity |\n|---|---|"
    for rule in RULES:
        if rule.sanity:
            yield f"| `{rule.name}` | {rule.sanity} |"
    yield from definition_of(SUBJECT, "conformance.md", index, level=2)
