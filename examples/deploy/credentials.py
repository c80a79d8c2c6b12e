"""Fresh certificates and keys for a federation: a CA, a server certificate it signed, and a key pair per node."""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)  # long enough to try it, too short to forget it in production


@dataclass(frozen=True)
class Certificates:
    """Three files.

    ca           the certificate of the CA, which nodes and users must have
    certificate  the certificate of the SuperLink, signed by the CA
    key          the private key of the SuperLink
    """

    ca: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, names: tuple[str, ...] = ("localhost", "127.0.0.1")) -> Certificates:
    """Make a new CA, and a server certificate for these host names and addresses. The private key of the CA is not kept."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name, server_name = _name("Federation CA"), _name(names[0])
    only_ca = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    ca = (
        _certificate(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(only_ca, critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = (
        _certificate(server_name, ca_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    made = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    _write(made.ca, ca.public_bytes(serialization.Encoding.PEM))
    _write(made.certificate, server.public_bytes(serialization.Encoding.PEM))
    pkcs8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(made.key, server_key.private_bytes(*pkcs8))
    return made


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make the private and the public key of one node, as `ssh-keygen -t ecdsa -b 384` does."""
    key = ec.generate_private_key(ec.SECP384R1())
    ssh = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(folder / name, key.private_bytes(*ssh))
    _write(folder / f"{name}.pub", public)
    return folder / name, folder / f"{name}.pub"


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # the clocks of machines differ
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, as ssh demands of keys."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
