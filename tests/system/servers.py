"""A lab of several servers, as docs/run-a-lab/several-servers.md has it: PostgreSQL over TLS with a standby, two Redis, a signer,
two apis on one folder of files, two schedulers, and agents. Nothing of it is started by `motley up`."""
import contextlib
import json
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time

from motley import BIN, SLOW, SOURCE, Motley, expect

sys.path.insert(0, os.path.join(SOURCE, "tests", "api"))
from api import pg_program, wait_for  # noqa: E402,F401
from ports import free_port  # noqa: E402,F401

PASSWORD = "correct-horse"
PACED = {"kind": "paced", "memory": "450MiB", "pace": {"flops": 3e9, "flops_16": 3e9, "bytes_per_s": 1e10}}  # two_paced


def openssl(*words):
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=30, check=False)
    expect(done.returncode == 0, f"openssl {words}: {done.stderr}")
    return done.stdout


def page_block(text):
    """The block of docs/run-a-lab/several-servers.md that contains this text."""
    with open(os.path.join(SOURCE, "docs", "run-a-lab", "several-servers.md"), encoding="utf-8") as handle:
        found = [block for block in re.findall(r"^```[^\n]*\n(.*?)^```$", handle.read(), re.M | re.S) if text in block]
    expect(len(found) == 1, f"{len(found)} blocks of the page have {text}")
    return found[0]


class Authority:
    """A CA in a folder, and what it signs."""

    def __init__(self, folder, name):
        self.cert, self.key = os.path.join(folder, f"{name}.crt"), os.path.join(folder, f"{name}.key")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key, "-out", self.cert,
                "-days", "30", "-subj", f"/CN={name}")

    def server(self, stem, name, more=""):
        """stem.crt and stem.key, for 127.0.0.1 and localhost."""
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{stem}.key", "-out", f"{stem}.csr",
                "-subj", f"/CN={name}")
        with open(f"{stem}.ext", "w", encoding="utf-8") as handle:
            handle.write(f"subjectAltName={more}DNS:localhost,IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", f"{stem}.csr", "-CA", self.cert, "-CAkey", self.key, "-days", "30", "-extfile", f"{stem}.ext",
                "-out", f"{stem}.crt")
        return f"{stem}.crt", f"{stem}.key"


class Postgres:
    """A server that others reach by TLS and a password alone."""

    def __init__(self, lab, name, port, primary=None):
        self.lab, self.port, self.process = lab, port, None
        self.user = pwd.getpwuid(os.stat(primary.folder).st_uid).pw_name if primary and os.geteuid() == 0 else None
        self.folder, self.log = lab.path(name), lab.path(f"{name}.log")
        os.mkdir(self.folder, 0o755)
        self.data = os.path.join(self.folder, "data")
        if primary:
            shutil.chown(self.folder, self.user or os.geteuid())
            self.tool("pg_basebackup", "-D", self.data, "-R", "-c", "fast", "-X", "stream",
                      "-d", f"host={primary.folder} port={primary.port} user=motley application_name=standby")
        else:
            made = subprocess.run([os.path.join(SOURCE, "tests", "support", "postgres.sh"), self.data], capture_output=True, text=True,
                                  timeout=120, check=False, env={"MOTLEY_BUILD": os.path.dirname(BIN), **os.environ})
            expect(made.returncode == 0, f"initdb: {made.stderr[-1000:]}")
            owner = pwd.getpwuid(os.stat(self.data).st_uid)
            self.user = owner.pw_name if os.geteuid() == 0 else None
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self.secure()
        self.start()

    def secure(self):
        cert, key = self.lab.db_ca.server(os.path.join(self.folder, "tls"), "postgres")
        for path in (cert, key):
            shutil.copy(path, self.data)
        for name, mode in (("tls.crt", 0o644), ("tls.key", 0o600)):
            shutil.chown(os.path.join(self.data, name), self.user or os.geteuid())
            os.chmod(os.path.join(self.data, name), mode)
        with open(os.path.join(self.data, "postgresql.conf"), "a", encoding="utf-8") as handle:
            handle.write("ssl = on\nssl_cert_file = 'tls.crt'\nssl_key_file = 'tls.key'\nlisten_addresses = '127.0.0.1'\n"
                         "wal_keep_size = 64\nwal_receiver_status_interval = 1\n")
        with open(os.path.join(self.data, "pg_hba.conf"), "w", encoding="utf-8") as handle:
            handle.write("local all all trust\nlocal replication all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")

    def tool(self, program, *words):
        done = subprocess.run([pg_program(program), *words], capture_output=True, text=True, timeout=60, check=False, user=self.user, cwd="/")
        expect(done.returncode == 0, f"{program}: {done.stderr}")
        return done.stdout

    def type(self, text):
        """A block of the page, by the owner of the database."""
        folder = os.path.dirname(pg_program("postgres"))
        done = subprocess.run(["bash", "-euc", text.replace("/var/lib/postgresql/15/main", self.data)], capture_output=True, text=True,
                              timeout=60, check=False, user=self.user, cwd="/",
                              env={"PATH": f"{folder}:/usr/bin:/bin", "PGHOST": self.folder, "PGPORT": str(self.port), "PGUSER": "motley"})
        expect(done.returncode == 0, f"{text}: {done.stderr}")

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([pg_program("postgres"), "-D", self.data, "-k", self.folder, "-p", str(self.port)], stdout=log,
                                            stderr=log, user=self.user, cwd="/", start_new_session=True)
        wait_for(lambda: subprocess.run([pg_program("pg_isready"), "-q", "-h", self.folder, "-p", str(self.port)], check=False).returncode == 0,
                 "PostgreSQL", 30 * SLOW)

    def kill(self):
        """As when its machine dies: no process of it says goodbye."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)
            self.process = None

    def sql(self, text):
        return self.tool("psql", "-v", "ON_ERROR_STOP=1", "-X", "-q", "-A", "-t", "-h", self.folder, "-p", str(self.port), "-U", "motley",
                         "-d", "postgres", "-c", text).strip()


class Service:
    def __init__(self, lab, name, *words, stdin=None):
        self.lab, self.name, self.words, self.stdin, self.process = lab, name, words, stdin, None
        lab.services.append(self)

    def start(self):
        with open(self.lab.path(f"{self.name}.log"), "ab") as log:
            self.process = subprocess.Popen([self.words[0] if os.sep in self.words[0] else Motley.program(self.words[0]), *self.words[1:]],
                                            stdout=log, stderr=log, stdin=subprocess.PIPE if self.stdin else subprocess.DEVNULL)
            if self.stdin:
                self.process.stdin.write(self.stdin.encode())
                self.process.stdin.close()
                self.stdin = None
        return self

    def stop(self, how=signal.SIGTERM):
        if self.process:
            self.process.send_signal(how)
            self.process.wait(30 * SLOW)
            self.process = None

    def kill(self):
        self.stop(signal.SIGKILL)

    def log(self):
        with open(self.lab.path(f"{self.name}.log"), encoding="utf-8", errors="replace") as handle:
            return handle.read()


class Redis(Service):
    def __init__(self, lab, name, password):
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        cert, key = lab.redis_files
        os.mkdir(lab.path(name))
        lab.write(f"{name}.conf", f"""port 0
