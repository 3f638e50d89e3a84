"""Statements of store/ over what people own, that do not ask themselves who may see or change it.

Whose a job, a model or a file is, is decided by the statement that reads or changes it (migrations/0005_access.sql). A
statement without that question stands in ASKED with who asked before, or belongs to the leader alone.
"""
import re

import sql

OWNED = (r"jobs|runs|assignments|metrics|events|traces|checkpoints|artifacts|models|model_names|datasets|blobs|holds|tokens|"
         r"imported_profiles")
TABLES = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|USING)\s+(?:%s)\b" % OWNED)
QUESTION = re.compile(r"motley_(?:visible|owns|reads|node_reads|uses|shared|follows)\b")
# They decide for everybody, or copy the whole; read by no person.
LEADER = {"backup", "decide", "ingest", "leader", "migrate", "prune", "queue", "restore", "sched_load"}
PART = "job_part_read (api/jobs/jobs.c) has asked for the job"
ASKED = {
    "job_metrics": PART, "job_metrics_buckets": PART, "job_plan": PART, "job_runs": PART, "job_trace": PART, "job_lanes": PART,
    "event_list": PART + ", and a stream asks again (store_jobs_unseen)", "event_feed": "the same, for each topic; states are everybody's",
    "sooner_ask": "`why` has read the job",
    "dataset_get": "may_dataset (api/request/dataset.c)", "dataset_put": "its key is a digest of what the asker gave",
    "job_hold": "the check of the specification has read each file that it names", "jobs_find_by_key": "by owner", "blobs_sent": "by owner", "fetch_claim": "every api, for all jobs that wait", "fetch_tell": "of a job that this api has claimed",
    "fetch_done": "the same", "fetch_fail": "the same",
    "jobs_insert_plain": "as jobs_insert", "jobs_insert": "they are the asker's own; store/access.c and motley_after_refused look at what they name", "model_put": "the asker's own name",
    "profile_import": "the asker's own", "blob_put": "who sends the bytes holds them", "blobs_drop": "what nothing names, for nobody",
    "session_code_put": "the asker's own token", "session_open": "by the hash of what is shown", "session_open_user": "a proxy says who asks", "identity_open": "motley_sign_in has said whose it is", "session_close": "the asker's own token",
    "token_find": "by the hash of what is shown", "token_put": "scopes at most the asker's own (api/people/tokens.c)",
    "node_enrol": "a join token decides", "node_remove": "nodes:write", "group_remove": "admin; it refuses while jobs are charged",
    "storage_get": "sums by owner, the asker's own or an administrator's",
    "job_page_all": "an administrator", "job_page_state": "an administrator", "job_page_filtered": "an administrator",
    "counts": "counts of states, names of nodes and devices, the age of the oldest waiting job",
    "glance": "counts of states, names of devices", "records_page": "owner, account and times, as everybody's queue shows them",
    "records_arrivals": "the leader", "records_ends": "the leader",
}


def find(paths):
    """Yields (path, line, name) of each such statement of some files of SQL."""
    found = sql.load(paths)[1]
    gone = ASKED.keys() - {piece.name for piece, _, _ in found}
    if gone:
        raise sql.Wrong(f"tools/statements.py names {', '.join(sorted(gone))}, and there is no such statement")
    for piece, text, _ in found:
        room = re.sub(r"^store/|\.sql$", "", piece.place[0])
        if room not in LEADER and TABLES.search(text) and not QUESTION.search(text) and piece.name not in ASKED:
            yield *piece.place, piece.name
