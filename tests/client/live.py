"""Run by test_client.py in a virtual environment that has the wheel, against a live service: argument 1 is a JSON file with
its home, a specification of a job that runs, and one's own folder. Every claim holds for what a user would import."""
import asyncio
import hashlib
import io
import json
import os
import pty
import re
import sys
import threading
import time
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import SLOW, Failed, expect, main  # noqa: E402
from proxy import Proxy  # noqa: E402

import motley  # noqa: E402
import motley.peft  # noqa: E402
from motley import models, progress  # noqa: E402
from motley.picture import Picture, ticks  # noqa: E402
from motley.streams import Parser  # noqa: E402

with open(sys.argv[1], encoding="utf-8") as handle:
    GIVEN = json.load(handle)
FOLDER = GIVEN["folder"]
SERVER = motley.Server.of_home(GIVEN["home"])
QUICK = motley.Retry(tries=12, pause=0.02, longest=0.2)


def path(name):
    return os.path.join(FOLDER, name)


def through(proxy):
    return motley.Server(f"http://127.0.0.1:{proxy.port}", SERVER.token)


def refusal(kind, ask):
    try:
        ask()
    except kind as error:
        return error
    except motley.MotleyError as error:
        raise Failed(f"{type(error).__name__}: {error}, not {kind.__name__}") from error
    raise Failed(f"no {kind.__name__}")


def unknown(document):
    """Members, at any depth, that the models do not list."""
    found = {f"{type(document).__name__}.{name}" for name in document.unknown}
    for value in vars(document).values():
        for one in value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]:
            if isinstance(one, models.Answered):
                found |= unknown(one)
    return found


def a_job_is_submitted_with_its_files_watched_in_a_terminal_and_done():
    ours, theirs = pty.openpty()
    shown = io.BytesIO()

    def read():
        try:
            while piece := os.read(ours, 65536):
                shown.write(piece)
        except OSError:
            pass
    reader = threading.Thread(target=read)
    reader.start()
    with motley.Client(SERVER) as client:
        job = client.submit(GIVEN["spec"], folder=FOLDER)
        with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
            progress.show(job.events(), job.get(), progress.Terminal(terminal))
        reader.join(30)
        os.close(ours)
        done = job.watch()
        expect(done.state == "succeeded" and done.step == done.steps == GIVEN["spec"]["train"]["steps"], done.raw)
        losses = job.losses()
        expect(len(losses) == done.steps and all(isinstance(loss, float) for loss in losses), losses)
        GIVEN["job"] = job.id
    text = shown.getvalue().decode()
    expect("\r\x1b[K" in text and f"step {done.steps}/{done.steps}" in text and "is running" in text and "█" in text, text[-2000:])
    expect(f"loss {losses[-1]:.4f}" in text and "held-out loss" in text, text[-2000:])
    return f"{done.steps} steps, {text.count(chr(13))} times drawn"


def a_model_is_named_as_on_the_hub():
    with motley.Client(SERVER) as client:
        job = client.submit({**GIVEN["spec"], "model": "Acme/Tiny-1@main", "hold": True}, folder=FOLDER)
        bad = client.submit({**GIVEN["spec"], "model": "hf:Acme/None"}, folder=FOLDER)
        while "Hub" in client.get_why(job.id).why or client.get_job(bad.id).state == "held":
            time.sleep(0.2)
        job = job.get()
        model = client.get_model(job.spec["model"])
        expect(model.name == "Tiny-1" and model.base.name == "Acme/Tiny-1" and len(model.base.revision) == 40, model.raw)
        expect("has no public model Acme/None" in client.get_job(bad.id).why, client.get_job(bad.id).why)
        client.cancel_job(job.id)


