"""Keys, certificates and invitations: a federation's own authority, its server's certificate, a site's key.

What a site gets from whoever runs a federation: one file, without any secret.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from upcycled._utils.files import write_whole
from upcycled.config.tables import named
from upcycled.core.errors import InputError, reason_of

DAYS = 825
"""How long certificates last: what browsers and systems accept at most."""


def make_authority(name: str, certificate: Path, key: Path) -> None:
    """Write a new authority's certificate and its key (0600)."""
    secret = ec.generate_private_key(ec.SECP384R1())
    who = _named(f"{name} authority")
    made = (
        _begun(who, who, secret.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
        .sign(secret, hashes.SHA384())
    )
    write_whole(key, _pem(secret), private=True)
    write_whole(certificate, _pem(made))


def make_server_certificate(hosts: Sequence[str], authority: tuple[Path, Path], certificate: Path, key: Path) -> None:
    """Write a server's certificate for these names and addresses, and its key (0600)."""
    issuer = x509.load_pem_x509_certificate(authority[0].read_bytes())
    signer: Any = serialization.load_pem_private_key(authority[1].read_bytes(), None)
    secret = ec.generate_private_key(ec.SECP384R1())
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        _begun(_named(hosts[0]), issuer.subject, secret.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(signed_by, critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_whole(key, _pem(secret), private=True)
    write_whole(certificate, _pem(made))


def site_key(path: Path) -> bytes:
    """Return a site's private key, made where there is none (0600); it never leaves the site."""
    if not path.exists():
        secret = ec.generate_private_key(ec.SECP384R1())
        form, none = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        write_whole(path, secret.private_bytes(serialization.Encoding.PEM, form, none), private=True)
    if path.stat().st_mode & 0o077:
        raise InputError(f"{path} may be read by others than its owner: chmod 600 {path}")
    return path.read_bytes()


def public_line(private_key: bytes) -> str:
    """Return the public key that belongs to a private one, as a line of text."""
    public = serialization.load_ssh_private_key(private_key, None).public_key()
    form = serialization.PublicFormat.OpenSSH
    return public.public_bytes(serialization.Encoding.OpenSSH, form).decode()


def public_bytes(line: str) -> bytes:
    """Return a public key of such a line as Flower takes it.

    Raises:
        InputError: in one sentence, if it is none.
    """
    try:
        key = serialization.load_ssh_public_key(line.strip().encode())
    except Exception:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        must = "a site's public key, such as 'ecdsa-sha2-nistp384 AAAA...', which `join` prints"
        raise InputError(field="--key", value=line, must=must)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(certificate: bytes) -> str:
    """Return a certificate's SHA-256, to be compared by people."""
    der = x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def make_secret(path: Path) -> None:
    """Write 32 random bytes (0600)."""
    write_whole(path, os.urandom(32), private=True)


def _begun(subject: Any, issuer: Any, public_key: Any) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # Clocks differ a little.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _named(name: str) -> Any:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(made: Any) -> bytes:
    pem = serialization.Encoding.PEM
    if hasattr(made, "private_bytes"):
        form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        found: bytes = made.private_bytes(pem, form, none)
        return found
    return bytes(made.public_bytes(pem))


@dataclass(frozen=True)
class Invitation:
    """Where the server is, and how it proves itself."""

    federation: str
    site: str
    address: str
    certificate: str
    """The authority's, in PEM."""
    fingerprint: str
    schema: Mapping[str, Any] | None = None
    """What the columns of the sites' tables mean, in plain values, where the experiment says so: whoever has the table
    reads it."""


def read_invitation(path: str | os.PathLike[str]) -> Invitation:
    """Read an invitation.

    Raises:
        InputError: in one sentence, if it is none, or was changed.
    """
    with named(str(path)):
        try:
            raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            given = {key: raw[key] for key in ("federation", "site", "address", "certificate", "fingerprint")}
            if not all(isinstance(value, str) for value in given.values()):
                raise ValueError("a key has no text")
            is_same = fingerprint(given["certificate"].encode()) == given["fingerprint"]
        except (OSError, KeyError, ValueError) as error:
            raise InputError(f"the file is no invitation ({reason_of(error)}): ask for it again") from None
        if not is_same:
            raise InputError("the certificate is not the one that the fingerprint is of: ask for the file again")
        return Invitation(**given, schema=raw.get("schema"))
