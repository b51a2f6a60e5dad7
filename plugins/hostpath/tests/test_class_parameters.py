"""What a class may say."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import Done, InvalidArgument


@pytest.mark.parametrize("template", ["/a", "../${uid}", "${clam}", "a b", "/".join("abcdefghi")])
def test_a_class_whose_path_template_cannot_be_is_refused(site: Any, template: str) -> None:
    with pytest.raises(InvalidArgument, match="pathTemplate"):
        site.validate(pathTemplate=template)


def test_a_subvolume_with_a_limit_is_on_no_file_system(site: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"quota is 'required': .* subvolume"):
        site.validate(subvolume=True, quota="required")


def test_a_good_class_is_valid(site: Any) -> None:
    assert site.validate() == Done()
    assert site.validate(pathTemplate="${namespace}/${uid}", mode=0o700, volumeType="hostPath") == Done()
