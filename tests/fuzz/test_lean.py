"""Lists without managedFields: whatever is in them, nothing else of a document changes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainjob_operator.k8s.lean import without_managed_fields

TEXT = st.text(alphabet='ab"\\[]{},:é\n', max_size=6) | st.just('"managedFields":[') | st.just("managedFields")
LEAVES = TEXT | st.none() | st.booleans() | st.integers()
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=30
)
COMPACT = (",", ":")


def with_none(document: Any) -> Any:
    """As it is to be if every such array went."""
    if isinstance(document, dict):
        return {
            name: [] if name == "managedFields" and isinstance(value, list) else with_none(value)
            for name, value in document.items()
        }
    return [with_none(value) for value in document] if isinstance(document, list) else document


@given(DOCUMENTS, st.sampled_from([None, COMPACT]), st.booleans())
def test_nothing_but_managed_fields_changes(document: Any, separators: Any, ascii_only: bool) -> None:
    content = json.dumps(document, separators=separators, ensure_ascii=ascii_only).encode()
    left = json.loads(without_managed_fields(content))
    assert with_none(left) == with_none(document)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_break_it(before: bytes, after: bytes) -> None:
    without_managed_fields(before + b'{"managedFields":[' + after)


def managed(*keys: str) -> dict[str, Any]:
    fields = {"f:status": {"f:conditions": {key: {".": {}, "f:type": {}} for key in keys}}}
    return {"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}


def page_of(*fields: dict[str, Any]) -> dict[str, Any]:
    pod = {"metadata": {"managedFields": list(fields), "name": "digits-0", "uid": "u"}}
    return {"kind": "List", "items": [pod, {"metadata": {"name": "b", "managedFields": []}}, {"spec": {"args": ["["]}}]}


def test_those_of_an_api_server_go_and_their_neighbours_stay() -> None:
    page = page_of(managed('k:{"type":"Ready"}', "v:x]"), managed('k:{"port":1,"protocol":"TCP"}'))
    lean = without_managed_fields(json.dumps(page, separators=COMPACT).encode())
    assert json.loads(lean) == with_none(page) != page


def test_what_counting_does_not_tell_is_left() -> None:
    for odd in ("v:[x", "v:\\"):
        page = page_of(managed(odd))
        content = json.dumps(page, separators=COMPACT).encode()
        assert json.loads(without_managed_fields(content)) == page
