"""A server that behaves as the Hugging Face Hub does, on loopback, as far as clients fetch from it.

Its API tells a repository's files with their hashes; resolve/ answers small files by a redirect within the server and large ones
(LFS) by one to another host, with X-Repo-Commit, X-Linked-Etag and X-Linked-Size; ranges, private and gated repositories, renames,
X-Error-Code, and whatever faults a test asks for.
"""
import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LFS_ENDS = (".safetensors", ".gguf", ".bin", ".parquet")
TOKEN = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class File:
    def __init__(self, path, data):
        self.path, self.data, self.lfs = path, data, path.endswith(LFS_ENDS)
        self.sha256 = hashlib.sha256(data).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(data)}\n".encode()
        self.oid = git_blob(pointer if self.lfs else data)
        self.pointer = len(pointer)
        self.etag = self.sha256 if self.lfs else self.oid


class Repository:
    """`revisions` names commits; `files` are those of a commit."""

    def __init__(self, files, private=False, gated=False):
        self.commits, self.revisions = {}, {}
        self.private, self.gated = private, gated
        self.push(files)

    def push(self, files, revision="main"):
        commit = hashlib.sha1(repr(sorted((k, hashlib.sha1(v).hexdigest()) for k, v in files.items())).encode()).hexdigest()
        self.commits[commit] = {path: File(path, data) for path, data in files.items()}
        self.revisions[revision] = commit
        return commit

    def commit(self, revision):
        return revision if revision in self.commits else self.revisions.get(revision)