def models_list_every_member_that_the_service_sends():
    with motley.Client(SERVER) as client:
        job, asked = GIVEN["job"], []
        spec = client.get_job(job).spec
        asked += [client.get_job(job), client.get_why(job), client.get_job_plan(job), client.get_lanes(job), client.get_trace(job)]
        asked += [client.validate_job(spec), client.validate_job(spec, programs=1, inputs=1), client.ask_plan(spec=spec, brief=True)]
        asked += [client.get_usage(), client.get_shares(), client.get_records(), client.who_am_i(), client.get_ready()]
        asked += [client.get_load(device="left/cpu0").first(), client.get_queue().first()]
        for kind in ("all", "step", "eval", "sample", "ranks"):
            asked.append(client.list_metrics(job, kind=kind).first())
        asked.append(client.list_metrics(job, buckets=10).first())
        for listing in (client.list_jobs, client.list_models, client.list_nodes, client.list_links, client.list_leases, client.list_devices,
                        client.list_profiles, client.list_users, client.list_groups, client.list_arrivals, client.list_audit, client.list_tokens):
            asked.append(listing().first())
        for listing in (client.list_runs, client.list_logs, client.list_artifacts):
            asked.append(listing(job).first())
        asked.append(client.get_model(client.get_job(job).inputs.model))
        found = set().union(*map(unknown, asked))
        expect(not found, f"api/openapi.yaml does not list {sorted(found)}")
        expect("motley_jobs" in client.get_metrics() and "openapi: 3.1" in client.get_openapi(), "texts")
        return f"{len(asked)} answers"


def a_stream_that_is_cut_every_few_bytes_loses_and_repeats_nothing():
    with motley.Client(SERVER) as client:
        whole = [(e.id, e.type, e.data) for e in client.follow(GIVEN["job"])]
    expect(whole[-1][1] == "end" and len(whole) > 60 and len({e[0] for e in whole[:-1]}) == len(whole) - 1, f"{len(whole)} events")
    with Proxy(SERVER.address, cut_after=lambda n: 3000 + 777 * (n % 5)) as proxy:
        with motley.Client(through(proxy), retry=QUICK) as client:
            cut = [(e.id, e.type, e.data) for e in client.follow(GIVEN["job"])]
        sync_cuts = proxy.cuts

        async def follow():
            async with motley.AsyncClient(through(proxy), retry=QUICK) as client:
                return [(e.id, e.type, e.data) async for e in client.follow(GIVEN["job"])]
        again = asyncio.run(follow())
        expect(cut == whole, f"{len(cut)} events of {len(whole)} after {sync_cuts} cuts")
        expect(again == whole, f"{len(again)} events of {len(whole)}, awaited")
        expect(sync_cuts >= 3 and proxy.cuts >= sync_cuts + 3, f"{proxy.cuts} cuts")
        return f"{len(whole)} events, {proxy.cuts} cuts"


def a_stream_that_is_never_whole_ends_with_a_typed_error():
    with Proxy(SERVER.address, cut_after=lambda n: 150) as proxy, motley.Client(through(proxy), retry=motley.Retry(3, 0.01, 0.01)) as client:
        refusal(motley.Unreachable, lambda: list(client.follow(GIVEN["job"])))
        expect(proxy.cuts == 3, f"{proxy.cuts} tries")


def the_clusters_events_come_by_topic():
    with motley.Client(SERVER) as client:
        job = client.submit_job(dict(client.get_job(GIVEN["job"]).spec, name="held", hold=True))
        types, states, until = set(), [], time.monotonic() + 60 * SLOW
        for event in client.follow_cluster("queue", "devices", f"job:{job.id}", after=0):
            types.add(event.type)
            if event.type == "queue" and event.data["jobs"]["held"] and not states:
                states.append(client.cancel_job(job.id).state)
            if event.type == "state" and event.data["job"] == job.id:
                states.append(event.data["state"])
            if {"queue", "devices", "state"} <= types and len(states) == 2:
                break
            expect(time.monotonic() < until, f"{types} {states}")
        expect(states == ["cancelled", "cancelled"], states)


def a_post_whose_answer_is_lost_is_carried_out_once():
    with motley.Client(SERVER) as direct:
        spec = dict(direct.get_job(GIVEN["job"]).spec, hold=True)
        with Proxy(SERVER.address, lose_answers=lambda n: n % 2 == 0) as proxy:
            def once(ask):
                """Its first answer is lost, its second comes."""
                with motley.Client(through(proxy), retry=QUICK) as client:
                    return ask(client)
            job = once(lambda client: client.submit_job(dict(spec, name="once")))
            released = once(lambda client: client.release_jobs(ids=[job.id]))
            expect([one.id for one in released.jobs] == [job.id], released.raw)
            direct.cancel_job(job.id)
            expect([event.type for event in direct.follow(job.id)][-1] == "end", "it is over, and its devices are free")
            lease = once(lambda client: client.make_lease(device="left/cpu0", seconds=600))
            expect([one.id for one in direct.list_leases()] == [lease.id], "one lease")
            direct.end_lease(lease.id)
            refusal(motley.Conflict, lambda: once(lambda client: client.add_token(scopes=["jobs:read"], note="lost")))
            expect([one.note for one in direct.list_tokens()].count("lost") == 1, "a secret is told once")

            async def submit():
                async with motley.AsyncClient(through(proxy), retry=QUICK) as client:
                    return await client.submit_job(dict(spec, name="once-awaited"))
            asyncio.run(submit())
            expect(proxy.lost == 5, f"{proxy.lost} answers were lost")
        names = [line.name for line in direct.list_jobs()]
        expect(names.count("once") == 1 and names.count("once-awaited") == 1, names)
        direct.cancel_jobs(state=["held", "queued", "starting", "running"])
        return f"{proxy.lost} answers lost"


