"""Certificates of the server: contexts for HTTPS and AMQPS, and errors that name the file at fault."""

from __future__ import annotations

import ssl

from ..config import Config
from ..errors import InvalidSetting


def tls_context(config: Config) -> ssl.SSLContext | None:
    if config.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, config)
    return context


def load_certificate(context: ssl.SSLContext, config: Config) -> None:
    """Serve new connections with the certificate of `config`."""
    assert config.tls_cert is not None
    try:
        # Without a password callback OpenSSL would prompt on the terminal and block the server.
        context.load_cert_chain(config.tls_cert, config.tls_key, password="")
    except OSError as error:  # an ssl.SSLError is one too
        raise InvalidSetting(certificate_problem(config.tls_cert, config.tls_key, error)) from error


def certificate_problem(cert: str, key: str | None, error: OSError) -> str:
    """Why a certificate cannot be used: names the file at fault, without OpenSSL's own wording."""
    for what, path in (("certificate", cert), ("key", key)):
        if path is not None and (reason := unreadable(path)) is not None:
            return f"cannot read the {what} {path}: {reason}"
    pair = f"the certificate {cert}" + ("" if key is None else f" and the key {key}")
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"cannot use {pair}: they do not belong together"
    return f"cannot use {pair}: expected PEM and a key without a password" + (
        " and in the same file" if key is None else ""
    )


def unreadable(path: str) -> str | None:
    """The system's reason why a file cannot be read; None if it can."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def client_context(config: Config, context: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """The same certificate; client certificates are verified if `tls_ca` names an authority."""
    if config.tls_ca is None:
        return context
    own = tls_context(config)
    assert own is not None
    try:
        own.load_verify_locations(config.tls_ca)
    except OSError as error:
        reason = unreadable(config.tls_ca) or "expected certificates in PEM"
        raise InvalidSetting(f"cannot use the authorities {config.tls_ca}: {reason}") from error
    own.verify_mode = ssl.CERT_OPTIONAL
    return own
