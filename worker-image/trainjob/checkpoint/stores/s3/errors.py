"""What an object store's refusal means: try again, not there, taken already, or a sentence for the user.

Called by `requests` with whatever boto3 raised. Pure: it looks at names, codes and statuses alone.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import CheckpointError

RETRY = "retry"
ABSENT = "absent"
EMPTY = "empty"
TAKEN = "taken"
CREDENTIALS = "credentials"
"""Credentials that did not work: fresh ones are looked for once."""
REFUSED = "refused"

_TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)
_TRANSIENT_CODES = (
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "RequestTimeoutException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "ConditionalRequestConflict",
    "OperationAborted",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "XAmzContentChecksumMismatch",
    "IncompleteBody",
    "MalformedXML",
    "InvalidPart",
    "InvalidPartOrder",
    "InvalidDigest",
)
"""From the digests on: what was sent is right here, so it was changed on its way; sent again, it arrives or the
deadline ends it.
"""
UNTRUSTED, NO_TLS, NO_NAME = "CertificateError", "NoTLS", "NameError"
"""What exceptions of several libraries are called here."""
_LASTING_NAMES = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "ParamValidationError",
    UNTRUSTED,
    NO_TLS,
    "InvalidRegionError",
    "UnauthorizedSSOTokenError",
    "TokenRetrievalError",
    "ConfigParseError",
    "InvalidConfigError",
    "RecursionError",
)
_EXPIRED = (
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "RequestExpired",
    "IDPRejectedClaim",
    "InvalidIdentityToken",
)
_WRONG = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "InvalidTokenId",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "XAdminUserNotFound",
)
_DENIED = (
    "AccessDenied",
    "AccessDeniedException",
    "AllAccessDisabled",
    "AccountProblem",
    "MethodNotAllowed",
    "Forbidden",
    "403",
)
MOVED = (
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "301",
    "308",
    "TemporaryRedirect",
    "RecursionError",
)
"""The last one is boto3 following a redirect that leads to itself."""
_ELSEWHERE = (301, 308)
_ABSENT = ("NoSuchKey", "NoSuchUpload")
_NOT_THE_STORES = "NotTheStores"
"""`genuine.NotTheStores`: a yes that is not the store's."""
_FULL = ("QuotaExceeded", "XMinioStorageFull", "StorageFull", "InsufficientStorage", "InsufficientCapacity")


class Answer(NamedTuple):
    """How a request failed: its code (or the exception's name), HTTP status (0 without an answer), and the server's
    words.
    """

    code: str
    status: int
    message: str
    region: str = ""


def answer(error: BaseException) -> Answer:
    """What is known of a failed request."""
    response: Dict[str, Any] = getattr(error, "response", None) or {}
    if not isinstance(response, dict) or "ResponseMetadata" not in response:
        return Answer(_name(error), 0, str(error))
    meta, found = response["ResponseMetadata"], response.get("Error") or {}
    if getattr(error, "operation_name", "") == "HeadObject" and meta.get("HTTPStatusCode") == 404:
        return Answer(_ABSENT[0], 404, "")  # a refusal without words, as to each HEAD
    region = str((meta.get("HTTPHeaders") or {}).get("x-amz-bucket-region") or found.get("Region") or "")
    return Answer(
        str(found.get("Code") or ""), int(meta.get("HTTPStatusCode") or 0), str(found.get("Message") or ""), region
    )


def _name(error: BaseException) -> str:
    """Of an exception without an answer; several libraries' names for one thing become one."""
    name, text = type(error).__name__, f"{error} {(getattr(error, 'kwargs', None) or {}).get('error', '')}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return UNTRUSTED
    if name.startswith("SSL") and ("WRONG_VERSION_NUMBER" in text or "record layer failure" in text):
        return NO_TLS
    if name == "gaierror" or "Failed to resolve" in text or "NameResolutionError" in text:
        return NO_NAME
    return "RecursionError" if "maximum recursion depth" in text else name


def meaning(given: Answer) -> str:
    """RETRY, ABSENT, EMPTY, TAKEN, CREDENTIALS or REFUSED."""
    if given.status == 0:
        return CREDENTIALS if given.code in _LASTING_NAMES[:3] else REFUSED if given.code in _LASTING_NAMES else RETRY
    if given.code in _EXPIRED or given.code in _WRONG:
        return CREDENTIALS
    if given.code in _FULL:
        return REFUSED
    if given.code in _TRANSIENT_CODES or given.status in (*_TRANSIENT_STATUS, 409):
        return RETRY
    if given.code == "400":
        return CREDENTIALS  # to a HEAD, whose refusal has no words
    if given.code in _ABSENT:
        return ABSENT
    if given.status == 412:
        return TAKEN  # with words or without: who hears it looks what is there
    if nobody(given):
        return RETRY
    return EMPTY if given.status == 416 else REFUSED


def nobody(given: Answer) -> bool:
    """Not in the words of a store, all of whose refusals have some: a proxy in front of it says so while it has no way
    to it, or lets nobody through. Taken for a word of the store's it would mean that nothing is stored, or that nothing
    can be. One that sends everything elsewhere for good is none that passes.
    """
    if given.status == 0:
        return given.code == _NOT_THE_STORES
    without_words = "", str(given.status), *(("NotFound",) if given.status == 404 else ())
    return given.status not in _ELSEWHERE and given.code in without_words


class Where(NamedTuple):
    """What a request was about, for its sentence."""

    doing: str
    """Infinitive: "read", "write", "list", "remove"."""
    uri: str
    bucket: str
    endpoint: str
    writing: bool


