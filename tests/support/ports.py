"""Ports of the loopback address for servers of tests."""
import contextlib
import os
import socket

TAKEN = set()


def free_port():
    """Below those that Linux gives to outgoing connections, so that none takes it before the server does."""
    for i in range(12768):
        port = 20000 + (os.getpid() * 7 + i) % 12768
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            if port not in TAKEN:
                TAKEN.add(port)
                return port
    raise OSError("no port of the loopback address is free")