def what_may_not_be_repeated_is_not():
    """PATCH has no key: the lease is extended once, and the caller is told that nobody knows."""
    with motley.Client(SERVER) as direct:
        lease = direct.make_lease(device="left/cpu0", seconds=600)
        with Proxy(SERVER.address, lose_answers=lambda n: True) as proxy, motley.Client(through(proxy), retry=QUICK) as client:
            refusal(motley.Unreachable, lambda: client.extend_lease(lease.id, extend_seconds=60))
            expect(proxy.lost == 1, f"sent {proxy.lost} times")
        after = next(one for one in direct.list_leases() if one.id == lease.id)
        expect((after.ends - lease.ends).total_seconds() == 60, f"{lease.ends} to {after.ends}")
        expect(direct.end_lease(lease.id).id == lease.id, "ended")


def lists_come_page_by_page():
    with motley.Client(SERVER) as client:
        names = [f"page-{i}" for i in range(5)]
        spec = dict(client.get_job(GIVEN["job"]).spec, hold=True)
        for name in names:
            client.submit_job(dict(spec, name=name, labels={"for": "pages"}))
        mine = client.list_jobs(label=["for=pages"], limit=2)
        expect([line.name for line in mine] == names[::-1], [line.name for line in mine])
        expect([len(page.jobs) for page in mine.pages()] == [2, 2, 1] and len(mine.first().jobs) == 2, "pages")

        async def read():
            async with motley.AsyncClient(SERVER) as other:
                listing = other.list_jobs(label=["for=pages"], limit=2)
                return [line.name async for line in listing], len((await listing.first()).jobs)
        expect(asyncio.run(read()) == (names[::-1], 2), "awaited")
        expect(len(client.cancel_jobs(labels={"for": "pages"}).jobs) == 5, "all five")
        expect(len(list(client.list_metrics(GIVEN["job"], kind="step", limit=7))) == GIVEN["spec"]["train"]["steps"], "metrics")


def refusals_are_types_with_the_problems_fields():
    with motley.Client(SERVER) as client:
        spec = client.get_job(GIVEN["job"]).spec
        wrong = refusal(motley.Invalid, lambda: client.submit_job(dict(spec, train=dict(spec["train"], batch_rows=0))))
        expect(wrong.status == 422 and wrong.code == "invalid" and wrong.errors[0].pointer == "/train/batch_rows", wrong)
        expect("batch_rows" in str(wrong) and re.fullmatch(r"[\w.-]{1,64}", wrong.request_id), wrong)
        expect(wrong.problem.type == "urn:motley:problem:invalid", wrong.problem)
        expect(refusal(motley.NotFound, lambda: client.get_job(10**9)).code == "not-found", "404")
        large = dict(spec, placement={"kind": "single", "micro_batch_rows": 60000}, train=dict(spec["train"], batch_rows=60000))
        nothing = refusal(motley.NoFit, lambda: client.submit_job(large))
        expect(nothing.plan.verdict == "does not fit" and nothing.plan.shortfall_bytes > 0, nothing.plan)
        key = "k-" + os.urandom(4).hex()
        held = client.submit_job(dict(spec, hold=True), idempotency_key=key)
        expect(client.submit_job(dict(spec, hold=True), idempotency_key=key).id == held.id, "the same job")
        refusal(motley.Conflict, lambda: client.submit_job(dict(spec, hold=True, name="other"), idempotency_key=key))
        client.cancel_job(held.id)
        reader = client.add_token(scopes=["jobs:read"], expires_in="1h")
        with motley.Client(SERVER.address, reader.token) as other:
            refusal(motley.Denied, lambda: other.cancel_job(held.id))
            client.revoke_token(reader.id)
    with motley.Client(SERVER.address, "0" * 64) as nobody:
        expect(refusal(motley.Unauthenticated, nobody.who_am_i).status == 401, "401")
        refusal(motley.Unauthenticated, lambda: list(nobody.follow(1)))
    with motley.Client("http://127.0.0.1:1", "t", retry=motley.Retry(2, 0.01)) as away:
        refusal(motley.Unreachable, away.who_am_i)
    try:
        motley.Server.of_home(path("no-home"))
        expect(False, "a home without a service")
    except motley.Unreachable as error:
        expect("motley up" in str(error), error)


