"""What a rogue has in hand: a Redis connection, messages in msgpack, and a node's seal. Standard library alone."""
import hashlib
import hmac
import json
import os
import socket
import struct


def command(*words):
    """A command as Redis reads it."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def pack(value):
    """msgpack, in forms that every reader takes."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return b"\xdb" + struct.pack(">I", len(data)) + data
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(pack(item) for item in value)
    return b"\xdf" + struct.pack(">I", len(value)) + b"".join(pack(key) + pack(item) for key, item in value.items())


def seal(key, way, node, body):
    """common/seal.h, written a second time."""
    text = b"".join(struct.pack(">Q", len(part)) + part for part in (way.encode(), node.encode(), body))
    return hmac.new(key, text, hashlib.sha256).digest()


class RedisError(Exception):
    pass


class Redis:
    """One connection; answers as bytes, int, list or None."""

    def __init__(self, path, user, password):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(path)
        self.file = self.sock.makefile("rb")
        self.say("AUTH", user, password)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.file.close()
        self.sock.close()

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def say(self, *words):
        self.sock.sendall(command(*words))
        return self.read()


def admin(motley, name="redis.sock"):
    with open(os.path.join(motley.home, "run", "redis.password"), encoding="utf-8") as handle:
        return Redis(os.path.join(motley.home, "run", name), "admin", handle.read().strip())


class Node:
    """A node's real credentials, out of its agent's home."""

    def __init__(self, motley, name):
        with open(os.path.join(motley.home, "agents", name, "agent.json"), encoding="utf-8") as handle:
            kept = json.load(handle)
        self.name, self.redis, self.token = name, kept["redis"], kept["token"]
        self.key = bytes.fromhex(kept["seal"])
        self.path = os.path.join(motley.home, "run", "redis.sock")
        self.stream, self.inbox = f"motley:events:{name}", f"motley:agent:{name}"

    def connect(self):
        return Redis(self.path, self.redis["user"], self.redis["password"])

    def entry(self, body):
        """The words of an entry with that document (or those bytes), sealed as this node's."""
        body = body if isinstance(body, bytes) else pack(body)
        return ("m", body, "a", seal(self.key, "events", self.name, body))
