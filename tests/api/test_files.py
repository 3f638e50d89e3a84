#!/usr/bin/env python3
"""Tests that uploads are whole and verified or absent, that downloads serve ranges, and that a full disk leaves nothing behind."""
import hashlib
import os
import random
import subprocess
import threading
import time

from api import Api, expect, main, spec, token_rows, wait_for

MIB = 1 << 20


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def kept(folder):
    """Returns the names of files under the blob folder: (visible, temporary)."""
    temporary = os.listdir(os.path.join(folder, "tmp"))
    visible = [name for sub in os.listdir(folder) if len(sub) == 2 for name in os.listdir(os.path.join(folder, sub))]
    return visible, temporary


def what_was_uploaded_comes_back_by_any_range():
    data = noise(9 * MIB + 12345)
    sha256 = api.upload(data)
    path = f"/v1/blobs/{sha256}"
    whole = api.call("GET", path)
    expect(whole.status == 200 and whole.body == data and whole.headers["accept-ranges"] == "bytes", "whole")
    for header, begin, end in (("bytes=0-0", 0, 1), ("bytes=5-", 5, len(data)), ("bytes=-7", len(data) - 7, len(data)),
                               (f"bytes={4 * MIB}-{8 * MIB - 1}", 4 * MIB, 8 * MIB),
                               (f"bytes=9000000-{len(data) + 99}", 9000000, len(data)),
                               (f"bytes=0-{len(data) - 1}", 0, len(data))):
        part = api.call("GET", path, headers={"Range": header})
        expect(part.status == 206 and part.body == data[begin:end], f"{header}: {part.status}, {len(part.body)} bytes")
        expect(part.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(data)}", part.headers["content-range"])
    api.refused(416, "GET", path, None, str(len(data)), headers={"Range": f"bytes={len(data)}-"})
    expect(api.call("GET", path, headers={"Range": "bytes=1-2,4-5"}).status == 200, "several ranges")
    expect(api.call("GET", path, headers={"If-None-Match": whole.headers["etag"]}).status == 304, "ETag")
    head = api.call("HEAD", path)
    expect(head.status == 200 and head.headers["content-length"] == str(len(data)), "HEAD")
    expect(api.call("HEAD", "/v1/blobs/" + "0" * 64).status == 404, "HEAD of nothing")
    expect(api.call("GET", "/v1/blobs/" + api.upload(b"")).body == b"", "an empty file")


def the_manifest_holds_every_chunks_hash():
    data = noise(9 * MIB, 2)
    manifest = api.good("GET", f"/v1/blobs/{api.upload(data)}/manifest")
    chunks = [hashlib.sha256(data[i:i + 4 * MIB]).hexdigest() for i in range(0, len(data), 4 * MIB)]
    expect(manifest["chunks"] == chunks and manifest["size"] == len(data) and manifest["chunk_bytes"] == 4 * MIB, "chunks")


def an_upload_that_hashes_otherwise_is_not_kept():
    before = kept(api.config["blobs"])
    api.refused(422, "PUT", "/v1/blobs/" + "a" * 64, noise(3 * MIB, 3), "a" * 64)
    expect(kept(api.config["blobs"]) == before, "something was left behind")
    api.refused(404, "GET", "/v1/blobs/" + "a" * 64)
    api.refused(400, "PUT", "/v1/blobs/XYZ", b"x", "hex")
    api.refused(400, "PUT", "/v1/blobs/..%2F..%2Fetc%2Fpasswd", b"x", "hex")


def an_upload_cut_short_is_not_kept():
    data = noise(5 * MIB, 4)
    sha256 = hashlib.sha256(data).hexdigest()
    before = kept(api.config["blobs"])
    connection = api.connection()
    connection.putrequest("PUT", f"/v1/blobs/{sha256}")
    connection.putheader("Authorization", f"Bearer {api.token}")
    connection.putheader("Content-Length", str(len(data)))
    connection.endheaders()
    connection.send(data[:4 * MIB])
    wait_for(lambda: kept(api.config["blobs"])[1] != before[1], "the upload's temporary file")
    connection.close()
    wait_for(lambda: kept(api.config["blobs"]) == before, "the temporary file is removed")
    api.refused(404, "GET", f"/v1/blobs/{sha256}")
    expect(api.upload(data) == sha256, "and it can be sent again")


def an_upload_without_a_length_or_in_chunks():
    out = api.raw(f"PUT /v1/blobs/{'b' * 64} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\nConnection: close\r\n\r\n".encode())
    expect(out.startswith(b"HTTP/1.1 411 "), out[:80])
    data = noise(2 * MIB + 1, 5)
    sha256 = hashlib.sha256(data).hexdigest()
    connection = api.connection()
    connection.request("PUT", f"/v1/blobs/{sha256}", body=(data[i:i + 10007] for i in range(0, len(data), 10007)),
                       headers={"Authorization": f"Bearer {api.token}"}, encode_chunked=True)
    expect(connection.getresponse().status == 201, "chunks")
    expect(api.call("GET", f"/v1/blobs/{sha256}").body == data, "chunks come back")


