"""`make mutants`: what it changes, how a change is put in place, and what it keeps."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tools.mutants.changed_lines import changed_lines
from tools.mutants.coverage_map import CoverageMap, moved
from tools.mutants.swapping import Swapper
from tools.mutants.variant import Variant
from tools.mutants.verdicts import Verdict, Verdicts, excused_variants

SOURCE = """\
LIMIT = 3


def guarded(size, owner):
    if size > LIMIT or not owner:
        return "refused"
    return "deleted"


class Holder:
    def held(self):
        return [name for name in ("a", "b") if name]
"""


END = """
def ends():
    print()
    return None
"""


KNOWN: dict[str, Any] = {"digest": "", "seconds": 0.1, "lines": {}}


def variant(was: str, now: str, *, function: str = "guarded", at_import: bool = False) -> Variant:
    line = SOURCE[: SOURCE.index(was)].count("\n") + 1
    return Variant("module.py", function, at_import, line, line, was, now, SOURCE.replace(was, now))


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    (tmp_path / "module.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("a_module_to_change", tmp_path / "module.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules[spec.name]


def test_a_changed_function_is_changed_for_all_who_imported_it(module: ModuleType, tmp_path: Path) -> None:
    guarded = module.guarded
    assert guarded(5, "me") == "refused"
    swapper = Swapper(tmp_path, frozenset({"module.py"}))
    assert swapper.swap(variant("size > LIMIT or not owner", "not owner"))
    assert guarded(5, "me") == "deleted"


def test_so_is_one_that_the_garbage_collector_does_not_list(module: ModuleType, tmp_path: Path) -> None:
    gc.freeze()
    swapper = Swapper(tmp_path, frozenset({"module.py"}))
    assert swapper.swap(variant("size > LIMIT or not owner", "not owner"))
    assert module.guarded(5, "me") == "deleted"


def test_so_is_a_method_with_what_is_within_it(module: ModuleType, tmp_path: Path) -> None:
    holder = module.Holder()
    swapper = Swapper(tmp_path, frozenset({"module.py"}))
    assert swapper.swap(variant('"b"', '"c"', function="Holder.held"))
    assert holder.held() == ["a", "c"]


def test_what_is_computed_at_the_import_is_computed_anew(module: ModuleType, tmp_path: Path) -> None:
    swapper = Swapper(tmp_path, frozenset({"module.py"}))
    changed = variant("LIMIT = 3", "LIMIT = 7", function="", at_import=True)
    assert not swapper.swap(changed)
    assert module.guarded(5, "me") == "refused"
    assert swapper.recompute(changed)
    assert module.guarded(5, "me") == "deleted"


def git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def test_the_lines_of_a_change_are_those_since_the_base_committed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1\n2\n3\n4\n")
    (tmp_path / "b.py").write_text("1\n")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    git(tmp_path, "checkout", "--quiet", "-b", "mine")
    (tmp_path / "a.py").write_text("1\n2 changed\n3\n4\nadded\n")
    git(tmp_path, "commit", "--quiet", "--all", "--message", "two")
    (tmp_path / "b.py").write_text("0\n1\n")
    (tmp_path / "a.py").write_text("1\n2 changed\n4\nadded\n")
    assert changed_lines(tmp_path, "main") == {"a.py": {2, 4}, "b.py": {1}}
    with pytest.raises(ValueError, match="no-such-base"):
        changed_lines(tmp_path, "no-such-base")


def test_what_was_noticed_is_known_until_its_function_changes(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE)
    one = variant("size > LIMIT", "size >= LIMIT")
    verdicts = Verdicts(tmp_path, tmp_path)
    assert verdicts.noticed_by(one) == ""
    verdicts.keep(one, Verdict(noticed=True, by="test_it"))
    verdicts.save()
    assert Verdicts(tmp_path, tmp_path).noticed_by(one) == "test_it"
    assert Verdicts(tmp_path, tmp_path).noticed_by(variant("size > LIMIT", "size < LIMIT")) == ""
    (tmp_path / "module.py").write_text("FIRST = 1\n" + SOURCE.replace('"b"', '"c"'))
    assert Verdicts(tmp_path, tmp_path).noticed_by(one) == "test_it"
    (tmp_path / "module.py").write_text(SOURCE.replace('"deleted"', '"gone"'))
    assert Verdicts(tmp_path, tmp_path).noticed_by(one) == ""
    told = Verdicts(tmp_path, tmp_path).telling("module.py")
    assert told == {"guarded": {"test_it": 1}}, "it may notice other changes of the function"


def test_tests_that_missed_a_change_are_known_until_something_notices_it(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE)
    one = variant("size > LIMIT", "size >= LIMIT")
    verdicts = Verdicts(tmp_path, tmp_path)
    verdicts.keep(one, Verdict(noticed=False, missed_by=frozenset({"a"})))
    verdicts.keep(one, Verdict(noticed=False, missed_by=frozenset({"b"})))
    verdicts.save()
    verdicts = Verdicts(tmp_path, tmp_path)
    assert (verdicts.noticed_by(one), verdicts.missed_by(one)) == ("", {"a", "b"})
    verdicts.keep(one, Verdict(noticed=True, by="test_it"))
    assert (verdicts.noticed_by(one), verdicts.missed_by(one)) == ("test_it", set())
    verdicts.forget("module.py")
    assert verdicts.noticed_by(one) == ""


def test_lines_are_followed_to_where_they_are_after_a_change() -> None:
    to = moved("a\nb\nc\nd\n", "new\na\nb\nchanged\nadded\nd\n")
    assert to[2] == [3, 4, 5], "a changed line belongs to those that it stands between"
    assert to[3] == [4, 5]
    assert to[4] == [4, 5, 6]
    assert to[1] == [1, 2]


def measured(tmp_path: Path, source: str) -> CoverageMap:
    """What is known of two tests, of which one runs a module whose text was `source` then."""
    kept = {"sources": {"module.py": source}, "tests": {"runs it": KNOWN | {"lines": {"module.py": [5]}}, "not": KNOWN}}
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    (tmp_path / "module.py").write_text(SOURCE)
    return CoverageMap(tmp_path, tmp_path / "kept.json", ["module.py"])


def test_who_runs_a_module_is_measured_anew_when_it_gets_a_function(tmp_path: Path) -> None:
    assert set(measured(tmp_path, SOURCE.replace("def guarded", "def former")).passing()) == {"not"}


def test_who_runs_a_line_is_known_when_others_change(tmp_path: Path) -> None:
    changed = measured(tmp_path, "\n" + SOURCE.replace("deleted", "gone"))
    assert set(changed.passing()) == {"runs it", "not"}
    assert list(changed.covering("module.py", [4])) == ["runs it"]


def test_an_excuse_has_a_reason_and_names_each_change(tmp_path: Path) -> None:
    file = tmp_path / "excused.toml"
    entry = '[["module.py"]]\nfunction = "guarded"\nwas = "a"\nnow = ["b", "c"]\nreason = "{}"\n'
    file.write_text(entry.format("they are equal"))
    assert excused_variants(file) == {("module.py", "guarded", "a", "b"), ("module.py", "guarded", "a", "c")}
    file.write_text(entry.format(" "))
    with pytest.raises(ValueError, match="no reason is given for 'a'"):
        excused_variants(file)


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("mutmut") is None, reason="mutmut is installed by `make mutants`")
def test_guards_are_taken_apart_and_texts_left_alone(tmp_path: Path) -> None:
    from tools.mutants.variants import variants_of

    (tmp_path / "module.py").write_text(SOURCE + 'WHY = print(why="the disk is gone") or "two words"\n' + END)
    made = list(variants_of(tmp_path, "module.py"))
    guards = {each.now for each in made if each.line == 5}
    assert {"if True:", "if False:", "if size > LIMIT:", "if not owner:", "if size > LIMIT and not owner:"} <= guards
    assert {each.now for each in made if each.line == 6} == {"pass", 'return "XXrefusedXX"'}
    assert {each.at_import for each in made if each.line == 1} == {True}
    assert not [each for each in made if "XX" in each.now and "gone" in each.now]
    assert "pass" not in {each.now for each in made if each.was == "return None"}, "it is the end of a function"
    assert [each for each in variants_of(tmp_path, "module.py", {5}) if each.line != 5] == []


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("mutmut") is None, reason="mutmut is installed by `make mutants`")
def test_names_of_types_and_what_is_only_logged_are_left_as_they_are(tmp_path: Path) -> None:
    from tools.mutants.variants import variants_of

    types = ("Wake = Callable[[str], None]", "_Label = tuple[str, str] | int", "T = TypeVar(1)")
    lines = (*types, "LIMITS = (1, 2)", "log.info(1)", "_LOG.info(1)")
    (tmp_path / "module.py").write_text("\n".join(lines))
    assert {variant.was for variant in variants_of(tmp_path, "module.py")} == {"LIMITS = (1, 2)"}
