"""Whose token it is: reviews that are remembered and shared, outages, and the check with the cluster's keys. Virtual
time.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import jwt
import pytest

from support.trust import ISSUER, REVIEWS, MemoryApi, Signer
from support.virtual_time import EPOCH, VirtualClock, run_virtual
from trainjob_api import contract
from trainjob_operator.agents.callers import Caller
from trainjob_operator.cluster import Rejected, Unavailable
from trainjob_operator.trust import tokens
from trainjob_operator.trust.token_keys import KEYS_PATH, REFRESH_S, UNKNOWN_EVERY_S, TokenKeys
from trainjob_operator.trust.tokens import (
    FAILURES,
    NEGATIVE_S,
    OUTAGE_S,
    SIGNED_S,
    SILENT_S,
    UNSIGNED_BURST,
    UNSIGNED_RATE,
    TokenCheck,
)

POD = Caller(pod_uid="u0", pod_name="digits-0", namespace="default")
BOTH = pytest.mark.parametrize("namespaces", [(), ("default",)], ids=["by review", "by keys"])


class Bench:
    """A check, its API, and tokens of the one key."""

    def __init__(self, namespaces: tuple[str, ...] = ()) -> None:
        self.clock = VirtualClock()
        self.api = MemoryApi(lambda: self.clock.now().timestamp())
        self.check = TokenCheck(self.api, contract.TOKEN_AUDIENCE, namespaces, self.clock)

    def token(self, **arguments: Any) -> str:
        return self.api.signers[0].token("digits-0", "u0", **{"now": self.clock.now().timestamp(), **arguments})


def on_bench(test: Callable[[Bench], Any], namespaces: tuple[str, ...] = ()) -> None:
    async def main() -> None:
        await test(Bench(namespaces))

    run_virtual(main())


# --- Either way -------------------------------------------------------------------------------------------------------


@BOTH
def test_a_pods_token_names_its_pod(namespaces: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.check(bench.token()) == POD

    on_bench(test, namespaces)


def forged(bench: Bench) -> str:
    return Signer("one").token("digits-0", "u0", now=bench.clock.now().timestamp())


def unsigned(bench: Bench) -> str:
    claims = jwt.decode(bench.token(), options={"verify_signature": False})
    return jwt.encode(claims, None, algorithm="none", headers={"kid": "one"})


def signed_with_the_public_key(bench: Bench) -> str:
    """The old trick: the public key taken for a shared secret."""
    claims = jwt.decode(bench.token(), options={"verify_signature": False})
    return jwt.encode(claims, bench.api.signers[0].jwk["n"] * 2, algorithm="HS256", headers={"kid": "one"})


REFUSED: dict[str, Callable[[Bench], str]] = {
    "none": lambda bench: "",
    "no token at all": lambda bench: "secret",
    "three parts of nothing": lambda bench: "a.b.c",
    "not ASCII": lambda bench: bench.token() + "\udcff",
    "endless": lambda bench: bench.token() + "A" * 20_000,
    "expired": lambda bench: bench.token(now=EPOCH.timestamp() - 7200),
    "another audience": lambda bench: bench.token(aud=["https://kubernetes.default.svc"]),
    "no audience": lambda bench: bench.token(aud=None),
    "another issuer": lambda bench: bench.token(iss="https://elsewhere"),
    "no end": lambda bench: bench.token(exp=None),
    "of no pod": lambda bench: bench.token(
        **{"kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "default"}}}
    ),
    "another key": forged,
    "no signature": unsigned,
    "another algorithm": signed_with_the_public_key,
}


@BOTH
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_pods_token_is_refused(kind: str, namespaces: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.check(REFUSED[kind](bench)) is None

    on_bench(test, namespaces)


@pytest.mark.parametrize("kind", ["none", "no token at all", "expired", "another audience", "no end", "endless"])
def test_what_cannot_be_good_is_refused_without_asking(kind: str) -> None:
    async def test(bench: Bench) -> None:
        await bench.check(REFUSED[kind](bench))
        assert bench.api.calls == []

    on_bench(test)


@BOTH
def test_a_pod_of_a_namespace_that_is_not_ours_is_refused(namespaces: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        found = await bench.check(bench.token(namespace="other"))
        assert (found is None) == bool(namespaces)

    on_bench(test, namespaces)


@BOTH
def test_a_token_is_believed_for_its_time_and_not_beyond_its_end(namespaces: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        token = bench.token(seconds=30)
        assert await bench.check(token) == POD
        await asyncio.sleep(29)
        assert await bench.check(token) == POD
        await asyncio.sleep(12)
        assert await bench.check(token) is None

    on_bench(test, namespaces)


# --- By review --------------------------------------------------------------------------------------------------------


def test_a_verdict_is_remembered_and_asked_for_anew() -> None:
    async def test(bench: Bench) -> None:
        token = bench.token()
        for _ in range(5):
            assert await bench.check(token) == POD
        assert bench.api.count(REVIEWS) == 1
        await asyncio.sleep(SIGNED_S - 1)
        assert await bench.check(token) == POD and bench.api.count(REVIEWS) == 1
        await asyncio.sleep(2)
        bench.api.gone_pods.add("u0")
        assert await bench.check(token) is None, "the API server knows that its pod is gone"
        assert bench.api.count(REVIEWS) == 2

    on_bench(test)


def test_a_token_that_is_believed_is_not_taken_apart_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    decode = jwt.decode

    def counted(token: str, *arguments: Any, **options: Any) -> Any:
        read.append(token)
        return decode(token, *arguments, **options)

    async def test(bench: Bench) -> None:
        token = bench.token()
        assert await bench.check(token) == POD
        monkeypatch.setattr(jwt, "decode", counted)
        for _ in range(50):
            assert await bench.check(token) == POD
        assert read == []

    on_bench(test)


def test_a_refusal_is_remembered_for_a_moment() -> None:
    async def test(bench: Bench) -> None:
        bench.api.gone_pods.add("u0")
        token = bench.token()
        for _ in range(5):
            assert await bench.check(token) is None
        assert bench.api.count(REVIEWS) == 1
        bench.api.gone_pods.clear()  # it had not reached the API server's cache yet
        await asyncio.sleep(NEGATIVE_S + 1)
        assert await bench.check(token) == POD

    on_bench(test)


def test_those_who_show_one_token_at_once_share_one_review_even_if_one_hangs_up() -> None:
    async def test(bench: Bench) -> None:
        async def slow() -> None:
            await asyncio.sleep(1.0)

        bench.api.before = slow
        token = bench.token()
        first, *others = [asyncio.ensure_future(bench.check(token)) for _ in range(20)]
        await asyncio.sleep(0.5)
        first.cancel()
        assert await asyncio.gather(*others) == [POD] * 19
        assert bench.api.count(REVIEWS) == 1

    on_bench(test)


def test_memory_is_bounded_and_strangers_drive_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        token = bench.token()
        await bench.check(token)
        stranger = Signer("one")
        for n in range(20):
            await bench.check(stranger.token(f"p-{n}", f"u{n}", now=bench.clock.now().timestamp()))
        for n in range(20):
            await bench.check(bench.api.signers[0].token(f"p-{n}", f"u{n}", now=bench.clock.now().timestamp()))
            await bench.check(token)
        assert len(bench.check._refused._verdicts) == 4 and len(bench.check._accepted._verdicts) == 8
        before = bench.api.count(REVIEWS)
        await bench.check(token)
        assert bench.api.count(REVIEWS) == before, "who comes often is kept"

    monkeypatch.setattr(tokens, "POSITIVES_KEPT", 8)
    monkeypatch.setattr(tokens, "NEGATIVES_KEPT", 4)
    on_bench(test)


def test_while_the_api_is_silent_known_tokens_are_believed_for_a_bounded_time_and_new_ones_wait() -> None:
    async def test(bench: Bench) -> None:
        known = bench.token(seconds=7200)
        await bench.check(known)
        bench.api.silent = Unavailable("503")
        await asyncio.sleep(SIGNED_S + 1)
        assert await bench.check(known) == POD
        for n in range(FAILURES):
            with pytest.raises(Unavailable):
                await bench.check(bench.token(seconds=60 + n))
        asked = bench.api.count(REVIEWS)
        for _ in range(10):
            assert await bench.check(known) == POD
            with pytest.raises(Unavailable):
                await bench.check(bench.token(seconds=60))
        assert bench.api.count(REVIEWS) == asked, "a silent API is left alone for a while"
        await asyncio.sleep(OUTAGE_S)
        with pytest.raises(Unavailable):
            await bench.check(known)
        bench.api.silent = None
        await asyncio.sleep(SILENT_S)
        assert await bench.check(known) == POD

    on_bench(test)


def test_a_forged_token_asks_nobody_for_a_verdict() -> None:
    async def test(bench: Bench) -> None:
        now = bench.clock.now().timestamp()
        stranger = Signer("one")
        for n in range(200):
            assert await bench.check(stranger.token(f"p-{n}", f"u{n}", now=now)) is None
        assert bench.api.count(REVIEWS) == 0

    on_bench(test)


@pytest.mark.parametrize("keys", ["another key is named", "no key can be read"])
def test_reviews_of_tokens_whose_signature_cannot_be_told_are_few(keys: str) -> None:
    class NoKeys(MemoryApi):
        async def document(self, path: str) -> dict[str, Any]:
            self.calls.append(("GET", path))
            raise Rejected("forbidden")

    async def test(bench: Bench) -> None:
        own = bench.api.signers[0]
        if keys == "no key can be read":
            bench.api = NoKeys(lambda: bench.clock.now().timestamp())
            bench.check = TokenCheck(bench.api, contract.TOKEN_AUDIENCE, (), bench.clock)
        stranger = own if keys == "no key can be read" else Signer("another")
        asked, begun = 0, bench.clock.monotonic()
        for n in range(1000):
            try:
                await bench.check(stranger.token(f"p-{n}", f"u{n}", now=bench.clock.now().timestamp()))
            except Unavailable:
                asked += 1
            await asyncio.sleep(0.01)
        passed = bench.clock.monotonic() - begun
        assert bench.api.count(REVIEWS) <= UNSIGNED_BURST + passed * UNSIGNED_RATE + 1
        assert asked > 500
        assert len(bench.api.calls) - bench.api.count(REVIEWS) <= 4, "keys are not asked for again and again"
        if keys == "another key is named":
            assert await bench.check(bench.token()) == POD, "who shows a token of the cluster's is not kept waiting"

    on_bench(test)


def test_a_review_that_fails_refuses_its_own_token_alone() -> None:
    async def test(bench: Bench) -> None:
        unlucky, other = bench.token(seconds=500), bench.token(seconds=600)
        await bench.check(bench.token(seconds=400))
        bench.api.silent = Unavailable("504")
        with pytest.raises(Unavailable):
            await bench.check(unlucky)
        bench.api.silent = None
        assert await bench.check(other) == POD
        asked = bench.api.count(REVIEWS)
        with pytest.raises(Unavailable):
            await bench.check(unlucky)
        assert bench.api.count(REVIEWS) == asked, "it rests for a moment"
        await asyncio.sleep(SILENT_S)
        assert await bench.check(unlucky) == POD

    on_bench(test)


def test_a_token_that_ended_is_refused_in_an_outage_too() -> None:
    async def test(bench: Bench) -> None:
        token = bench.token(seconds=120)
        await bench.check(token)
        bench.api.silent = Unavailable("503")
        await asyncio.sleep(131)
        assert await bench.check(token) is None

    on_bench(test)


def test_an_api_that_hangs_is_silent() -> None:
    async def test(bench: Bench) -> None:
        async def hang() -> None:
            await asyncio.sleep(3600)

        bench.api.before = hang
        with pytest.raises(Unavailable, match="within 10 s"):
            await bench.check(bench.token())
        assert asyncio.get_running_loop().time() == pytest.approx(10.0)

    on_bench(test)


def test_a_review_that_says_nothing_of_audiences_is_no_verdict() -> None:
    class Old(MemoryApi):
        def _review(self, spec: dict[str, Any]) -> dict[str, Any]:
            return {k: v for k, v in super()._review(spec).items() if k != "audiences"}

    async def test(bench: Bench) -> None:
        check = TokenCheck(Old(bench.api.now), contract.TOKEN_AUDIENCE, (), bench.clock)
        check._api.signers = bench.api.signers  # type: ignore[attr-defined]
        with pytest.raises(Rejected, match="audiences"):
            await check(bench.token())

    on_bench(test)


# --- By keys ----------------------------------------------------------------------------------------------------------


def by_keys(test: Callable[[Bench], Any]) -> None:
    on_bench(test, ("default",))


def test_no_token_leaves_the_operator_and_keys_are_fetched_once() -> None:
    async def test(bench: Bench) -> None:
        for seconds in range(100, 120):
            assert await bench.check(bench.token(seconds=seconds)) == POD
        assert sorted(path for _, path in bench.api.calls) == ["/.well-known/openid-configuration", KEYS_PATH]

    by_keys(test)


def test_a_token_that_a_key_has_verified_is_not_verified_again_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else thousands of agents cost a signature's check each minute for each."""
    verified: list[str] = []
    verify = TokenKeys.verify

    async def counted(self: TokenKeys, token: str) -> Caller | None:
        verified.append(token)
        return await verify(self, token)

    monkeypatch.setattr(TokenKeys, "verify", counted)

    async def test(bench: Bench) -> None:
        token = bench.token()
        for _ in range(9):
            assert await bench.check(token) == POD
            await asyncio.sleep(60.0)
        assert len(verified) == 1
        await asyncio.sleep(SIGNED_S)
        assert await bench.check(token) == POD
        assert len(verified) == 2

    by_keys(test)