def cut_after(path, data, count):
    """Sends the head and `count` bytes of the body, then cuts the connection."""
    connection = api.connection()
    connection.putrequest("PUT", path)
    connection.putheader("Authorization", f"Bearer {api.token}")
    connection.putheader("Content-Length", str(len(data)))
    connection.endheaders()
    connection.send(data[:count])
    connection.close()


def an_upload_in_parts_goes_on_where_it_was_cut():
    data = noise(5 * MIB + 7, 30)
    size, sha256 = len(data), hashlib.sha256(data).hexdigest()
    other = api.token_for("parts", ["models:write", "models:read"])

    def part(offset, body, **keywords):
        return api.call("PUT", f"/v1/blobs/{sha256}?offset={offset}&size={size}", body, **keywords)

    first = part(0, data[:MIB])
    expect(first.status == 202 and first.json == {"sha256": sha256, "size": size, "received": MIB, "busy": False}, f"{first.status} {first.body}")

    def cut_on_the_way():
        """If the connection ends before the server has looked up its token, nothing is kept; then it is tried again."""
        cut_after(f"/v1/blobs/{sha256}?offset={MIB}&size={size}", data[MIB:], 2 * MIB + 5)
        time.sleep(0.1)
        return part(0, b"").json["received"] > MIB
    wait_for(cut_on_the_way, "what arrived is kept")
    received = wait_for(lambda: (lambda n: n == part(0, b"").json["received"] and n)(part(0, b"").json["received"]), "it settles")
    expect(received <= 3 * MIB + 5, f"{received} of {3 * MIB + 5} sent")
    elsewhere = part(received + 1, b"x")
    expect(elsewhere.status == 202 and elsewhere.json["received"] == received, "a part that begins elsewhere is not kept")
    expect(part(0, b"", token=other).json["received"] == 0, "another owner's parts are his own")
    api.refused(400, "PUT", f"/v1/blobs/{sha256}?offset=0", b"x", "size")
    api.refused(400, "PUT", f"/v1/blobs/{sha256}?offset={size}&size={size}", b"x", "within the file")
    api.refused(404, "GET", f"/v1/blobs/{sha256}")
    last = part(received, data[received:])
    expect(last.status == 201 and last.json == {"sha256": sha256, "size": size}, f"{last.status} {last.body}")
    expect(api.call("GET", f"/v1/blobs/{sha256}").body == data, "it comes back")
    expect(part(0, b"").status == 200, "and is known from now on")
    manifest = api.good("GET", f"/v1/blobs/{sha256}/manifest")
    expect(manifest["chunks"] == [hashlib.sha256(data[i:i + 4 * MIB]).hexdigest() for i in range(0, size, 4 * MIB)], "its chunks")
    wrong = "c" * 64
    expect(api.call("PUT", f"/v1/blobs/{wrong}?offset=0&size=9", b"12345").status == 202, "a part of another file")
    api.refused(422, "PUT", f"/v1/blobs/{wrong}?offset=5&size=9", b"6789", wrong)
    expect(api.call("PUT", f"/v1/blobs/{wrong}?offset=0&size=9", b"").json["received"] == 0, "parts that hash otherwise go")
    for name in kept(api.config["blobs"])[1]:
        os.unlink(os.path.join(api.config["blobs"], "tmp", name))