tls-port {self.port}
bind 127.0.0.1
dir {lab.path(name)}
save ""
tls-cert-file {cert}
tls-key-file {key}
tls-ca-cert-file {lab.ca.cert}
tls-auth-clients yes
tls-protocols "TLSv1.3"
maxmemory 1200mb
maxmemory-policy noeviction
user default off
user admin on >{password} ~* &* +@all
""")
        super().__init__(lab, name, shutil.which("redis-server"), lab.path(f"{name}.conf"))

    def cli(self, *words):
        cert, key = self.lab.server_files
        done = subprocess.run(["redis-cli", "-p", str(self.port), "--tls", "--cacert", self.lab.ca.cert, "--cert", cert, "--key", key,
                               "--user", "admin", "--pass", PASSWORD, "--no-auth-warning", *words], capture_output=True, text=True,
                              timeout=30, check=False)
        return done.stdout.strip()


class Lab(Motley):
    """The whole of it. `conninfo` may be changed before `serve`; the client speaks with the first api."""

    def __init__(self, agents=("left", "right"), device=None, lifetime="30d"):
        super().__init__({})
        self.lifetime = lifetime
        self.services, self.databases, self.agents = [], [], {}
        self.names = agents
        self.device = device or {"kind": "cpu", "threads": 1, "memory": "450MiB", "isa": "avx2"}
        os.mkdir(self.home)
        os.mkdir(self.path("blobs"))
        self.ca, self.db_ca = Authority(self.base, "ca"), Authority(self.base, "db-ca")
        self.server_files = self.ca.server(self.path("server"), "server", "URI:motley:server:lab,")
        self.redis_files = self.ca.server(self.path("redis"), "redis", "URI:motley:server:redis,")
        self.token = secrets.token_hex(32)

    def up(self):
        first = Postgres(self, "pg1", free_port())
        self.databases.append(first)
        first.sql(f"ALTER USER motley PASSWORD '{PASSWORD}'")
        self.redis = [Redis(self, f"redis{i}", PASSWORD) for i in (1, 2)]
        for redis in self.redis:
            redis.start()
        self.configure()
        self.start_services()

    def add_standby(self):
        """Of the database that was started last, where `conninfo` has the other one."""
        primary = self.databases[-1]
        other = self.ports[1] if primary.port == self.ports[0] else self.ports[0]
        self.databases.append(Postgres(self, f"pg{len(self.databases) + 1}", other, primary))
        return self.databases[-1]

    def conninfo(self):
        """The page's, with this lab's addresses."""
        text = re.search(r'^postgres: "(.*?)"$', page_block("target_session_attrs"), re.M | re.S).group(1)
        for name, value in {"db1.lab,db2.lab": "127.0.0.1,127.0.0.1", "5432,5432": ",".join(map(str, self.ports)), "SECRET": PASSWORD,
                            "dbname=motley": "dbname=postgres", "/etc/motley/db-ca.crt": self.db_ca.cert}.items():
            expect(name in text, f"the page's postgres has no {name}: {text}")
            text = text.replace(name, value)
        return text

    def configure_apis(self, redis):
        cert, key = self.server_files
        for i in (1, 2):
            self.write(f"api-{i}.yaml", {
                "listen": f"127.0.0.1:{self.api_ports[i - 1]}", "address_file": self.path(f"api-{i}.address"), "postgres": self.conninfo(),
                "redis": {"address": redis, "tls": True}, "blobs": self.path("blobs"),
                "ca": {"cert": self.ca.cert, "signer": self.path("signer.sock")}, "tls": {"cert": cert, "key": key, "ca": self.ca.cert}})

    def configure(self):
        self.ports = [self.databases[0].port, free_port()]
        cert, key = self.server_files
        addresses = ",".join(redis.address for redis in self.redis)
        self.api_ports = [free_port(), free_port()]
        self.configure_apis(addresses)
        for i in (1, 2):
            self.write(f"scheduler-{i}.yaml", {
                "name": f"scheduler-{i}", "postgres": self.conninfo(), "leader_file": self.path(f"scheduler-{i}.leader"),
                "redis": {**self.page_redis(), "address": addresses, "password": PASSWORD,
                          "tls": {"ca": self.ca.cert, "cert": cert, "key": key}}})
        self.write(os.path.join(self.home, "client.json"), {"address": self.url(0), "token": self.token, "ca": self.ca.cert})
        os.chmod(os.path.join(self.home, "client.json"), 0o600)
        self.write("admin-token", self.token + "\n")

    def page_redis(self):
        """What the page says of Redis, of which addresses, password and files are this lab's."""
        text = page_block("redis1.lab").replace("\n", " ")
        found = re.fullmatch(r'redis: \{address: "redis1.lab:6380,redis2.lab:6380", user: (\w+), password: SECRET,\s+'
                             r'tls: \{ca: \S+, cert: \S+, key: \S+\}\} *', text)
        expect(found, text)
        return {"user": found.group(1)}

    def url(self, i):
        return f"https://127.0.0.1:{self.api_ports[i]}"

    def start_services(self):
        self.signer = Service(self, "signer", "motley-signer", "--ca", self.ca.cert, "--key", self.ca.key, "--socket",
                              self.path("signer.sock"), "--lifetime", self.lifetime).start()
        done = subprocess.run([self.program("motley-api"), "--config", self.path("api-1.yaml"), "--migrate", "--admin-token-file",
                               self.path("admin-token")], capture_output=True, text=True, timeout=60, check=False)
        expect(done.returncode == 0, f"--migrate: {done.stderr}")
        self.apis = [Service(self, f"api-{i}", "motley-api", "--config", self.path(f"api-{i}.yaml")).start() for i in (1, 2)]
        self.schedulers = [Service(self, f"scheduler-{i}", "motley-scheduler", "--config", self.path(f"scheduler-{i}.yaml")).start()
                           for i in (1, 2)]
        for i in (1, 2):
            wait_for(lambda i=i: os.path.exists(self.path(f"api-{i}.address")), f"api {i}", 30 * SLOW)
        for name in self.names:
            self.join(name)
        self.await_agents()

    def join(self, name, api=0):
        token = self.run("join-token", "--node", name, parse=True)["token"]
        self.write(f"{name}.yaml", {"name": name, "devices": self.device if isinstance(self.device, list) else [self.device], "address": "127.0.0.1", "grace": 5, "private": self.base})
        self.agents[name] = Service(self, f"agent-{name}", "motley-agent", "--api", self.url(api), "--home", self.path(name), "--config",
                                    self.path(f"{name}.yaml"), "--join-file", "/dev/stdin", stdin=token).start()

    def alive(self):
        return [node["name"] for node in self.run("nodes", parse=True)["nodes"] if node["state"] == "alive"]

    def await_agents(self):
        wait_for(lambda: sorted(self.alive()) == sorted(self.names), "all agents are alive", 60 * SLOW)

    def __exit__(self, kind, value, trace):
        if kind is not None and getattr(value, "code", 1) != 0:
            for name in sorted(name for name in os.listdir(self.base) if name.endswith(".log")):
                with open(self.path(name), "rb") as handle:
                    handle.seek(max(0, os.path.getsize(self.path(name)) - 4000))
                    print(f"--- {name}\n{handle.read().decode(errors='replace')}")
        for service in reversed(self.services):
            with contextlib.suppress(Exception):
                service.stop()
        for database in self.databases:
            with contextlib.suppress(Exception):
                database.stop()
        left = self.processes_left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while self.processes_left() and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.base, ignore_errors=True)

    def sql(self, text):
        return self.databases[-1].sql(text)

    def document(self, *words):
        """The JSON document of a client command, or None where it failed."""
        done = subprocess.run([self.program("motley"), *words, "--home", self.home, "--json"], capture_output=True, text=True,
                              timeout=60 * SLOW, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None