def test_a_new_key_is_found_and_an_unknown_one_does_not_make_us_ask_for_ever() -> None:
    async def test(bench: Bench) -> None:
        await bench.check(bench.token())
        await asyncio.sleep(UNKNOWN_EVERY_S + 1)
        new = Signer("two")
        bench.api.signers.insert(0, new)
        assert await bench.check(bench.token()) == POD
        fetched = bench.api.count(KEYS_PATH)
        assert fetched == 2
        for n in range(50):
            stranger = jwt.encode(
                {**jwt.decode(bench.token(), options={"verify_signature": False})},
                new.key,
                algorithm="RS256",
                headers={"kid": f"k{n}"},
            )
            assert await bench.check(stranger) is None
        assert bench.api.count(KEYS_PATH) == fetched

    by_keys(test)


def test_a_key_that_was_withdrawn_is_forgotten() -> None:
    async def test(bench: Bench) -> None:
        old = bench.api.signers[0]
        bench.api.signers.append(Signer("two"))
        assert await bench.check(bench.token()) == POD
        bench.api.signers.remove(old)
        await asyncio.sleep(REFRESH_S + 1)
        assert await bench.check(old.token("digits-0", "u0", now=bench.clock.now().timestamp())) is None

    by_keys(test)


def test_a_token_that_was_verified_late_is_not_believed_for_longer_than_its_key() -> None:
    async def test(bench: Bench) -> None:
        token = bench.token()
        await bench.check(bench.token(seconds=500))
        await asyncio.sleep(REFRESH_S - 1)
        assert await bench.check(token) == POD
        bench.api.signers[:] = [Signer("two")]
        await asyncio.sleep(2)
        assert await bench.check(token) is None

    by_keys(test)


