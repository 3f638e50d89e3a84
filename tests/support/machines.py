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
