"""`python -m tools.measure` counts what its definitions say, in a small tree that is made here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.paired import spread, summary
from tools.measure import code, copies
from tools.measure.__main__ import ROWS
from tools.measure.tests_of import REPLACED, names_in, replaced
from tools.measure.walk import walk

REPOSITORY = Path(__file__).resolve().parents[2]
DUTY = """
from volplane.controller.controller import Controller, Duty

def _controllers(role, shared) -> A | B | None:
    if role.node_name:
        return None
    yield Controller(queue="sizes", decide=decide)

def other(role) -> A | None:
    return role.namespace

SIZES: Final[Duty[Shared]] = Duty(option="expander", controllers=_controllers)
"""
ROLE = """
class Role:
    namespace: str
    node_name: str = ""
"""
WIRING = """
from volplane.expand import SIZES

def chosen(role):
    return role.node_name
"""
TWELVE = "\n".join(f"    value = call(first, {number})" for number in range(11))


@pytest.fixture
def modules(tmp_path: Path) -> list[code.Module]:
    """Make a core of eight files, three of them of kits."""
    core = tmp_path / "core" / "volplane"
    files = {
        "expand/__init__.py": DUTY,
        "expand/resize.py": "def decide(role):\n    return role.node_name\n",
        "controller/role.py": ROLE,
        "process/duties.py": WIRING,
        "cloud/rates.py": ROLE,
        "trash/choice.py": ROLE,
        "cli/trash.py": ROLE,
        "cli/run.py": "",
    }
    for name, text in files.items():
        (core / name).parent.mkdir(parents=True, exist_ok=True)
        (core / name).write_text(text)
    return code.core_modules(tmp_path)


def test_kits_are_apart(modules: list[code.Module], tmp_path: Path) -> None:
    assert sorted(str(each.path) for each in modules) == [
        "cli/run.py",
        "controller/role.py",
        "expand/__init__.py",
        "expand/resize.py",
        "process/duties.py",
    ]
    assert [str(each.path) for each in code.core_modules(tmp_path, kits=True)] == [
        "cli/trash.py",
        "cloud/rates.py",
        "trash/choice.py",
    ]


def test_a_role_is_read_where_a_decision_asks_for_it_and_not_where_controllers_are_made(
    modules: list[code.Module],
) -> None:
    assert code.role_reads(modules) == ["expand/resize.py:2 node_name"]


def test_a_result_of_several_types_has_two_besides_none(modules: list[code.Module]) -> None:
    assert code.mixed_results(modules) == ["expand/__init__.py:4 _controllers -> A | B"]


def test_a_controller_is_known_where_its_duty_is_imported(modules: list[code.Module]) -> None:
    assert code.places_of_controllers(modules) == {"sizes": ["expand", "process/duties.py"]}


def test_branches_are_drawn_by_the_seed(modules: list[code.Module]) -> None:
    assert code.guards(modules, seed=1) == ["core/volplane/expand/__init__.py:5  if role.node_name"]
    drawn = [code.guards(code.core_modules(REPOSITORY), seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 50


def test_two_functions_of_one_shape_are_found_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(f"def one(first):\n{TWELVE}\n    return value\n")
    (tmp_path / "two.py").write_text(
        f"import os\n\n\ndef two(last):\n{TWELVE.replace('first', 'last')}\n    return 7\n"
    )
    (tmp_path / "three.py").write_text(
        f"def three(first):\n{TWELVE}\n    return value\n".replace("call(", "await call(")
    )
    assert [str(pair) for pair in copies.shapes(tmp_path, ["."])] == ["one.py:1-13 ~ two.py:4-16"]


def test_lines_of_plugins_are_the_same_whatever_their_texts(tmp_path: Path) -> None:
    doing = 'name = "{0}"\nsize = {1} * unit\nother = call(name)\n'
    declaring = 'Row(\n    code="{0}",\n    advice="{0}",\n    wait=LATER,\n)\n'
    lines = doing + declaring
    for plugin, text in (
        ("aws_ebs", lines.format("a", 1)),
        ("gce_pd", lines.format("b", 20)),
        ("nfs", ""),
        ("hostpath", ""),
    ):
        (tmp_path / "plugins" / plugin / "src").mkdir(parents=True)
        (tmp_path / "plugins" / plugin / "src" / "m.py").write_text(text)
    assert copies.shared_by_plugins(tmp_path) == {"aws_ebs in gce_pd": 3, "hostpath in nfs": 0}
    assert copies.shared_by_plugins(tmp_path, declared=True) == {"aws_ebs in gce_pd": 7, "hostpath in nfs": 0}


def test_the_walk_leaves_nothing_out() -> None:
    walked = walk()
    assert {"kube/objects.py", "controller/logs.py", "controller/runner.py"} <= set(walked.files)
    assert ("roles/whole.py", "Whole.decide_volume") in walked.functions


def test_tests_are_known_by_their_names_and_classes() -> None:
    text = "def test_one(): ...\nasync def test_two(): ...\ndef helper(): ...\n"
    text += "class TestX:\n    def test_three(self): ...\n"
    assert names_in(text) == {"test_one", "test_two", "TestX.test_three"}


def test_what_replaces_a_test_is_there() -> None:
    rows = re.findall(r"^\| `\w+` \| (?:None|`(\w+)`)", (REPOSITORY / REPLACED).read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(replaced(REPOSITORY))
    files = (path for place in ("tests", "plugins") for path in (REPOSITORY / place).rglob("test_*.py"))
    here = {name for path in files for name in names_in(path.read_text("utf-8"))}
    assert set(filter(None, rows)) <= here


def test_every_row_has_its_definition() -> None:
    assert all(row.definition for row in ROWS)
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_pairs_are_summed_up_by_the_median_of_their_ratios() -> None:
    assert spread([1.2, 0.9, 1.0]) == (0.9, 1.2)
    assert spread([1.0, 1.1, 1.2, 1.3, 9.0]) == (1.1, 1.3)
    told = summary("life", [(2.0, 2.0), (2.0, 2.2), (4.0, 2.0)])
    assert told == "life     base 2.000 ms, here 2.000 ms a claim; ratio 1.000 (0.500 to 1.100), 3 pairs"