def test_a_token_is_not_believed_for_long_by_keys_that_are_old() -> None:
    async def test(bench: Bench) -> None:
        token = bench.token()
        await bench.check(bench.token(seconds=500))
        bench.api.silent = Unavailable("503")
        await asyncio.sleep(REFRESH_S + 1)
        asked = len(bench.api.calls)
        for _ in range(20):
            assert await bench.check(token) == POD
        assert len(bench.api.calls) - asked == 1
        bench.api.silent = None
        bench.api.signers[:] = [Signer("two")]
        await asyncio.sleep(UNKNOWN_EVERY_S + 1)
        assert await bench.check(token) is None

    by_keys(test)


def test_a_shared_secret_among_the_keys_verifies_nothing() -> None:
    class Careless(Signer):
        @property
        def jwk(self) -> dict[str, Any]:
            return {"kty": "oct", "kid": "careless", "alg": "HS256", "k": "c2VjcmV0" * 8}

    async def test(bench: Bench) -> None:
        bench.api.signers.append(Careless("careless"))
        claims = jwt.decode(bench.token(), options={"verify_signature": False})
        known_to_all = base64.urlsafe_b64decode("c2VjcmV0" * 8)
        assert (
            await bench.check(jwt.encode(claims, known_to_all, algorithm="HS256", headers={"kid": "careless"})) is None
        )

    by_keys(test)


