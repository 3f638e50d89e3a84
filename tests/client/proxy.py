"""A TCP proxy in front of a service that breaks connections on purpose."""
import contextlib
import socket
import threading
from urllib.parse import urlsplit


class Proxy:
    """Breaks the n-th connection (from 0) as the functions say: `cut_after(n)` bytes of the answer, `cut_upload_after(n)` bytes of the
    request, None for never; `lose_answers(n)`: the request goes through whole, and of its answer nothing comes back."""

    def __init__(self, address, cut_after=None, cut_upload_after=None, lose_answers=None):
        parts = urlsplit(address)
        self.target = (parts.hostname, parts.port)
        self.rules = cut_after or (lambda n: None), cut_upload_after or (lambda n: None), lose_answers or (lambda n: False)
        self.cuts = self.lost = self.count = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with self.lock:
                    number, self.count = self.count, self.count + 1
                server = socket.create_connection(self.target)
                answer_most, upload_most, lose = (rule(number) for rule in self.rules)
                threading.Thread(target=self.carry, args=(client, server, upload_most), daemon=True).start()
                threading.Thread(target=self.lose if lose else self.carry, args=(server, client, answer_most), daemon=True).start()

    def carry(self, source, target, most):
        left = most
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if left is not None and len(piece) > left:
                    target.sendall(piece[:left])
                    with self.lock:
                        self.cuts += 1
                    break
                target.sendall(piece)
                left = None if left is None else left - len(piece)
        self.end(source, target)

    def lose(self, source, target, _):
        """The first bytes of an answer say that the request was read; a second request on the connection never comes."""
        with contextlib.suppress(OSError):
            source.recv(65536)
        with self.lock:
            self.lost += 1
        self.end(source, target)

    @staticmethod
    def end(*sockets):
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
