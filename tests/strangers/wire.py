"""The wires of the strangers' machine, on one event loop: HTTP with kept connections, Redis with commands in flight, and
msgpack as agents read it. Standard library alone."""
import asyncio
import gzip
import json
import struct


class Closed(Exception):
    """The other end went away in the middle."""


# ---- msgpack ----

def unpack(data):
    """The document in these bytes (common/frame.h writes it)."""
    value, at = _unpack(data, 0)
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes after the document")
    return value


_NUMBERS = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h", 0xd2: ">i", 0xd3: ">q"}
_SIZES = {0xc4: ">B", 0xc5: ">H", 0xc6: ">I", 0xd9: ">B", 0xda: ">H", 0xdb: ">I", 0xdc: ">H", 0xdd: ">I", 0xde: ">H", 0xdf: ">I"}


def _unpack(data, at):
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xe0:
        return kind - 256, at
    if kind in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[kind], at
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if kind in _SIZES:
        size = struct.unpack_from(_SIZES[kind], data, at)[0]
        at += struct.calcsize(_SIZES[kind])
    else:
        size = kind & (0x1f if kind >= 0xa0 else 0x0f)
    if kind < 0xa0 and kind >= 0x80 or kind >= 0xdc:
        return _unpack_several(data, at, size, kind < 0x90 or kind >= 0xde)
    raw = data[at:at + size]
    return (raw.decode() if 0xa0 <= kind < 0xc0 or 0xd9 <= kind <= 0xdb else raw), at + size


def _unpack_several(data, at, size, is_map):
    if not is_map:
        items = []
        for _ in range(size):
            item, at = _unpack(data, at)
            items.append(item)
        return items, at
    items = {}
    for _ in range(size):
        key, at = _unpack(data, at)
        items[key], at = _unpack(data, at)
    return items, at


# ---- HTTP ----

class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body) if self.body else None


class Http:
    """One kept connection. A request on one that the server has closed meanwhile is sent once more on a new one."""

    def __init__(self, service):
        self.service = service
        self.reader = self.writer = None
        self.address = None

    async def call(self, method, path, body=None, token=None, headers=None, seconds=30):
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "Host: strangers", f"Content-Length: {len(data)}"]
        if token:
            head.append(f"Authorization: Bearer {token}")
        if body is not None and "Content-Type" not in (headers or {}):
            head.append("Content-Type: application/" + ("octet-stream" if isinstance(body, bytes) else "json"))
        head += [f"{key}: {value}" for key, value in (headers or {}).items()]
        request = "\r\n".join(head).encode() + b"\r\n\r\n" + data
        for attempt in (1, 2):
            was_kept = self.writer is not None and self.address == self.service.address
            try:
                return await asyncio.wait_for(self._ask(method, request, was_kept), seconds)
            except (OSError, Closed, asyncio.IncompleteReadError) as problem:
                self.close()
                if attempt == 2 or not was_kept:
                    raise Closed(str(problem)) from problem
            except asyncio.TimeoutError:
                self.close()
                raise

    async def _ask(self, method, request, was_kept):
        if not was_kept:
            self.close()
            self.address = self.service.address
            host, port = self.address.rsplit(":", 1)
            self.reader, self.writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
        self.writer.write(request)
        status, headers = await self._head()
        if method == "HEAD" or status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            self.close()
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return Answer(status, headers, body)

    async def _head(self):
        raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return int(lines[0].split(" ")[1]), headers

    async def _chunks(self):
        out = b""
        while True:
            size = int((await self.reader.readline()).split(b";")[0], 16)
            out += await self.reader.readexactly(size)
            await self.reader.readline()
            if size == 0:
                return out

    async def stream(self, path, token, take, last=None):
        """Reads an event stream until it ends or is cancelled; `take` gets each event's (id or None, type, document). The status."""
        self.close()
        host, port = self.service.address.rsplit(":", 1)
        self.reader, self.writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
        try:
            after = "" if last is None else f"Last-Event-ID: {last}\r\n"
            self.writer.write(f"GET {path} HTTP/1.1\r\nHost: strangers\r\nAuthorization: Bearer {token}\r\n{after}\r\n".encode())
            status, headers = await self._head()
            if status != 200:
                await self.reader.readexactly(int(headers.get("content-length", 0)))
                return status
            kind, ident = "message", None
            while True:
                line = await self.reader.readline()
                if not line.endswith(b"\n"):
                    return status
                if line.startswith(b"event:"):
                    kind = line[6:].strip().decode()
                elif line.startswith(b"data:"):
                    take(ident, kind, line[5:].strip())
                    ident = None
                elif line.startswith(b"id:"):
                    ident = int(line[3:])
        finally:
            self.close()

    def close(self):
        if self.writer:
            self.writer.close()
        self.reader = self.writer = None