def explain(given: Answer, where: Where, tried_s: float) -> CheckpointError:
    """One sentence on what happened, the likely cause, and what to do."""
    kind, cause = _cause(given, where)
    said = " ".join(f"{given.code} {given.message}".split())[:300]
    tried = f", tried for {tried_s:.0f} s" if tried_s >= 1 else ""
    return errors.StoreError(kind, f"cannot {where.doing} {where.uri} ({said}{tried}); likely {cause}")


def _cause(given: Answer, where: Where) -> Tuple[str, str]:
    code, at = given.code, f"at {where.endpoint}"
    unusable = errors.READ_ONLY if where.writing else errors.UNREADABLE
    if code == "NoSuchBucket":
        return (
            errors.UNREADABLE,
            f"there is no bucket {where.bucket} {at}. Create it (aws s3 mb s3://{where.bucket}), or correct the "
            "storage's name.",
        )
    if code == "400" and where.endpoint.startswith("http:"):
        return (
            unusable,
            f"the store speaks TLS {at}. Give its endpoint as {where.endpoint.replace('http://', 'https://')}.",
        )
    if nobody(given) and given.status == 413:
        return (
            unusable,
            f"something in front of the store {at} takes no request of that size. Files come in requests of up to 16 "
            "MiB: raise its limit (nginx: client_max_body_size, its ingress: the annotation "
            "nginx.ingress.kubernetes.io/proxy-body-size).",
        )
    if nobody(given) and given.status not in (*_TRANSIENT_STATUS, 501, 507):
        return (
            errors.UNREADABLE,
            f"something that is no object store answers {at}: a proxy or an ingress that has no way to it, or another "
            f"server. Look at `curl -si {where.endpoint}`, and correct the endpoint (AWS_ENDPOINT_URL_S3; on a cluster "
            "spec.checkpoint.s3.endpointURL).",
        )
    if code in _FULL or given.status == 507:
        return (
            errors.FULL,
            "the store is full or a quota is used up. Keep fewer checkpoints (checkpoint.keep), or raise the quota.",
        )
    if code in _EXPIRED:
        return (
            unusable,
            "the credentials have expired. Renew them (`aws sts get-caller-identity` tells whose they are); the job "
            "continues once they are valid.",
        )
    if code in _WRONG:
        return (
            unusable,
            f"the credentials are not valid {at}. Check AWS_ACCESS_KEY_ID and its key; on a cluster the "
            "Secret (spec.checkpoint.s3.credentialsSecret).",
        )
    if code in _LASTING_NAMES[:3] or code in ("UnauthorizedSSOTokenError", "TokenRetrievalError"):
        return (
            unusable,
            "there are no credentials. On this machine set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE; on a cluster give spec.checkpoint.s3.credentialsSecret or a service account with a role.",
        )
    if code == "RequestTimeTooSkewed":
        return (
            unusable,
            "this machine's clock and the store's differ by more than 15 minutes. Compare `date -u` with `curl -sI "
            f"{where.endpoint}`, and run NTP.",
        )
    if code in MOVED or given.status in _ELSEWHERE:
        region = (
            f": it is in {given.region}" if given.region else f", or {where.endpoint} redirects everything (to https?)"
        )
        return (
            unusable,
            f"the bucket is in another region{region}. Set AWS_REGION (on a cluster: spec.checkpoint.s3.region), and "
            "look at the endpoint.",
        )
    if code in _DENIED or given.status == 403:
        needed = (
            "s3:GetObject, PutObject, DeleteObject and AbortMultipartUpload on its keys, ListBucket and "
            "ListBucketMultipartUploads on the bucket"
        )
        return unusable, f"these credentials have no right to do that. Needed are {needed}."
    if code == UNTRUSTED:
        named = "Name its authority's file in AWS_CA_BUNDLE (on a cluster: spec.checkpoint.s3.caConfigMap)"
        return unusable, f"the certificate of {where.endpoint} is not trusted here, or is another host's. {named}."
    if code == NO_TLS:
        return (
            unusable,
            f"the store speaks no TLS {at}. Give its endpoint as {where.endpoint.replace('https://', 'http://')}.",
        )
    if code == NO_NAME:
        return (
            errors.UNREADABLE,
            f"the store does not answer: the host of {where.endpoint} has no address here. Correct "
            "AWS_ENDPOINT_URL_S3 (on a cluster: spec.checkpoint.s3.endpointURL), or the DNS.",
        )
    if given.status == 409:
        return (
            errors.UNREADABLE,
            "somebody else writes the same name at this moment, again and again. Look for another job with this "
            "folder.",
        )
    if given.status == 501 or code == "NotImplemented":
        return unusable, "the store does not know this kind of request. docs/checkpoints.md lists what is needed."
    if code in ("BadDigest", "XAmzContentChecksumMismatch"):
        return (
            errors.CONFLICT,
            "the file is changed while it is read, or something between here and the store changes what is sent.",
        )
    if given.status == 0 and code not in _LASTING_NAMES:
        scheme = "https://" if where.endpoint.startswith("http:") else "http://"
        return (
            errors.UNREADABLE,
            f"the store does not answer. Check that this machine reaches it: curl -sI {where.endpoint} (or does it "
            f"speak {scheme}?)",
        )
    if given.status in _TRANSIENT_STATUS:
        return errors.UNREADABLE, "the store is overloaded or broken. It is tried again later."
    return unusable, "the store refuses it for a reason of its own."
