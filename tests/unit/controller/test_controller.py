"""The nouns that duties export."""

from __future__ import annotations

from volplane.controller.controller import Role, Rule
from volplane.controller.workqueue import LateQueue


class Keys:
    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def enqueue(self, key: str, after: float = 0.0) -> None:
        self.seen.append((key, after))


def test_a_key_for_a_queue_that_the_process_does_not_have_is_dropped() -> None:
    queue, runner = LateQueue(), Keys()
    queue.enqueue("early")
    queue.runner = runner
    queue.enqueue("now")
    queue.enqueue("later", 2.0)
    assert runner.seen == [("now", 0.0), ("later", 2.0)]


def test_a_role_runs_what_any_of_its_controllers_is_named() -> None:
    role = Role(controllers=frozenset({"binder", "expander"}), cluster_id="c")
    assert role.runs("binder")
    assert role.runs("attacher", "expander")
    assert not role.runs("attacher", "capacity")


def test_a_rule_names_objects_only_where_it_is_restricted_to_them() -> None:
    rule = Rule("", "secrets", ("get",), ("key",))
    assert rule.body() == {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["key"]}
    assert "resourceNames" not in Rule("", "secrets", ("create",)).body()
