"""A motley-api with TLS and small limits, and what its clients do that are no good clients."""
import os
import socket
import ssl
import subprocess

from api import Api

IDLE_S = 2


class Limited(Api):
    def __init__(self):
        super().__init__(limits={"idle_seconds": IDLE_S, "connections_per_address": 256, "streams_per_user": 3, "user": 40 << 20})
        self.config["tls"] = certificate(self.base)
        self.context = ssl.create_default_context(cafile=self.config["tls"]["cert"])

    def dial(self, source="127.0.0.1", tls=True):
        host, port = self.address.rsplit(":", 1)
        sock = socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))
        return self.context.wrap_socket(sock, server_hostname=host) if tls else sock

    def head(self, method, path, *fields):
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.token}", *fields, "", ""]).encode()

    def metric(self, name):
        text = self.call("GET", "/metrics", token=None).body.decode()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name + " ")))

    def connections(self):
        return self.metric("motley_api_connections")


def certificate(folder):
    """Makes a self-signed certificate for both addresses."""
    key, cert = os.path.join(folder, "server.key"), os.path.join(folder, "server.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                    "-out", cert, "-days", "2", "-subj", "/CN=server:test", "-addext",
                    "subjectAltName=IP:127.0.0.1,URI:server:test"], check=True, capture_output=True, timeout=30)
    return {"cert": cert, "key": key, "ca": cert}