# ---- Redis ----

class RedisError(Exception):
    pass


class Redis:
    """One connection; commands may be in flight one behind the other."""

    def __init__(self, path):
        self.path = path
        self.reader = self.writer = self.task = None
        self.waiting = []

    async def open(self, user, password):
        self.reader, self.writer = await asyncio.open_unix_connection(self.path, limit=1 << 26)
        self.task = asyncio.ensure_future(self._answers())
        await self.say("AUTH", user, password)

    def send(self, *words):
        """Sends a command; the future of its answer."""
        future = asyncio.get_running_loop().create_future()
        if not self.writer:
            future.set_exception(Closed("not connected"))
            return future
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.writer.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        self.waiting.append(future)
        return future

    async def say(self, *words, seconds=20):
        return await asyncio.wait_for(self.send(*words), seconds)

    async def _answers(self):
        try:
            while True:
                answer = await self._read()
                future = self.waiting.pop(0)
                if future.done():
                    continue
                if isinstance(answer, RedisError):
                    future.set_exception(answer)
                    future.exception()  # who does not wait for it does not care
                else:
                    future.set_result(answer)
        except (OSError, Closed, asyncio.IncompleteReadError):
            self.close()

    async def _read(self):
        line = await self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise Closed("Redis went away")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return RedisError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else (await self.reader.readexactly(int(rest) + 2))[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [await self._read() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def close(self):
        if self.writer:
            self.writer.close()
        self.writer = None
        for future in self.waiting:
            if not future.done():
                future.set_exception(Closed("Redis went away"))
                future.exception()
        self.waiting = []
        if self.task and self.task is not asyncio.current_task():
            self.task.cancel()


# ---- PostgreSQL ----

class Postgres:
    """One connection on a unix socket, by the simple query protocol; it opens itself again when the server was killed."""

    def __init__(self, folder):
        self.path = folder + "/.s.PGSQL.5432"
        self.reader = self.writer = None
        self.lock = asyncio.Lock()

    async def _message(self):
        kind, size = struct.unpack(">cI", await self.reader.readexactly(5))
        return kind, await self.reader.readexactly(size - 4)

    async def _open(self):
        self.reader, self.writer = await asyncio.open_unix_connection(self.path, limit=1 << 28)
        words = b"user\0motley\0database\0postgres\0\0"
        self.writer.write(struct.pack(">II", 8 + len(words), 196608) + words)
        while True:
            kind, body = await self._message()
            if kind == b"E":
                raise Closed(body.decode(errors="replace"))
            if kind == b"Z":
                return

    async def query(self, text):
        """The first column of each row, as text; a statement that fails raises ValueError."""
        for attempt in range(100):
            async with self.lock:
                try:
                    if not self.writer:
                        await self._open()
                    return await asyncio.wait_for(self._query(text), 60)
                except (OSError, Closed, asyncio.IncompleteReadError):
                    self.close()
                    if attempt == 99:
                        raise
            await asyncio.sleep(0.1)

    async def _query(self, text):
        data = text.encode() + b"\0"
        self.writer.write(b"Q" + struct.pack(">I", 4 + len(data)) + data)
        rows, failure = [], None
        while True:
            kind, body = await self._message()
            if kind == b"D":
                size = struct.unpack_from(">i", body, 2)[0]
                rows.append(None if size < 0 else body[6:6 + size].decode())
            elif kind == b"E":
                failure = body.decode(errors="replace").replace("\0", " ")
            elif kind == b"Z":
                break
        if failure:
            raise ValueError(f"{text[:300]}: {failure}")
        return rows

    def close(self):
        if self.writer:
            self.writer.close()
        self.reader = self.writer = None
