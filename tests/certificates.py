"""Certificates for tests: an authority of its own and a server's certificate, for this machine only."""

from __future__ import annotations

from pathlib import Path

import trustme


def make_certificate(folder: Path) -> tuple[Path, Path, Path]:
    """The certificate chain and the key of a server at 127.0.0.1 and localhost, and its authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    cert, key, trusted = folder / "cert.pem", folder / "key.pem", folder / "authority.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    trusted.write_bytes(authority.cert_pem.bytes())
    return cert, key, trusted