def the_same_file_from_many_at_once_is_kept_once():
    data = noise(3 * MIB, 6)
    sha256 = hashlib.sha256(data).hexdigest()
    statuses = []
    threads = [threading.Thread(target=lambda: statuses.append(api.call("PUT", f"/v1/blobs/{sha256}", data).status)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    expect(len(statuses) == 6 and set(statuses) <= {200, 201}, statuses)
    expect(kept(api.config["blobs"])[0].count(sha256) == 1 and not kept(api.config["blobs"])[1], "kept once")
    again = api.call("PUT", f"/v1/blobs/{sha256}", data)
    expect(again.status == 200 and again.json == {"sha256": sha256, "size": len(data)}, "again")


def an_agents_token_reaches_files_and_nothing_else():
    api.refused(422, "POST", "/v1/tokens", {"user": "x", "scopes": ["agent"]}, "agent")


def a_full_disk_answers_507_and_leaves_nothing():
    folder = api.path("small")
    os.mkdir(folder)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        print("SKIP a_full_disk_answers_507_and_leaves_nothing: no tmpfs can be mounted here")
        return
    try:
        with Api(blobs=folder) as small:
            data = noise(8 * MIB, 7)
            sha256 = hashlib.sha256(data).hexdigest()
            small.refused(507, "PUT", f"/v1/blobs/{sha256}", data, "no space left")  # the size is known before the upload begins
            connection = small.connection()
            try:
                connection.request("PUT", f"/v1/blobs/{sha256}", body=(data[i:i + 65536] for i in range(0, len(data), 65536)),
                                   headers={"Authorization": f"Bearer {small.token}"}, encode_chunked=True)
            except (BrokenPipeError, ConnectionResetError):
                pass
            answer = connection.getresponse()
            expect(answer.status == 507 and b"no space left" in answer.read(), f"found while writing: {answer.status}")
            expect(kept(folder) == ([], []), f"left behind: {kept(folder)}")
            small.refused(404, "GET", f"/v1/blobs/{sha256}")
            expect(small.call("GET", "/v1/blobs/" + small.upload(b"fits")).body == b"fits", "what fits is kept")
            small.tiny_model()
            rows = small.upload_rows(token_rows(2000))
            with open(os.path.join(folder, "ballast"), "wb") as handle:
                while True:
                    try:
                        os.write(handle.fileno(), bytes(4096))
                    except OSError:
                        break
            before = kept(folder)
            small.refused(507, "POST", "/v1/jobs", spec(rows), "no space left")
            expect(kept(folder) == before and not small.good("GET", "/v1/jobs")["jobs"], "no half job")
            os.unlink(os.path.join(folder, "ballast"))
            expect(small.good("POST", "/v1/jobs", spec(rows))["state"] == "queued", "with room again it goes")
    finally:
        subprocess.run(["umount", folder], check=False)


def what_nothing_refers_to_goes_and_the_rest_stays():
    with Api(unused_seconds=4) as swept:
        swept.tiny_model()
        rows = swept.upload_rows(token_rows(20))
        job = swept.good("POST", "/v1/jobs", spec(rows))["id"]
        encoded = swept.psql("SELECT blob FROM datasets").strip()
        model = swept.psql("SELECT f.value ->> 'sha256' FROM models, json_array_elements(files) f").split()
        files = [noise(1000, seed) for seed in range(20, 24)]
        artifact, kept_part, dropped_part, lone = (hashlib.sha256(data).hexdigest() for data in files)
        swept.psql(f"INSERT INTO artifacts (job, name, sha256, size) VALUES ({job}, 'a', '{artifact}', 1000)")
        swept.psql(f"INSERT INTO runs (id, job, attempt, epoch, state, plan) VALUES (1, {job}, 1, 1, 'done', '{{}}')")
        for step, part in ((5, dropped_part), (10, kept_part)):
            swept.psql("INSERT INTO checkpoints (job, step, run, parts, ranks, blobs, complete) VALUES "
                       f"({job}, {step}, 1, 1, '{{0}}', '{{\"state.json\": {{\"sha256\": \"{part}\", \"size\": 1000}}}}', true)")
        for data in files:  # after the rows that refer to them, because on a busy machine a second without a reference may pass
            swept.upload(data)
        swept.psql("DELETE FROM checkpoints WHERE step = 5")
        gone = {lone, dropped_part}
        wait_for(lambda: not gone & set(kept(swept.config["blobs"])[0]), "files nothing refers to are removed")
        looked = swept.psql("SELECT max(used_at) FROM blobs").strip()
        wait_for(lambda: swept.psql("SELECT max(used_at) FROM blobs").strip() > looked, "another look")
        there = set(kept(swept.config["blobs"])[0])
        expect({artifact, kept_part, encoded} | {sha for sha in model if sha in there} <= there, "something in use was removed")
        expect(all(swept.call("GET", f"/v1/blobs/{sha}").status == 200 for sha in (artifact, kept_part, encoded, *model)),
               "a file in use is not served")
        swept.refused(404, "GET", f"/v1/blobs/{dropped_part}")
        expect(swept.upload(noise(1000, 23)) == lone and swept.call("GET", f"/v1/blobs/{lone}").status == 200, "and can come again")


with Api() as api:
    main(what_was_uploaded_comes_back_by_any_range, the_manifest_holds_every_chunks_hash,
         an_upload_that_hashes_otherwise_is_not_kept, an_upload_cut_short_is_not_kept, an_upload_without_a_length_or_in_chunks,
         an_upload_in_parts_goes_on_where_it_was_cut,
         the_same_file_from_many_at_once_is_kept_once, an_agents_token_reaches_files_and_nothing_else,
         a_full_disk_answers_507_and_leaves_nothing, what_nothing_refers_to_goes_and_the_rest_stays)
