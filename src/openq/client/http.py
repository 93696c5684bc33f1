"""A small blocking HTTP/1.1 client: one kept connection, TLS, a token or a password.

On plain sockets: `http.client` of the standard library imports the whole of `email` and takes longer to
start than most commands run. One `HttpClient` is for one thread; `RestClient` shares several among threads.
"""

from __future__ import annotations

import base64
import json
import select
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ..errors import OpenQError

MAX_HEAD_BYTES = 64 << 10
_READ_BYTES = 256 << 10


class Unreachable(OpenQError):
    """No response from the server: it does not run, or not at this address."""

    code = "unreachable"
    sent = False  # True: the request may have arrived and been carried out

    def __init__(self, url: str, why: str, hint: str = "") -> None:
        super().__init__(f"cannot reach {url}: {why}")
        self.url = url
        self.why = why
        self.hint = hint


class Uncertain(Unreachable):
    """The connection broke before the response came: it is not known whether the call was carried out."""

    code = "uncertain"
    sent = True

    def __init__(self, url: str, why: str, what: str, cause: OpenQError | None = None) -> None:
        super().__init__(url, f"{why}; it is not known whether {what}")
        self.cause = cause


class TimedOut(OpenQError):
    code = "timed_out"
    sent = False

    def __init__(self, url: str, seconds: float) -> None:
        self.why = f"no answer within {seconds:g} s"
        super().__init__(f"no answer from {url} within {seconds:g} s")
        self.url = url