def tokens_go_in_clear_to_this_machine_alone():
    for address in ("http://192.0.2.1:8080", "http://lab.example"):
        refusal(motley.Unreachable, lambda address=address: motley.Client(motley.Server(address, "secret")))


def files_go_both_ways_over_a_wire_that_breaks():
    data = os.urandom(1 << 20) * 40
    sha256 = hashlib.sha256(data).hexdigest()
    with open(path("large"), "wb") as out:
        out.write(data)
    with Proxy(SERVER.address, cut_upload_after=lambda n: 10 << 20 if n < 2 else None, cut_after=lambda n: 9 << 20) as proxy:
        with motley.Client(through(proxy), retry=QUICK) as client:
            expect(client.put_file(path("large")) == sha256, "its hash")
            expect(client.put_file(b"small") == hashlib.sha256(b"small").hexdigest(), "bytes")
            with open(client.get_file(sha256, path("back/large")), "rb") as back:
                expect(back.read() == data, "the bytes come back")
            refusal(motley.NotFound, lambda: client.get_file("0" * 64, path("back/none")))
        expect(proxy.cuts >= 6, f"{proxy.cuts} cuts")

        async def both():
            async with motley.AsyncClient(through(proxy), retry=QUICK) as client:
                expect(await client.put_file(path("large")) == sha256, "there already")
                with open(await client.get_file(sha256, path("back/again")), "rb") as back:
                    return back.read() == data
        expect(asyncio.run(both()), "awaited")
    expect(sorted(os.listdir(path("back"))) == ["again", "large"], os.listdir(path("back")))
    return f"{proxy.cuts} cuts"


def a_result_is_what_motley_get_writes():
    with motley.Client(SERVER) as client:
        first = client.job(GIVEN["first"])
        folder = client.fetch(first, path("fetched"))
        expect(client.get_job(first) == first.get() == client.wait(first), "a job in the place of its id")
        taken = refusal(FileExistsError, lambda: client.fetch(GIVEN["job"], path("fetched")))
        expect(f"holds the results of job {first.id} (from python)" in str(taken), taken)
    for base, _, names in os.walk(GIVEN["got"]):
        for name in names:
            theirs = os.path.join(base, name)
            ours = os.path.join(folder, os.path.relpath(theirs, GIVEN["got"]))
            with open(theirs, "rb") as one, open(ours, "rb") as other:
                left, right = one.read(), other.read()
            if name.endswith(".jsonl"):
                left, right = ([json.loads(line) for line in text.splitlines()] for text in (left, right))
            elif name in ("plan.json", "trace.json", "fetched.json"):
                left, right = json.loads(left), json.loads(right)
                if name == "fetched.json":
                    left, right = ({**record, "files": sorted(record["files"])} for record in (left, right))
            expect(left == right, f"{os.path.relpath(theirs, GIVEN['got'])} differs: {str(left)[:300]} {str(right)[:300]}")


def names_of_files_that_leave_the_folder_are_refused():
    from pathlib import Path
    from motley.files import place_of
    for name in ("../x", "/etc/x", "a/../../x", "a\\..\\x", "c:x", "", "a\0b"):
        refusal(motley.BadAnswer, lambda name=name: place_of(name, Path(FOLDER)))
    expect(place_of("adapter_model.safetensors", Path("f")) == Path("f/adapter/adapter_model.safetensors"), "adapter/")


def adapters_and_their_base_come_into_the_cache():
    with motley.Client(SERVER) as client:
        job = client.job(GIVEN["first"])
        folder = motley.peft.fetch(job, cache=path("cache"))
        with open(folder / "adapter" / "adapter_model.safetensors", "rb") as ours:
            with open(os.path.join(GIVEN["got"], "adapter", "adapter_model.safetensors"), "rb") as theirs:
                expect(ours.read() == theirs.read(), "the adapter")
        base = motley.peft.base(job, cache=path("cache"))
        for name in sorted(os.listdir(base)):
            with open(base / name, "rb") as ours, open(os.path.join(GIVEN["spec"]["model"], name), "rb") as theirs:
                expect(ours.read() == theirs.read(), name)
        expect({"config.json", "model.safetensors"} <= set(os.listdir(base)), os.listdir(base))


