"""Tags that a class asks for: of the parameter `tags`, and of the official driver's tagSpecification_N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Final

from volplane import InvalidArgument
from volplane_aws_ebs.ownership_tags import RESERVED_IN_CLASSES
from volplane_aws_ebs.settings import check_tags
from volplane_aws_ebs.tag_templates import FIELDS, Render, TemplateError, parsed

SPECIFICATION: Final = "tagSpecification"
_LONGEST_VALUE: Final = 256


@dataclass(frozen=True, slots=True)
class ClassTags:
    """plain: key -> text with ${namespace}, ${claim} and ${volume}.

    templates: key of a tag -> parameter, its text, and the template of the value.
    """

    plain: Mapping[str, str]
    templates: Mapping[str, tuple[str, str, Render]]

    @classmethod
    def of(
        cls, plain: Mapping[str, str], specifications: Mapping[str, str], fields: Sequence[str] = FIELDS
    ) -> ClassTags:
        """specifications: parameter such as tagSpecification_1 -> "key=template". fields: of the templates. Raises
        InvalidArgument.
        """
        check_tags(plain, "parameter tags", RESERVED_IN_CLASSES)
        for key, value in plain.items():
            _refuse_unknown_placeholders(key, value)
        templates: dict[str, tuple[str, str, Render]] = {}
        for name, text in specifications.items():
            key, equals, value = text.partition("=")
            if not equals:
                raise InvalidArgument(f'parameter {name} is {text!r}, expected a tag such as "key=value"')
            check_tags({key: ""}, f"parameter {name}", RESERVED_IN_CLASSES)
            given = "tags" if key in plain else templates[key][0] if key in templates else ""
            if given:
                raise InvalidArgument(f"parameter {name} is {text!r}: {given} sets the tag {key!r} too; remove one")
            try:
                templates[key] = name, text, parsed(value, fields)
            except TemplateError as error:
                raise InvalidArgument(f"parameter {name} is {text!r}: {error}") from None
        check_tags({**plain, **dict.fromkeys(templates, "")}, "parameters tags and tagSpecification")
        return cls(plain, templates)

    def keys(self) -> frozenset[str]:
        """Return the keys of the tags."""
        return frozenset({*self.plain, *self.templates})

    def rendered(self, *, namespace: str, claim: str, volume: str) -> dict[str, str]:
        """Return the tags with their placeholders filled in, cut to 256 characters. Raises InvalidArgument."""
        values = {"namespace": namespace, "claim": claim, "volume": volume}
        tags = {key: Template(value).substitute(values)[:_LONGEST_VALUE] for key, value in self.plain.items()}
        fields = {"PVCNamespace": namespace, "PVCName": claim, "PVName": volume}
        return {**tags, **self.filled(fields, f"claim {namespace}/{claim}")}

    def filled(self, fields: Mapping[str, str], whose: str) -> dict[str, str]:
        """Return the tags of the templates, cut to 256 characters. whose: for errors. Raises InvalidArgument."""
        tags: dict[str, str] = {}
        for key, (name, text, render) in self.templates.items():
            try:
                tags[key] = render(fields)[:_LONGEST_VALUE]
            except TemplateError as error:
                raise InvalidArgument(f"parameter {name} is {text!r}, for {whose}: {error}") from None
        return tags


def _refuse_unknown_placeholders(key: str, value: str) -> None:
    known = {"namespace", "claim", "volume"}
    bare = Template(value)
    if not bare.is_valid() or not known.issuperset(bare.get_identifiers()):
        raise InvalidArgument(
            f"parameter tags: the value {value!r} of {key!r} may contain ${{namespace}}, ${{claim}} and ${{volume}}, "
            "no other $"
        )