class Refused(OpenQError):
    """The server responded with an error; `code` and `hint` are those of the response."""

    code = "refused"
    sent = True

    def __init__(self, status: int, code: str, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint

    @property
    def why(self) -> str:
        return self.detail


class ClientResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case; the last of a name
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            shown = self.body[:80].decode("utf-8", "replace")
            raise Refused(
                self.status, "not_json", f"the server did not answer with JSON: {shown!r}"
            ) from None

    def raise_for_status(self) -> ClientResponse:
        """Itself for a status below 400; else raises Refused with the reason of the server."""
        if self.status < 400:
            return self
        problem: Any = None
        try:
            problem = json.loads(self.body)
        except ValueError:
            pass
        if not isinstance(problem, dict):
            text = self.body[:200].decode("utf-8", "replace").strip()
            raise Refused(self.status, "error", f"the server answered {self.status}: {text}")
        detail = problem.get("detail") or problem.get("title") or f"the server answered {self.status}"
        code, hint = str(problem.get("code") or "error"), str(problem.get("hint") or "")
        raise Refused(self.status, code, str(detail), hint)


class StreamBody:
    """The body of a response that ends with the connection."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def read(self, timeout_s: float) -> bytes:
        """The next bytes; empty at the end. Raises TimedOut if none come in time."""
        return self._client.read_some(timeout_s)


class HttpClient:
    """A connection to one server. Opens at the first request, and again after the server closed it."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            raise Unreachable(url, "the port must be a number from 0 to 65535") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = "an address looks like http://127.0.0.1:9324"
            if url.startswith(("redis", "valkey")):
                shown += "; what is in Redis is reached over a server: openq serve --store redis://..."
            raise Unreachable(url, shown)
        self._tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = port if port is not None else (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._ca = ca
        self._timeout_s = timeout_s
        name = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{parts.scheme}://{name}:{self._port}{self._prefix}"
        if parts.username and user is None:
            user, password = unquote(parts.username), unquote(parts.password or "")
        signed = b""
        if token is not None:
            signed = b"authorization: Bearer " + _header_value(token, "token") + b"\r\n"
        elif user is not None:
            pair = f"{user}:{password or ''}".encode()
            signed = b"authorization: Basic " + base64.b64encode(pair) + b"\r\n"
        self._fixed_headers = (
            b"host: " + f"{name}:{self._port}".encode() + b"\r\nuser-agent: openq\r\n" + signed
        )
        self._socket: socket.socket | None = None
        self._watch: select.poll | None = None  # of the socket; None where there is no `poll`
        self._wait_s = 0.0  # the timeout of the socket
        self._buffer = b""
        # The last head and its fields: a server sends the same one again and again.
        self._head = b""
        self._fields: tuple[int, Mapping[str, str]] = (0, {})
        self.aborted = False

    def __repr__(self) -> str:
        return f"HttpClient({self.url!r})"  # never the token

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        *,
        accept: str = "application/json",
        timeout_s: float | None = None,
    ) -> ClientResponse:
        """One request. `target` is a path with its query, percent-encoded. No status raises an error."""
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        head = (
            f"{method} {self._prefix}{target} HTTP/1.1\r\naccept: {accept}\r\n".encode("ascii")
            + self._fixed_headers
        )
        if body is not None:
            head += f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n".encode("ascii")
        elif method not in ("GET", "HEAD", "DELETE"):
            head += b"content-length: 0\r\n"
        sent = False
        try:
            opened = self._open(wait_s)
            if wait_s != self._wait_s:
                opened.settimeout(wait_s)
                self._wait_s = wait_s
            if self.aborted:
                raise Unreachable(self.url, "the call was called off")
            sent = True
            try:
                opened.sendall(head + b"\r\n" + (body or b""))
            except (BrokenPipeError, ConnectionResetError):
                # The server stopped reading a body that it refuses: it may have sent a response.
                response = self._read_response(method)
                self.close()
                return response
            return self._read_response(method)
        except TimeoutError:
            self.close()
            late = TimedOut(self.url, wait_s)
            late.sent = sent
            raise late from None
        except OSError as error:
            self.close()
            lost = self._unreachable(error)
            lost.sent = sent
            raise lost from None
        except Unreachable as error:
            self.close()
            error.sent = sent
            raise
        except BaseException:
            # The rest of this response must not be taken for the next one.
            self.close()
            raise

    def stream(self, target: str, accept: str, headers: Mapping[str, str]) -> StreamBody:
        """A GET whose response ends with the connection. Raises Refused for a status from 400 on."""
        self.close()
        head = f"GET {self._prefix}{target} HTTP/1.1\r\naccept: {accept}\r\n".encode("ascii")
        for name, value in headers.items():
            head += name.encode("ascii") + b": " + _header_value(value, name) + b"\r\n"
        try:
            opened = self._open(self._timeout_s)
            if self.aborted:
                raise Unreachable(self.url, "the call was called off")
            opened.sendall(head + self._fixed_headers + b"\r\n")
            status, fields = self._read_head()
            if status >= 400:
                ClientResponse(status, fields, self._read_body(fields)).raise_for_status()
            return StreamBody(self)
        except TimeoutError:
            self.close()
            raise TimedOut(self.url, self._timeout_s) from None
        except OSError as error:
            self.close()
            raise self._unreachable(error) from None
        except BaseException:
            self.close()
            raise

    def read_some(self, timeout_s: float) -> bytes:
        """The next bytes of a stream; empty at its end."""
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        held = self._socket
        if held is None:
            return b""
        try:
            held.settimeout(timeout_s)
            return held.recv(_READ_BYTES)
        except TimeoutError:
            raise TimedOut(self.url, timeout_s) from None
        except OSError as error:
            raise self._unreachable(error) from None

    def upgrade(self, target: str, headers: bytes) -> tuple[socket.socket, Mapping[str, str], bytes]:
        """Ask for another protocol: the socket after 101, the headers, and bytes that came with them.

        Raises Refused with the status of another answer, or Unreachable.
        """
        try:
            opened = self._open(self._timeout_s)
            head = f"GET {self._prefix}{target} HTTP/1.1\r\n".encode("ascii")
            opened.sendall(head + self._fixed_headers + headers + b"\r\n")
            status, fields = self._read_head(least=101)
            if status != 101:
                ClientResponse(status, fields, self._read_body(fields)).raise_for_status()
                raise Refused(status, "error", f"the server answered {status} instead of 101")
            rest, self._socket, self._buffer = self._buffer, None, b""
            return opened, fields, rest
        except OSError as error:
            raise self._unreachable(error) from None
        finally:
            self.close()

    def abort(self) -> None:
        """Tell the server that its response is no longer awaited. From any thread.

        Only our direction is closed: a response on its way still reaches the waiting thread, so that the
        messages in it are not lost.
        """
        self.aborted = True  # for good: a connection that is being opened must notice too
        held = self._socket
        if held is not None:
            try:
                # Not the method of a TLS socket, which would drop the keys that the reader needs.
                socket.socket.shutdown(held, socket.SHUT_WR)
            except OSError:
                pass  # closed already

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._buffer = b""

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------

    def _open(self, wait_s: float) -> socket.socket:
        held = self._socket
        if held is not None:
            # Readable before a request: the server closed it. Noticed now, the request can go over a new
            # connection; noticed after sending, it would not be known whether it was carried out.
            if not self._buffer and not self._is_readable(held):
                return held
            self.close()
        opened = socket.create_connection((self._host, self._port), wait_s)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls:
            import ssl

            try:
                context = ssl.create_default_context(cafile=self._ca)
                opened = context.wrap_socket(opened, server_hostname=self._host)
            except BaseException:
                opened.close()
                raise
        if hasattr(select, "poll"):
            # Not `select`: it handles only the first 1,024 files of a process.
            self._watch = select.poll()
            self._watch.register(opened, select.POLLIN)
        self._wait_s = wait_s
        self._socket = opened
        return opened

    def _is_readable(self, held: socket.socket) -> bool:
        if self._watch is None:
            return bool(select.select([held], [], [], 0)[0])
        return bool(self._watch.poll(0))

    def _unreachable(self, error: OSError) -> Unreachable:
        if isinstance(error, ConnectionRefusedError):
            return Unreachable(self.url, "nothing listens there", "start it: openq serve; or name it: --url")
        if isinstance(error, socket.gaierror):
            return Unreachable(self.url, f"the name {self._host} is not known")
        if type(error).__name__ == "SSLCertVerificationError":
            reason = getattr(error, "verify_message", "")
            return Unreachable(
                self.url, f"its certificate is not trusted: {reason}", "name its CA with --ca FILE"
            )
        if type(error).__name__.startswith("SSL"):
            return Unreachable(self.url, "it does not speak HTTPS there", "try http://")
        return Unreachable(self.url, error.strerror or str(error))

    def _read_more(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(_READ_BYTES)
        if not data:
            hint = "if it serves HTTPS, the address begins with https://" if not self._tls else ""
            raise Unreachable(self.url, "it hung up before the end of its answer", hint)
        self._buffer += data

    def _read_response(self, method: str) -> ClientResponse:
        status, headers = self._read_head()
        body = b"" if method == "HEAD" or status in (204, 304) else self._read_body(headers)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return ClientResponse(status, headers, body)

    def _read_head(self, least: int = 200) -> tuple[int, Mapping[str, str]]:
        while True:
            while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise Unreachable(self.url, "its answer is not HTTP")
                self._read_more()
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            if head != self._head:
                self._fields = self._parse_head(head)
                self._head = head
            if self._fields[0] >= least:
                return self._fields  # not an interim response such as 100 Continue

    def _parse_head(self, head: bytes) -> tuple[int, Mapping[str, str]]:
        lines = head.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise Unreachable(self.url, "its answer is not HTTP")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(rest[:3]), headers

    def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return b"".join(self._read_chunks())
        length = headers.get("content-length")
        if length is None or not length.isdigit():
            raise Unreachable(self.url, "its answer has no length")
        return self._read_exactly(int(length))

    def _read_exactly(self, size: int) -> bytes:
        if len(self._buffer) < size:
            assert self._socket is not None
            # Joined once: adding each piece to the buffer would copy a long response again and again.
            pieces, have = [self._buffer], len(self._buffer)
            while have < size:
                data = self._socket.recv(min(_READ_BYTES, size - have))
                if not data:
                    raise Unreachable(self.url, "it hung up before the end of its answer")
                pieces.append(data)
                have += len(data)
            self._buffer = b"".join(pieces)
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return body

    def _read_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise Unreachable(self.url, "its answer is not HTTP")
            self._read_more()
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _read_chunks(self) -> Iterator[bytes]:
        while True:
            try:
                size = int(self._read_line().partition(b";")[0], 16)
            except ValueError:
                raise Unreachable(self.url, "its answer is not HTTP") from None
            if not size:
                break
            yield self._read_exactly(size)
            self._read_exactly(2)
        while self._read_line():
            pass


def _header_value(text: str, what: str) -> bytes:
    """A header value, which must not contain a line end."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise Refused(0, "usage", f"the {what} must be printable ASCII without spaces")
    return text.encode()