class Hub:
    """`with Hub() as hub:` serves `hub.repositories` ({"OWNER/NAME" or "datasets/OWNER/NAME": Repository}) at hub.url."""

    def __init__(self):
        self.repositories, self.renamed = {}, {}
        self.asked = []  # (method, path, headers) of every request
        self.cut = {}  # path's end -> how many bytes of an answer's body are sent before the connection breaks, once
        self.answers = []  # (status, headers) of the next requests, before anything else is looked at
        self.spoil = set()  # ends of the paths whose bytes are changed on the way
        self.ranges = True
        self.sizes = {}  # path's end -> the size that the list tells, whatever the file has
        self.stalls = {}  # path's end -> (bytes of the body that are sent, threading.Event for which the rest waits)
        self.redirects = {"large": 302, "small": 307, "renamed": 307}  # the status of each kind
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET

        class Server(ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                pass  # a client that was stopped

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.files_at = f"http://localhost:{self.port}"  # where large files are: another host

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def paths(self):
        return [path for _, path, _ in self.asked]

    # ---- answers

    def send(self, request, status, body=b"", headers=(), file=None):
        request.send_response(status)
        for name, value in headers:
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "HEAD":
            return
        cut = next((end for end in self.cut if file and file.path.endswith(end)), None)
        stall = next((self.stalls[end] for end in self.stalls if file and file.path.endswith(end)), None)
        if stall:
            request.wfile.write(body[:stall[0]])
            stall[1].wait(60)
            body = body[stall[0]:]
        if cut:
            request.wfile.write(body[:self.cut.pop(cut)])
            request.close_connection = True
        else:
            request.wfile.write(body)

    def refuse(self, request, status, code, text):
        headers = [("X-Error-Code", code)] if code else []
        self.send(request, status, json.dumps({"error": text}).encode(), headers + [("X-Error-Message", text)])

    def send_file(self, request, file, headers):
        data = bytes([file.data[0] ^ 1]) + file.data[1:] if any(file.path.endswith(end) for end in self.spoil) else file.data
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if not span or not self.ranges:
            self.send(request, 200, data, headers, file)
            return
        begin, end = int(span[1]), min(int(span[2] or len(data)) + 1, len(data))
        if begin >= len(data):
            self.send(request, 416, b"", [("Content-Range", f"bytes */{len(data)}")])
            return
        self.send(request, 206, data[begin:end], [*headers, ("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")], file)

    def found(self, request, name):
        """The repository of a name, if the one who asks may see it; else the refusal was sent."""
        said = request.headers.get("Authorization")
        if said and said != f"Bearer {TOKEN}":
            self.refuse(request, 401, None, "Invalid credentials in Authorization header")
            return None
        repository = self.repositories.get(name)
        if repository and (said or not repository.private):
            return repository
        self.refuse(request, 404 if said else 401, "RepoNotFound", "Repository not found" if said else "Invalid username or password.")
        return None

    def answer(self, request):
        self.asked.append((request.command, request.path, request.headers))
        if self.answers:
            status, headers = self.answers.pop(0)
            self.send(request, status, b"", headers)
            return
        path = urllib.parse.urlsplit(request.path).path
        stored = re.fullmatch(r"/(?:cdn|api/resolve-cache)/([0-9a-f]+)/([0-9a-f]+)", path)
        if stored:
            file = next(f for r in self.repositories.values() for f in r.commits.get(stored[1], {}).values() if f.etag == stored[2])
            self.send_file(request, file, [("ETag", f'"{file.etag}"'), *([("X-Repo-Commit", stored[1])] if "/api/" in path else [])])
            return
        for old, new in self.renamed.items():
            if re.match(rf"(/api/models)?/{old}/", path + "/"):
                self.send(request, self.redirects["renamed"], b"", [("Location", request.path.replace(old, new, 1))])
                return
        api = re.fullmatch(r"/api/(models|datasets)/(.+?)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        if api:
            kind = "datasets/" if api[1] == "datasets" else ""
            self.tell(request, kind + api[2], urllib.parse.unquote(api[4] or "main"), api[3] == "tree")
        elif file:
            self.resolve(request, file[1], urllib.parse.unquote(file[2]), urllib.parse.unquote(file[3]))
        else:
            self.refuse(request, 404, None, "Not Found")

    def size(self, file):
        return next((size for end, size in self.sizes.items() if file.path.endswith(end)), len(file.data))

    def tell(self, request, name, revision, tree):
        repository = self.found(request, name)
        if not repository:
            return
        commit = repository.commit(revision)
        if not commit:
            self.refuse(request, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        files = sorted(repository.commits[commit].values(), key=lambda f: f.path)
        if tree:
            lines = [{"type": "file", "oid": f.oid, "size": len(f.data), "path": f.path,
                      **({"lfs": {"oid": f.sha256, "size": len(f.data), "pointerSize": f.pointer}} if f.lfs else {})} for f in files]
        else:
            lines = {"_id": "0" * 24, "id": name.removeprefix("datasets/"), "modelId": name, "sha": commit, "private": repository.private,
                     "gated": "manual" if repository.gated else False, "disabled": False, "tags": [], "downloads": 0, "likes": 0,
                     "siblings": [{"rfilename": f.path, "size": self.size(f), "blobId": f.oid,
                                   **({"lfs": {"sha256": f.sha256, "size": self.size(f), "pointerSize": f.pointer}} if f.lfs else {})}
                                  for f in files]}
        self.send(request, 200, json.dumps(lines).encode(), [("Content-Type", "application/json")])

    def resolve(self, request, name, revision, path):
        repository = self.found(request, name)
        if not repository:
            return
        if repository.gated:
            if request.headers.get("Authorization"):
                self.refuse(request, 403, "GatedRepo", f"Access to model {name} is restricted and you are not in the authorized list.")
            else:
                self.refuse(request, 401, "GatedRepo", f"Access to model {name} is restricted. You must have access to it and be authenticated.")
            return
        commit = repository.commit(revision)
        file = commit and repository.commits[commit].get(path)
        if not file:
            self.refuse(request, 404, "EntryNotFound" if commit else "RevisionNotFound", "Entry not found" if commit else "Invalid rev id")
            return
        headers = [("X-Repo-Commit", commit), ("X-Linked-Etag", f'"{file.etag}"'), ("X-Linked-Size", str(len(file.data))),
                   ("Location", f"{self.files_at}/cdn/{commit}/{file.etag}" if file.lfs else f"/api/resolve-cache/{commit}/{file.etag}")]
        self.send(request, self.redirects["large" if file.lfs else "small"], b"", [*headers, ("ETag", f'"{file.etag}"')])
