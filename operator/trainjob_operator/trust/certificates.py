"""The installation's own authority: the Secret with CA and master key, and the coordinator's server certificate.

`__main__` calls `ensure` once it leads, hands the parts of `Trust` to the coordinator and to the pods, and keeps
`Trust.keep_fresh` running. The Secret is created if it is absent and never written again: pods carry the CA's text for
as long as they live. The server's key is never stored.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import secrets
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trainjob_api import contract
from trainjob_operator.clock import Clock, SystemClock
from trainjob_operator.cluster import Conflict, NotFound

CA_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=90)
RENEW_BEFORE = timedelta(days=30)
"""So long before its end a server certificate is replaced."""
LOOK_EVERY_S = 3600.0
"""How often the wall clock is compared with the certificate's end: machines sleep and clocks are set."""
SKEW = timedelta(hours=1)
"""Certificates are valid from so long before now: nodes' clocks differ."""
MASTER_KEY_BYTES = 32

CA_CERTIFICATE = "ca.crt"
CA_KEY = "ca.key"
MASTER_KEY = "master.key"

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class SecretApi(Protocol):
    """What is asked of the API server."""

    async def get(self, path: str) -> dict[str, Any]: ...

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]: ...


class BadSecret(Exception):
    """The Secret is there and cannot be used; the text says what is wrong and how to mend it."""


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: SigningKey = field(repr=False)


@dataclass(frozen=True)
class Trust:
    """What the coordinator and its agents need to trust each other."""

    ca_pem: str
    """Given to every agent (ENV_COORDINATOR_CA)."""
    ssl_context: ssl.SSLContext
    """The coordinator's; a renewed certificate is loaded into it, open connections are not disturbed."""
    master_key: bytes = field(repr=False)
    _authority: _Authority = field(repr=False)
    _dns_names: tuple[str, ...] = ()
    _clock: Clock = field(default_factory=SystemClock, repr=False)

    async def keep_fresh(self) -> None:
        """Renew the server certificate in time; runs until it is cancelled."""
        ends = self.renew()
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + LOOK_EVERY_S)
            if self._clock.now() > ends - RENEW_BEFORE:
                ends = self.renew()

    def renew(self) -> datetime:
        """Sign a new server certificate and use it for connections from now on; when it ends."""
        certificate, key = _sign_server(self._authority, self._dns_names, self._clock.now())
        _load(self.ssl_context, certificate, key)
        return certificate.not_valid_after_utc


async def ensure(
    api: SecretApi, namespace: str, secret_name: str, dns_names: Sequence[str], clock: Clock | None = None
) -> Trust:
    """The installation's trust, from its Secret, which is created if there is none.

    `dns_names`: host names (or IP addresses) under which agents reach the coordinator. Raises BadSecret, ClusterError.
    """
    clock = clock or SystemClock()
    path = f"/api/v1/namespaces/{namespace}/secrets"
    try:
        secret = await api.get(f"{path}/{secret_name}")
    except NotFound:
        try:
            secret = await api.create(path, _new_secret(namespace, secret_name, clock.now()))
        except Conflict:  # another replica, or the one before us, was faster: its word counts
            secret = await api.get(f"{path}/{secret_name}")
    try:
        authority, ca_pem, master_key = _read(secret, clock.now())
    except ValueError as error:
        raise BadSecret(
            f"Secret {namespace}/{secret_name} holds the coordinator's CA and cannot be used: {error}. Put its "
            "earlier content back; if there is none, "
            f"`kubectl -n {namespace} delete secret {secret_name}` and restart the operator, which creates it anew. "
            "Pods that run now know the old CA and cannot speak with the operator any more: they are replaced at their "
            "job's next start, or now by `tj restart <job>`; an event tells each job of it."
        ) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # agents stay connected; none comes back to an old session
    trust = Trust(ca_pem, context, master_key, authority, tuple(dns_names), clock)
    trust.renew()
    return trust


def _new_secret(namespace: str, name: str, now: datetime) -> dict[str, Any]:
    authority = _new_authority(now)
    content = {
        CA_CERTIFICATE: _certificate_pem(authority.certificate),
        CA_KEY: _key_pem(authority.key),
        MASTER_KEY: secrets.token_bytes(MASTER_KEY_BYTES),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}},
        "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
    }


def _read(secret: Mapping[str, Any], now: datetime) -> tuple[_Authority, str, bytes]:
    """Raises ValueError with what is wrong."""
    data = secret.get("data") or {}
    try:
        content = {
            key: base64.b64decode(data.get(key) or "", validate=True) for key in (CA_CERTIFICATE, CA_KEY, MASTER_KEY)
        }
    except (binascii.Error, TypeError):
        raise ValueError("its data is no base64") from None
    missing = [key for key, value in content.items() if not value]
    if missing:
        raise ValueError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    if len(content[MASTER_KEY]) < MASTER_KEY_BYTES:
        raise ValueError(f"{MASTER_KEY} has {len(content[MASTER_KEY])} bytes, {MASTER_KEY_BYTES} are the least")
    try:
        certificate = x509.load_pem_x509_certificate(content[CA_CERTIFICATE])
    except ValueError:
        raise ValueError(f"{CA_CERTIFICATE} is no certificate in PEM form") from None
    try:
        key = serialization.load_pem_private_key(content[CA_KEY], None)
    except (ValueError, TypeError):
        raise ValueError(f"{CA_KEY} is no private key in PEM form (or it has a password)") from None
    if not isinstance(key, SigningKey) or key.public_key() != certificate.public_key():
        raise ValueError(f"{CA_KEY} is not the key of {CA_CERTIFICATE}")
    if certificate.not_valid_after_utc <= now:
        raise ValueError(f"{CA_CERTIFICATE} ended on {certificate.not_valid_after_utc:%Y-%m-%d}")
    return _Authority(certificate, key), _certificate_pem(certificate).decode(), content[MASTER_KEY]


# --- Certificates -----------------------------------------------------------------------------------------------------


def _new_authority(now: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "TrainJob coordinator CA")])
    builder = (
        _builder(name, name, key.public_key(), now, now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _Authority(builder.sign(key, hashes.SHA256()), key)


def _sign_server(
    authority: _Authority, dns_names: Sequence[str], now: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "TrainJob coordinator")])
    issuer = authority.certificate
    ends = min(now + SERVER_LIFETIME, issuer.not_valid_after_utc)
    builder = (
        _builder(name, issuer.subject, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in dns_names]), critical=False)
        .add_extension(_authority_identifier(issuer), critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _authority_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """As the issuer's own identifier says: strict clients compare them."""
    try:
        own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: SigningKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load(context: ssl.SSLContext, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """The standard library reads certificates from files alone; this one lies in memory (the root file system may be
    read-only).
    """
    file = os.memfd_create("coordinator", os.MFD_CLOEXEC)
    try:
        os.write(file, _certificate_pem(certificate) + _key_pem(key))
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
