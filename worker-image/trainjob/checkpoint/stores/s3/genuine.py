"""Which replies are the store's: those alone that have what each of their kind has.

What a proxy, a page to log in at, or a server of another kind says in the store's place is no word of the store's:
taken for one it would mean that something is stored, removed, or not there. Used by all that ask. Refusals are
`errors`'.
"""

from __future__ import annotations

import http.client
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional

DONE, PART_OF, NOTHING_LEFT = 200, 206, 204
"""How a store answers: to each request that it carried out, to one for a range, to one that removes."""


class NotTheStores(OSError):
    """Somebody has answered in the store's place: nothing is known of what was asked. `errors` knows it by its name."""


def refuse_others(reply: http.client.HTTPResponse, status: int) -> None:
    """A reply on our connections that says yes has that status, and names the version of the object. Raises
    NotTheStores.
    """
    _refuse_status(reply.status, status)
    if not reply.getheader("ETag"):
        raise NotTheStores("a reply without ETag, which no store sends")


def of_store(reply: Mapping[str, Any], *fields: str, status: int = DONE) -> Mapping[str, Any]:
    """boto3's reply, which has that status and these fields if it is the store's. Raises NotTheStores."""
    _refuse_status(reply["ResponseMetadata"]["HTTPStatusCode"], status)
    for field in fields:
        if reply.get(field) in (None, ""):
            raise NotTheStores(f"a reply without {field}, which no store sends")
    return reply


def stored(reply: Mapping[str, Any]) -> str:
    """The version of what was written, by boto3's reply. Raises NotTheStores."""
    refuse_contents(reply["ResponseMetadata"].get("HTTPHeaders", {}).get("content-length", "0") != "0")
    return str(of_store(reply, "ETag")["ETag"])


def refuse_contents(come: object) -> None:
    """A reply to a write has none. Raises NotTheStores."""
    if come:
        raise NotTheStores("a reply with contents to a write, which no store sends")


def removed(reply: Mapping[str, Any], look: Callable[[], object]) -> None:
    """boto3's reply to a request that removes. Some stores say no more than that they are done: then `look`, which
    raises what a store says of something that is gone, decides. Raises NotTheStores.
    """
    status = reply["ResponseMetadata"]["HTTPStatusCode"]
    if status == DONE:
        look()
    _refuse_status(status, NOTHING_LEFT)


def follows_nobody(client: Any) -> None:
    """From now on boto3 follows no redirect that no store sends: it asked where the bucket is, was sent on again, and
    asked for that, hundreds of times.
    """
    client.meta.events.register("before-parse.s3", _refuse_redirect)


def _refuse_redirect(response_dict: Mapping[str, Any], **_: Any) -> None:
    if response_dict.get("status_code") in (302, 303):
        raise NotTheStores(f"the status {response_dict['status_code']}, which no store sends")


def refuse_page(content_type: Optional[str]) -> None:
    """Of something for people to read, which no record of a job is. Raises NotTheStores."""
    if (content_type or "").lower().startswith("text/html"):
        raise NotTheStores("a page where a record was asked for")


def listed(call: Callable[..., Dict[str, Any]], fields: Mapping[str, str]) -> Dict[str, Any]:
    """What boto3's call says of the names below `fields["Prefix"]`: a list that says of what it is one, and names
    nothing else. Raises NotTheStores, and OSError where it says nothing at all.
    """
    from botocore.exceptions import BotoCoreError

    try:
        page = call(**fields)
    except BotoCoreError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotTheStores(f"a list that cannot be read: {error}") from error
    if not page.keys() - {"ResponseMetadata"}:
        raise http.client.RemoteDisconnected("the list broke off before its begin")
    prefix, rows = fields["Prefix"], page.get("Contents") or ()
    names: List[Optional[str]] = [row.get("Key") if "Size" in row else None for row in rows]
    names += [row.get("Prefix") for row in page.get("CommonPrefixes") or ()]
    of = page.get("Prefix", prefix)
    strange = [of] if of != prefix else [name for name in names if name is None or not name.startswith(prefix)]
    if strange:
        raise NotTheStores(f"a list that names {strange[0]!r:.200} where one of {prefix!r} was asked for")
    return page


def following(page: Mapping[str, Any], fields: Mapping[str, str], before: Collection[Dict[str, str]]) -> Dict[str, str]:
    """How the page after this one is asked for, by `fields`: ours, and the reply's; nothing: it is the last one.
    `before`: what has been asked for. Raises NotTheStores for a list that would never end.
    """
    if not page.get("IsTruncated"):
        return {}
    found = {ours: str(page[theirs]) for ours, theirs in fields.items() if page.get(theirs)}
    if not found or found in before:
        raise NotTheStores("a list that says that it goes on, and not where, or where it has been already")
    return found


def _refuse_status(found: int, wanted: int) -> None:
    if found != wanted:
        raise NotTheStores(f"the status {found} where a store says {wanted}")
