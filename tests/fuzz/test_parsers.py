"""Everything that is read from somebody else, fed with what nobody would write: a refusal of its own kind, or a value.

Two ways: bytes and JSON of any kind, and whole documents in which something was exchanged, which come further. What is
sealed by a checksum is sealed anew after the change: a checksum keeps nobody out who means it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support import messages
from support.frames import as_sent, came
from support.trainjobs import document
from trainjob.agent.wire.for_files import FROM_FETCHER, FROM_SERVER
from trainjob.agent.wire.from_leader import FROM_LEADER, Resume
from trainjob.agent.wire.from_member import FROM_MEMBER
from trainjob.agent.wire.packed import pack
from trainjob.checkpoint.publishing.shares import ShareRecord
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.reading.runs import Claim
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import FileEntry, Manifest, NoteFile, ReleaseNote
from trainjob.checkpoint.records.sealed import seal, unseal
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob_api import last_word, wire
from trainjob_api.rank_messages import FROM_RANK, TO_RANK
from trainjob_api.typed import TEXT_LIMIT, BadMessage, Vocabulary
from trainjob_api.validation import InvalidTrainJob, parse_trainjob
from trainjob_operator.agents.reports import BadReport, parse_report
from trainjob_operator.agents.request_head import BadHead, parse_head

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DEEP = "[" * 200_000
HUGE = int("9" * 400)

_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([HUGE, -HUGE, 2**63, -1, 0, 1.5, math.inf, -math.inf, math.nan, "", "\x00", "\ud800", "../../x"]),
    st.text(max_size=20),
)
anything = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            found += places(item, (*path, at))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any, drop: bool) -> Any:
    """A copy with something else, or nothing, at a path."""
    copy = json.loads(json.dumps(value))
    inside = copy
    for step in path[:-1]:
        inside = inside[step]
    if drop:
        del inside[path[-1]]
    else:
        inside[path[-1]] = new
    return copy


def one_thing_changed(whole: Any) -> st.SearchStrategy[Any]:
    """The document with one or two of its values exchanged or left out."""

    def step(value: Any) -> st.SearchStrategy[Any]:
        if not places(value):
            return st.just(value)
        return st.builds(changed, st.just(value), st.sampled_from(places(value)), anything, st.booleans())

    return step(whole) | step(whole).flatmap(step)


def text_of(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


# --- The operator's side ----------------------------------------------------------------------------------------------

REPORT = {
    "job_uid": "u",
    "slot": 1,
    "pod": "digits-1",
    "pod_uid": "p",
    "boot": 1,
    "seq": 7,
    "address": "10.0.0.1:7000",
    "acknowledged": {"attempt": 1, "phase": "run"},
    "attempt": 2,
    "quiet": False,
    "joined": True,
    "ranks": [
        {
            "rank": 2,
            "local_rank": 0,
            "pid": 44,
            "state": "ended",
            "kind": "exception",
            "exit_code": 1,
            "signal": None,
            "ended_at": 5.0,
            "error": {"type": "ValueError", "message": "no", "communication": False, "traceback": "x"},
        }
    ],
    "lost_peers": [0],
    "draining": True,
    "uploads": 1,
    "completed": True,
    "run": 1,
    "resumed_from": "1-1-1",
    "progress": {"position": 3, "step": 30, "total_steps": 100, "epoch": 1, "metrics": {"loss": 0.5}, "time": 4.0},
    "latest": {"id": "1-1-1", "step": 3, "uri": "/c/1-1-1", "time": 4.0, "bytes": 10},
    "checkpoint_count": 1,
    "warning": "w",
    "clock": 5.0,
}


HEAD = b"POST /v1/sync HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 5"


@settings(max_examples=300)
@given(
    st.binary(max_size=300)
    | st.builds(
        lambda at, cut, put: HEAD[:at] + put + HEAD[at + cut :],
        st.integers(0, len(HEAD)),
        st.integers(0, 20),
        st.binary(max_size=8)
        | st.sampled_from([b"\r\n", b"\n", b"\r\nContent-Length: 9", b"\r\nTransfer-Encoding: chunked", b" ", b"\0"]),
    )
)
@example(b"GET / HTTP/1.1\r\nContent-Length: " + b"9" * 10_000)
def test_the_head_of_a_request(text: bytes) -> None:
    """Who reads one length where another reads a second one lets a request be smuggled in."""
    try:
        head = parse_head(text)
    except BadHead as error:
        assert 400 <= error.status < 500 and len(str(error)) < 2000
        return
    assert head.path.startswith("/") and head.length >= 0
    assert b"transfer-encoding:" not in text.lower()
    assert text.lower().count(b"\r\ncontent-length:") == (b"\r\ncontent-length:" in text.lower())


@settings(max_examples=80)
@given(one_thing_changed(REPORT).map(text_of) | anything.map(text_of) | st.binary(max_size=200))
@example(DEEP.encode())
@example(b'{"ranks":' + DEEP.encode())
@example(b'{"seq": ' + b"9" * 5000 + b"}")
def test_an_agents_report(body: bytes) -> None:
    try:
        view = parse_report(body).view(EPOCH)
    except BadReport as error:
        assert len(str(error)) < 2000
        return
    assert json.dumps(view.progress, allow_nan=False) is not None


@settings(max_examples=80)
@given(one_thing_changed(document({"spec.checkpoint": {"storage": "s3://b/p", "keep": 3}})) | anything)
def test_a_manifest(value: Any) -> None:
    try:
        parse_trainjob(value)
    except InvalidTrainJob as error:
        assert error.problems


@settings(max_examples=80)
@given(st.text(max_size=300) | st.from_regex(r"trainjob: (completed|ended)( [a-z]+=[^ ]{0,20}){0,6}(: .{0,50})?"))
@example("trainjob: ended attempt=" + "9" * 5000)
@example("trainjob: ended at=" + "9" * 100)
@example("trainjob: ended" + " a=1" * 5000)
def test_a_termination_message(text: str) -> None:
    word = last_word.from_text(text)
    assert word is None or last_word.from_text(last_word.to_text(word)) is not None


# --- The training side ------------------------------------------------------------------------------------------------

NOTE = ReleaseNote(
    id=CheckpointId(1, 2, 3),
    parent=CheckpointId(1, 1, 1),
    step=3,
    total_steps=9,
    epoch=1,
    metrics={"loss": 0.5},
    time=5.0,
    world_size=2,
    position=3,
    files=(NoteFile("a/b.pt", 3, 0), NoteFile("c", 0, 1)),
    duplicates=(NoteFile("a/b.pt", 3, 1),),
    metadata={"by": "me"},
)
ENTRIES = (FileEntry("a/b.pt", 3, "00", "crc32", 0), FileEntry("c", 0, "00", "crc32", 1))
CLAIM = Claim(2, "uid", CheckpointId(1, 1, 1), None, "why", "nonce")
SEALED: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "manifest": (Manifest(NOTE, ENTRIES, "nonce").dumps(), Manifest.loads),
    "share": (ShareRecord(ENTRIES, ()).dumps(NOTE.id, 0), ShareRecord.loads),
    "claim": (CLAIM.dumps(), Claim.loads),
}


@settings(max_examples=80)
@given(one_thing_changed(NOTE.to_json()) | anything)
def test_a_release_note(value: Any) -> None:
    try:
        note = ReleaseNote.from_json(value)
    except ValueError:
        return
    assert ReleaseNote.from_json(note.to_json()).files == note.files


@pytest.mark.parametrize("kind", sorted(SEALED))
@settings(max_examples=60)
@given(data=st.data())
def test_a_sealed_document(kind: str, data: st.DataObject) -> None:
    stored, loads = SEALED[kind]
    whole = unseal(stored)
    value = data.draw(one_thing_changed(whole) | st.dictionaries(st.sampled_from(sorted(whole)), anything))
    try:
        loads(seal(value))
    except ValueError:
        pass


@pytest.mark.parametrize("kind", sorted(SEALED))
@settings(max_examples=40)
@given(text=st.binary(max_size=200))
@example(DEEP.encode())
def test_bytes_where_a_sealed_document_should_be(kind: str, text: bytes) -> None:
    with pytest.raises(ValueError):
        SEALED[kind][1](text)


@pytest.mark.parametrize("text", [pytest.param(DEEP.encode(), id="deep"), b"\xff\xfe", b"", b"[]", b"null", b'{"a": 1'])
def test_an_end_record(tmp_path: Any, text: bytes) -> None:
    store = PathStore(str(tmp_path))
    store.put(layout.end_key(1), text)
    assert runs.read_end(store, 1) == {}


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=60), max_size=5))
@example([b"\x00\x00\x00\x00"])
def test_frames(pieces: list[bytes]) -> None:
    decoder = wire.Decoder(limit=1 << 16)
    try:
        for piece in pieces:
            for message, blob in decoder.feed(piece):
                assert isinstance(message, dict) and isinstance(blob, bytes)
    except wire.WireError:
        pass
    assert decoder.pending <= sum(map(len, pieces))


# --- Between agents, and between a rank and its agent -----------------------------------------------------------------

VOCABULARIES: dict[str, Vocabulary[Any]] = {
    "a rank says": FROM_RANK,
    "a rank is told": TO_RANK,
    "a member says": FROM_MEMBER,
    "a member is told": FROM_LEADER,
    "who fetches says": FROM_FETCHER,
    "who serves says": FROM_SERVER,
}
WORDS = [(side, op) for side, vocabulary in VOCABULARIES.items() for op in vocabulary.words]


@pytest.mark.parametrize(("side", "op"), WORDS, ids=[f"{side}: {op}" for side, op in WORDS])
def test_every_message_comes_as_it_was_sent(side: str, op: str) -> None:
    word = messages.example_of(VOCABULARIES[side].words[op])
    assert came(VOCABULARIES[side], word) == word


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=list(VOCABULARIES))
@settings(max_examples=60)
@given(data=st.data())
def test_a_message_that_makes_no_sense_is_refused_by_name(vocabulary: Vocabulary[Any], data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(sorted(vocabulary.words)))
    whole, blob = as_sent(vocabulary, messages.example_of(vocabulary.words[op]))
    fields = {name: value for name, value in whole.items() if name != "op"}
    told = data.draw(one_thing_changed(fields) | st.dictionaries(st.sampled_from(sorted(whole)), anything))
    given_blob = data.draw(st.just(blob) | st.binary(max_size=40))
    try:
        word = vocabulary.parse({**told, "op": op}, given_blob)
    except BadMessage as error:
        assert op in str(error) and len(str(error)) <= TEXT_LIMIT
        return
    sent = came(vocabulary, word)  # NaN in what is passed on unseen has become a word
    assert came(vocabulary, sent) == sent and type(sent) is vocabulary.words[op]


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=list(VOCABULARIES))
@settings(max_examples=25)
@given(value=st.dictionaries(st.text(max_size=8) | st.just("op"), anything))
def test_a_message_that_nobody_knows(vocabulary: Vocabulary[Any], value: dict[str, Any]) -> None:
    if value.get("op") not in list(vocabulary.words):
        with pytest.raises(BadMessage, match="unknown message"):
            vocabulary.parse(value)


@settings(max_examples=100)
@given(st.binary(max_size=60) | st.binary(min_size=36, max_size=38).map(lambda rest: b"A" + rest))
@example(b"")
@example(b"A")
def test_an_arrival_in_its_own_form(blob: bytes) -> None:
    try:
        word = FROM_MEMBER.parse({}, blob)
    except BadMessage:
        return
    assert came(FROM_MEMBER, word) == word


@settings(max_examples=60)
@given(anything | one_thing_changed(messages.RESUME))
@example({"checkpoint": None, "holders": {"a": "-1"}, "adopt": []})
@example({"checkpoint": None, "holders": {"a": "9" * 5000}, "adopt": []})
def test_what_a_join_packs(value: Any) -> None:
    try:
        found = Resume.parse(pack(value))
    except BadMessage:
        return
    sent = Resume.parse(found.packed())
    assert Resume.parse(sent.packed()) == sent and sent.holder_paths().keys() <= found.holders.keys()
