"""Certificates and keys of a test control plane: a CA, the API server's certificate, the key that signs service-account
tokens.

Used by `apiserver.py` alone. Good for a day, and for 127.0.0.1.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def write_credentials(folder: Path) -> None:
    """ca.crt, server.crt and .key, accounts.key and .pub."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key)
    server_key = ec.generate_private_key(ec.SECP256R1())
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write(folder / "ca.crt", authority.public_bytes(serialization.Encoding.PEM))
    _write(
        folder / "server.crt",
        _server(server_key.public_key(), authority, authority_key).public_bytes(serialization.Encoding.PEM),
    )
    _write(folder / "server.key", _private(server_key))
    _write(folder / "accounts.key", _private(accounts))
    public = accounts.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write(folder / "accounts.pub", public)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(name: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    builder = _builder("test-ca", key.public_key())
    builder = builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-ca")]))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.add_extension(_usage(authority=True), critical=True).sign(key, hashes.SHA256())


def _server(
    public: ec.EllipticCurvePublicKey, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    names: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.DNSName("localhost"),
        x509.DNSName("kubernetes.default.svc"),
    ]
    authority_key = authority.public_key()
    assert isinstance(authority_key, ec.EllipticCurvePublicKey)
    return (
        _builder("kube-apiserver", public)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key), critical=False)
        .sign(key, hashes.SHA256())
    )
