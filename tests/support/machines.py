"""Two network namespaces as two machines, with an Ethernet between them."""
import contextlib
import ctypes
import os
import shutil
import subprocess

ADDRESSES = ("10.213.77.1", "10.213.77.2")
NEW_NETWORK = 0x40000000  # CLONE_NEWNET


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def unavailable():
    """Why there can be no such machines here, or None."""
    name = f"mt{os.getpid() % 10000}x"
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return "network namespaces need root, ip and tc"
    done = ip("netns", "add", name, check=False)
    if done.returncode != 0:
        return f"network namespaces are not allowed here: {done.stderr.strip()}"
    ip("netns", "del", name, check=False)
    return None


class Machines:
    """`with Machines(hosts) as machines:` the calling thread, its later threads and its programs are on the first machine; words
    behind machines.on(1) run on the second. `hosts` maps a name to one of ADDRESSES; programs behind on() can resolve it."""

    def __init__(self, hosts=None, rate="1gbit"):
        self.names = [f"mt{os.getpid() % 10000}{end}" for end in "ab"]
        self.hosts, self.rate = hosts or {}, rate

    def on(self, machine):
        return ["ip", "netns", "exec", self.names[machine]]

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "eth0", "netns", self.names[0], "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
        for name, address in zip(self.names, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", self.rate,
                            "burst", "256kb", "latency", "50ms"], check=True, capture_output=True)
            if self.hosts:  # `ip netns exec` lays it over /etc/hosts
                os.makedirs(f"/etc/netns/{name}")
                with open(f"/etc/netns/{name}/hosts", "w", encoding="utf-8") as handle:
                    handle.writelines(f"{to} {called}\n" for called, to in {"localhost": "127.0.0.1", **self.hosts}.items())

    def firewall(self, machine, *ports):
        """Lets in what the machine's own connections are answered, and new connections to these ports alone."""
        rules = [f"add rule inet motley in {rule}" for rule in
                 ("ct state established,related accept", "iif lo accept", "meta l4proto != tcp accept",
                  *(f"tcp dport {port} accept" for port in ports), "drop")]
        text = "\n".join(["add table inet motley", "delete table inet motley", "add table inet motley",
                          "add chain inet motley in { type filter hook input priority 0; }", *rules])
        subprocess.run([*self.on(machine), "nft", "-f", "-"], input=text, text=True, check=True, capture_output=True)

    def move(self, handle):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def __enter__(self):
        self.here = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            self.make()
            first = os.open(f"/var/run/netns/{self.names[0]}", os.O_RDONLY)
            self.move(first)
            os.close(first)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.move(self.here)
        os.close(self.here)
        for name in self.names:
            ip("netns", "del", name, check=False)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's
            os.rmdir("/etc/netns")


class Homes(Machines):
    """The same with a server on the internet, where the calling thread is, and two homes, whose machines are on(1) and on(2). Each has a
    router that translates addresses and lets nothing in, and a line of `rate` whose packets hold at most `packet_bytes`; larger ones
    are lost, and no ICMP says so."""
    SERVER, HOMES = "10.213.77.1", ("10.213.77.11", "10.213.77.12")

    def __init__(self, rate="50mbit", packet_bytes=1280):
        super().__init__(rate=rate)
        self.names = [f"mt{os.getpid() % 10000}{end}" for end in ("s", "a", "b", "ra", "rb")]
        self.packet_bytes = packet_bytes

    def home(self, server, machine, router, address):
        line = f"line{address[-1]}"
        ip("link", "add", line, "netns", server, "type", "veth", "peer", "name", "out", "netns", router)
        ip("link", "add", "in", "netns", router, "type", "veth", "peer", "name", "eth0", "netns", machine)
        for name, device, to in ((router, "out", f"{address}/24"), (router, "in", "192.168.1.1/24"), (machine, "eth0", "192.168.1.2/24")):
            ip("-n", name, "addr", "add", to, "dev", device)
            ip("-n", name, "link", "set", device, "up")
        ip("-n", server, "link", "set", line, "master", "internet", "up")
        ip("-n", router, "link", "set", "out", "mtu", str(self.packet_bytes))
        ip("-n", machine, "route", "add", "default", "via", "192.168.1.1")
        for name, device in ((server, line), (router, "out")):
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate,
                            "burst", "64kb", "latency", "50ms"], check=True, capture_output=True)
        text = """add table ip motley
            add chain ip motley from { type nat hook postrouting priority 100; }
            add rule ip motley from oifname out masquerade
            add chain ip motley in { type filter hook forward priority 0; }
            add rule ip motley in iifname out ct state new drop
            add chain ip motley own { type filter hook output priority 0; }
            add rule ip motley own meta l4proto icmp drop\n"""
        subprocess.run(["ip", "netns", "exec", router, "sh", "-c", "sysctl -q -w net.ipv4.ip_forward=1 && nft -f -"], input=text, text=True,
                       check=True, capture_output=True)

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        server = self.names[0]
        ip("-n", server, "link", "add", "internet", "type", "bridge")
        ip("-n", server, "addr", "add", f"{self.SERVER}/24", "dev", "internet")
        ip("-n", server, "link", "set", "internet", "up")
        for machine, router, address in zip(self.names[1:3], self.names[3:], self.HOMES):
            self.home(server, machine, router, address)
