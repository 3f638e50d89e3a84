"""Statements of store/ over what people own, that do not ask themselves who may see or change it.

Whose a job, a model or a file is, is decided by the statement that reads or changes it (migrations/0005_access.sql). A
statement without that question stands in ASKED with who asked before, or belongs to the leader alone.
"""
import re

OWNED = (r"jobs|runs|assignments|metrics|events|traces|checkpoints|artifacts|models|model_names|datasets|blobs|holds|tokens|"
         r"imported_profiles")
TABLES = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|USING)\s+(?:%s)\b" % OWNED)
QUESTION = re.compile(r"motley_(?:visible|owns|reads|node_reads|uses|shared|follows)\b")
# They decide for everybody, or copy the whole; read by no person.
LEADER = {"backup.c", "decide.c", "ingest.c", "leader.c", "migrate.c", "prune.c", "queue.c", "restore.c", "sched_load.c"}
PART = "job_part_read (api/jobs/jobs.c) has asked for the job"
ASKED = {
    "list_metrics": PART, "bucket_metrics": PART, "get_plan": PART, "list_runs": PART, "get_trace": PART, "get_lanes": PART,
    "list_events": PART + ", and a stream asks again (store_jobs_unseen)", "feed_events": "the same, for each topic; states are everybody's",
    "ask_sooner": "`why` has read the job",
    "get_dataset": "may_dataset (api/request/dataset.c)", "put_dataset": "its key is a digest of what the asker gave",
    "hold_job": "the check of the specification has read each file that it names", "find_by_key": "by owner", "sent_bytes": "by owner", "claim_fetches": "every api, for all jobs that wait", "tell_fetch": "of a job that this api has claimed",
    "end_fetch": "the same", "fail_fetch": "the same",
    "insert_jobs": "they are the asker's own; store/access.c and motley_after_refused look at what they name", "put_model": "the asker's own name",
    "import_profiles": "the asker's own", "put_blob": "who sends the bytes holds them", "drop_blobs": "what nothing names, for nobody",
    "put_code": "the asker's own token", "open_session": "by the hash of what is shown", "open_user_session": "a proxy says who asks", "open_identity": "motley_sign_in has said whose it is", "close_session": "the asker's own token",
    "find_token": "by the hash of what is shown", "put_token": "scopes at most the asker's own (api/people/tokens.c)",
    "enrol_node": "a join token decides", "remove_node": "nodes:write", "remove_group": "admin; it refuses while jobs are charged",
    "get_storage": "sums by owner, the asker's own or an administrator's",
    "count_all": "counts of states, names of nodes and devices, the age of the oldest waiting job",
    "glance": "counts of states, names of devices", "page_arrivals": "owner, account and times, as everybody's queue shows them",
    "store_put_arrivals": "the leader", "store_end_forecasts": "the leader",
}
STATEMENT = re.compile(r"const struct pg_statement (\w+)(?:\[\d*\])*\s*=\s*\{(.*?)\};", re.S)
MACRO = re.compile(r"#define (\w+)(?:\([^)]*\))?((?:.*\\\n)*.*\n)")


def find(paths, read):
    """Yields (path, line, name) of each such statement."""
    shared = dict(MACRO.findall(read("store/store_private.h")))
    for path in paths:
        if not re.match(r"store/\w+\.c$", path) or path.removeprefix("store/") in LEADER:
            continue
        text = read(path)
        macros = {**shared, **dict(MACRO.findall(text))}
        for found in STATEMENT.finditer(text):
            sql, before = found.group(2), None
            while sql != before:
                before, sql = sql, re.sub(r"\b[A-Z][A-Z_]+\b", lambda word: macros.get(word.group(), word.group()), sql)
            sql = re.sub(r'"\s*"|"\s*\\\n\s*"', "", sql)
            if TABLES.search(sql) and not QUESTION.search(sql) and found.group(1) not in ASKED:
                yield path, text.count("\n", 0, found.start()) + 1, found.group(1)
