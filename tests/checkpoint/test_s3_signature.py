"""Our signatures are botocore's."""

from __future__ import annotations

import calendar
import time

import pytest

from trainjob.checkpoint.stores.s3.signature import Signer


@pytest.mark.parametrize("token", [None, "a-token=="])
@pytest.mark.parametrize(
    ("path", "query"), [("/bucket/a%20folder%20%C3%BC/f", ""), ("/f~1", "partNumber=3&uploadId=a%2Fb-_.~")]
)
def test_a_signature(token: str | None, path: str, query: str) -> None:
    pytest.importorskip("botocore", reason="boto3 is not installed")
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.config import Config
    from botocore.credentials import ReadOnlyCredentials

    headers = {"range": "bytes=0-1", "if-match": '"x"', "content-length": "12"}
    request = AWSRequest(method="PUT", url=f"http://store:9000{path}" + (f"?{query}" if query else ""), headers=headers)
    request.context["client_config"] = Config(s3={"payload_signing_enabled": False})
    S3SigV4Auth(ReadOnlyCredentials("access", "secret", token), "s3", "eu-west-3").add_auth(request)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    now_s = calendar.timegm(time.strptime(theirs["x-amz-date"], "%Y%m%dT%H%M%SZ"))
    ours = Signer("access", "secret", token, "eu-west-3").sign(
        "PUT", path, query, {"host": "store:9000", **headers}, now_s
    )
    assert ours["authorization"] == theirs["authorization"]
    assert ours == {"host": "store:9000", **theirs}
