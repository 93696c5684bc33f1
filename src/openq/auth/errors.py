"""Errors of authentication and of the user store. No text contains a secret, a password or a token."""

from __future__ import annotations

from ..errors import InvalidSetting, OpenQError


class AuthenticationFailed(OpenQError):
    """Authentication failed. The base class of all authentication errors."""

    code = "refused"


class LoginFailed(AuthenticationFailed):
    """A wrong password or token, or a user that is unknown, disabled or expired: deliberately one answer."""

    code = "login_refused"

    def __init__(self) -> None:
        super().__init__("the user name, password or token is not valid")


class TooManyFailedLogins(AuthenticationFailed):
    """Too many failed logins from this address."""

    code = "too_many_failed_logins"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many failed logins from this address; try again in {retry_after_s} seconds")
        self.retry_after_s = retry_after_s


class SessionExpired(AuthenticationFailed):
    """The session of a cookie is unknown, ended or expired."""

    code = "session_expired"

    def __init__(self) -> None:
        super().__init__("the session has ended; log in again")


class ForeignRequest(AuthenticationFailed):
    """A request with the cookie of a session that may come from a page of another origin."""

    code = "foreign_request"

    def __init__(self) -> None:
        super().__init__("a request with the session cookie must come from a page of this server")


class InvalidSignature(AuthenticationFailed):
    """An invalid AWS signature. `code` is AWS's own; a protocol may have to rename it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class NameTaken(InvalidSetting):
    """A user or token of this name exists."""

    code = "name_taken"


class InvalidAccessPolicy(InvalidSetting):
    """An invalid access policy; the text names the part."""

    code = "invalid_policy"


class UserStoreUnwritable(OpenQError):
    """A change of users or policies could not be written; nothing was changed."""

    code = "not_stored"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the change cannot be stored: {reason}; nothing was changed, try again later")
        self.reason = reason


class UserStoreDamaged(OpenQError):
    """The file of users is damaged. All logins are rejected until it is restored."""

    code = "user_store_damaged"

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(
            f"{path} is damaged: {detail}; all logins are rejected. Restore it from a backup, "
            "or remove it and create the users again"
        )
        self.path = path
        self.public = "the user store is damaged; all logins are rejected until an operator restores it"
        self.detail = detail


class UnknownName(OpenQError, KeyError):
    """No such user, key or token in the store."""

    code = "not_found"

    def __init__(self, kind: str, name: str) -> None:
        self.text = f"{kind} {name!r} does not exist"
        super().__init__(self.text)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        # KeyError would show the repr of its argument.
        return self.text
