"""A certificate authority of a test's own, and a server's certificate by it, as files: as a company's tool makes them,
without what Python 3.13 asks for (key usage, key identifiers; see `strict_tls`).
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest


class Authority:
    """`bundle` vouches for `certificate`, whose key is in `key`; made in `folder`."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("cryptography", reason="cryptography is not installed")
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        folder.mkdir(parents=True, exist_ok=True)
        self.bundle, self.certificate, self.key = folder / "ca.crt", folder / "server.crt", folder / "server.key"
        now, own, servers = (
            datetime.datetime.now(datetime.UTC),
            ec.generate_private_key(ec.SECP256R1()),
            ec.generate_private_key(ec.SECP256R1()),
        )

        def certificate(name: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
            made = (
                x509.CertificateBuilder()
                .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
                .issuer_name(root)
                .public_key(public)
            )
            made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
            return made.not_valid_after(now + datetime.timedelta(hours=1))

        root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of a test")])
        ca = certificate("an authority of a test", own.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        server = certificate("127.0.0.1", servers.public_key()).add_extension(names, critical=False)
        plain = serialization.NoEncryption()
        self.bundle.write_bytes(ca.sign(own, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        self.certificate.write_bytes(server.sign(own, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            servers.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        )