def curves_are_pictures():
    with motley.Client(SERVER) as client:
        job = client.job(GIVEN["job"])
        picture = job.picture()
        saved = picture.save(path("loss.svg"))
        expect(job._repr_svg_() == picture.svg and saved.read_text() == picture.svg, "the same picture twice")
        root = xml.etree.ElementTree.fromstring(picture.svg)
        line = root.find("{*}polyline").get("points").split()
        expect(len(line) == len(picture.points) and len(root.findall("{*}circle")) == len(picture.dots) > 0, "points and dots")
        losses = job.losses()
        expect(abs(max(point[3] for point in picture.points) - max(losses)) < 1e-12, "the highest loss is in the picture")
    hostile = Picture("</text><script>alert(1)</script>", [], []).svg
    expect("<script" not in hostile and xml.etree.ElementTree.fromstring(hostile) is not None, hostile)
    expect(ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0] and ticks(3, 3) == [3], ticks(0, 1))


def events_are_the_same_however_the_bytes_arrive():
    text = 'retry: 50\n\n: beat\n\nid: 7\nevent: log\ndata: {"text": "a\u2028b\\r\u0085c"}\n\nid: 8\ndata: {"a":\ndata: 1}\n\nid: 9\n\nid: 10\ndata: {"cut'
    wanted = [(7, "log", {"text": "a\u2028b\r\u0085c"}), (8, "message", {"a": 1})]
    for ending in ("\n", "\r\n", "\r"):
        data = text.replace("\n", ending).encode()
        for split in range(len(data)):
            parser = Parser()
            events = [(e.id, e.type, e.data) for piece in (data[:split], data[split:]) for e in parser.feed(piece)]
            expect(events == wanted and parser.last == 9 and parser.retry_s == 0.05, f"{ending!r}, {split}: {events} {parser.last}")


def notes_of_a_job_cannot_move_the_cursor():
    out = io.StringIO()
    progress.Terminal(out).note("log x: \x1b[2J\r\nevil ⟦é⟧")
    expect(out.getvalue() == "log x: ·[2J··evil ⟦é⟧\n", repr(out.getvalue()))


def clients_work_in_threads_and_twenty_at_once():
    with motley.Client(SERVER) as client:
        found = []
        threads = [threading.Thread(target=lambda: found.append(client.get_job(GIVEN["job"]).id)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        expect(found == [GIVEN["job"]] * 8, found)

    async def together():
        async with motley.AsyncClient(SERVER) as other:
            jobs = await asyncio.gather(*(other.get_job(GIVEN["job"]) for _ in range(20)))
            return {job.id for job in jobs} == {GIVEN["job"]} and (await other.wait(GIVEN["job"])).state == "succeeded"
    expect(asyncio.run(together()), "twenty at once")


def a_job_that_fails_raises():
    with motley.Client(SERVER) as client:
        job = client.submit_job(dict(client.get_job(GIVEN["job"]).spec, hold=True, name="never"))
        client.cancel_job(job.id)
        failed = refusal(motley.JobFailed, lambda: client.job(job).wait())
        expect(failed.state == "cancelled" and "never" in str(failed), failed)


main(a_job_is_submitted_with_its_files_watched_in_a_terminal_and_done, a_model_is_named_as_on_the_hub, models_list_every_member_that_the_service_sends,
     a_stream_that_is_cut_every_few_bytes_loses_and_repeats_nothing, a_stream_that_is_never_whole_ends_with_a_typed_error,
     the_clusters_events_come_by_topic, a_post_whose_answer_is_lost_is_carried_out_once, what_may_not_be_repeated_is_not,
     lists_come_page_by_page, refusals_are_types_with_the_problems_fields, tokens_go_in_clear_to_this_machine_alone, files_go_both_ways_over_a_wire_that_breaks,
     a_result_is_what_motley_get_writes, names_of_files_that_leave_the_folder_are_refused, adapters_and_their_base_come_into_the_cache,
     events_are_the_same_however_the_bytes_arrive, curves_are_pictures, notes_of_a_job_cannot_move_the_cursor, clients_work_in_threads_and_twenty_at_once, a_job_that_fails_raises)