def test_keys_that_we_have_are_used_while_the_api_is_silent() -> None:
    async def test(bench: Bench) -> None:
        await bench.check(bench.token())
        bench.api.silent = Unavailable("503")
        await asyncio.sleep(REFRESH_S + 1)
        assert await bench.check(bench.token()) == POD

    by_keys(test)


def test_without_keys_there_is_no_verdict() -> None:
    async def test(bench: Bench) -> None:
        bench.api.silent = Unavailable("503")
        with pytest.raises(Unavailable):
            await bench.check(bench.token())

    by_keys(test)


@pytest.mark.parametrize(
    "claims",
    [
        {"nbf": EPOCH.timestamp() + 60},
        {"nbf": "soon"},
        {"iss": ISSUER + "/"},
        {"sub": "system:serviceaccount:other:default"},
        {"kubernetes.io": "pod"},
        {"kubernetes.io": {"namespace": "default", "pod": {"name": "digits-0"}}},
        {"kubernetes.io": {"namespace": "default", "pod": ["digits-0"]}},
        {"kubernetes.io": {"namespace": 7, "pod": {"name": "digits-0", "uid": "u0"}}},
    ],
)
def test_claims_of_another_kind_are_refused(claims: dict[str, Any]) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.check(bench.token(**claims)) is None

    by_keys(test)


def test_clocks_may_differ_a_little() -> None:
    async def test(bench: Bench) -> None:
        assert await bench.check(bench.token(nbf=EPOCH.timestamp() + 5)) == POD

    by_keys(test)
