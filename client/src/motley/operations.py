"""Made by client/generate.py from api/openapi.yaml: change that, and run it again."""
from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Mapping, Sequence

from ._call import AsyncCall, AsyncPages, Call, Listing, Numbered, SyncCall, SyncPages, job_segment, segment
from ._json import UNSET, Unset
from .models import (
    AddJoinTokenAnswer, AddModelBase, AddModelFile, AddSessionCodeAnswer, AddTokenAnswer, AuditRow, BeginDeviceAnswer, BeginSignInAnswer,
    ChangeDeviceAnswer, ChangeJobAnswer, ChangeNoticesAnswer, Commanded, CommandedJobs, Device, DeviceLoad, Drained, EnrollAnswer,
    ExtendJobAnswer, GetFileManifestAnswer, GetJobPlanAnswer, GetLoadAnswer, GetProviderAnswer, GetQueueAnswer, GetQueueAnswerQueue,
    GetReadyAnswer, GetRecordsAnswer, GetSharesAnswer, GetStorageAnswer, GetTraceAnswer, GetUsageAnswer, GetWhyAnswer, Group,
    ImportProfilesAnswer, Job, JobLine, Lanes, Lease, Link, ListArrivalsAnswer, ListArrivalsAnswerArrival, ListArtifactsAnswer,
    ListArtifactsAnswerArtifact, ListAuditAnswer, ListDevicesAnswer, ListGroupsAnswer, ListJobsAnswer, ListLeasesAnswer, ListLinksAnswer,
    ListLogsAnswer, ListMetricsAnswer, ListModelsAnswer, ListNodesAnswer, ListNodesAnswerNode, ListNoticesAnswer, ListProfilesAnswer,
    ListRunsAnswer, ListTokensAnswer, ListUsersAnswer, LogLine, Metric, Model, Notice, PlanAnswer, Profile, RemoveJobAnswer,
    RemoveNodeAnswer, RenewCertificateAnswer, RevokeJoinTokensAnswer, Run, SetGroupAnswer, SetUserAnswer, ShareJobAnswer, SignedIn,
    Specification, Status, Submitted, Token, User, WhoAmIAnswer
)


def list_jobs(
    *, limit: int | Unset = UNSET, after: str | Unset = UNSET, state: Sequence[str] | Unset = UNSET, owner: str | Unset = UNSET,
    group: str | Unset = UNSET, label: Sequence[str] | Unset = UNSET, from_: datetime | Unset = UNSET, to: datetime | Unset = UNSET,
    array: int | Unset = UNSET
) -> Listing[ListJobsAnswer, JobLine]:
    """List jobs, newest first. Scope jobs:read. Administrators see everybody's, others their own and what is shared with them."""
    return Listing(
        Call("GET", "/v1/jobs", ListJobsAnswer, query={"limit": limit, "after": after, "state": state, "owner": owner, "group": group,
        "label": label, "from": from_, "to": to, "array": array}), lambda page: page.jobs, lambda page: page.next
    )


def submit_job(specification: Specification | Mapping[str, Any], *, idempotency_key: str | None = None) -> Call[Submitted]:
    """Submit a job. The whole specification is checked, and its data encoded, before anything is committed; 201 means committed. Files
    (`data.train`, `data.eval`) are `sha256:HEX` of files that one may read, `model` a registered name (`NAME`: one's own first, then the
    oldest that one may see; or `OWNER/NAME`), a content id or, where the server's `hub.fetch` allows it, a model of the Hub
    (`hf:OWNER/NAME`; the job is then held while the server fetches, and checked, queued or failed afterwards), `method.start_from` the
    `sha256:HEX` of an uploaded JSON object that maps `adapter_config.json` and `adapter_model.safetensors` to the SHA-256 of their
    uploads. 403 above one's ceiling of `priority`. Scope jobs:write."""
    return Call("POST", "/v1/jobs", Submitted, body=specification, keyed=True, key=idempotency_key)


def validate_job(
    specification: Specification | Mapping[str, Any], *, programs: int | Unset = UNSET, inputs: int | Unset = UNSET,
    idempotency_key: str | None = None
) -> Call[PlanAnswer]:
    """What a job would do, without committing. The same checks as a submit, and the plan for the devices that could be used now. When
    nothing fits the answer is 200 with `verdict` `does not fit`. Scope jobs:read or jobs:write."""
    return Call(
        "POST", "/v1/jobs:validate", PlanAnswer, query={"programs": programs, "inputs": inputs}, body=specification, keyed=True,
        key=idempotency_key
    )


def cancel_jobs(
    *, ids: Sequence[int] | Unset = UNSET, state: Sequence[str] | Unset = UNSET, owner: str | Unset = UNSET, group: str | Unset = UNSET,
    labels: Mapping[str, str | None] | Unset = UNSET, array: int | Unset = UNSET, from_: datetime | Unset = UNSET,
    to: datetime | Unset = UNSET, idempotency_key: str | None = None
) -> Call[CommandedJobs]:
    """Cancel several jobs; running ones write a checkpoint first. The jobs with these `ids`, or those of one's own (an administrator:
    everybody's) that the filter takes and whose state allows it, at most 500 at once. Each job for itself: what was refused is listed
    with the reason. Scope jobs:write."""
    return Call(
        "POST", "/v1/jobs:cancel", CommandedJobs, body={"ids": ids, "state": state, "owner": owner, "group": group, "labels": labels,
        "array": array, "from": from_, "to": to}, keyed=True, key=idempotency_key
    )


def hold_jobs(
    *, ids: Sequence[int] | Unset = UNSET, state: Sequence[str] | Unset = UNSET, owner: str | Unset = UNSET, group: str | Unset = UNSET,
    labels: Mapping[str, str | None] | Unset = UNSET, array: int | Unset = UNSET, from_: datetime | Unset = UNSET,
    to: datetime | Unset = UNSET, idempotency_key: str | None = None
) -> Call[CommandedJobs]:
    """Hold several jobs; running ones write a checkpoint and stop. The jobs with these `ids`, or those of one's own (an administrator:
    everybody's) that the filter takes and whose state allows it, at most 500 at once. Each job for itself: what was refused is listed
    with the reason. Scope jobs:write."""
    return Call(
        "POST", "/v1/jobs:hold", CommandedJobs, body={"ids": ids, "state": state, "owner": owner, "group": group, "labels": labels, "array":
        array, "from": from_, "to": to}, keyed=True, key=idempotency_key
    )


def release_jobs(
    *, ids: Sequence[int] | Unset = UNSET, state: Sequence[str] | Unset = UNSET, owner: str | Unset = UNSET, group: str | Unset = UNSET,
    labels: Mapping[str, str | None] | Unset = UNSET, array: int | Unset = UNSET, from_: datetime | Unset = UNSET,
    to: datetime | Unset = UNSET, idempotency_key: str | None = None
) -> Call[CommandedJobs]:
    """Let several held jobs start. The jobs with these `ids`, or those of one's own (an administrator: everybody's) that the filter takes
    and whose state allows it, at most 500 at once. Each job for itself: what was refused is listed with the reason. Scope jobs:write."""
    return Call(
        "POST", "/v1/jobs:release", CommandedJobs, body={"ids": ids, "state": state, "owner": owner, "group": group, "labels": labels,
        "array": array, "from": from_, "to": to}, keyed=True, key=idempotency_key
    )


def ask_plan(
    *, spec: Mapping[str, Any], cluster: Mapping[str, Any] | None | Unset = UNSET, brief: bool | None | Unset = UNSET,
    idempotency_key: str | None = None
) -> Call[PlanAnswer]:
    """What a job would do on another cluster. The plan of `motley plan --cluster` for a specification as a submit takes it, and a cluster
    file (INTERFACES.md). What the file does not say of a device whose name is known here is taken from here. Without `cluster` the
    devices that can be used now, and only plans that workers run. `brief` is a first answer: a tenth of the search, no alternatives. Of
    one token's questions the newest counts: earlier ones that were not answered yet end with 412, `stale` (but a brief one is left alone
    by a full one). Nothing is committed. Scope jobs:read or jobs:write."""
    return Call("POST", "/v1/plans", PlanAnswer, body={"spec": spec, "cluster": cluster, "brief": brief}, keyed=True, key=idempotency_key)


def get_cluster_file(
    *, spec: Mapping[str, Any], cluster: Mapping[str, Any] | None | Unset = UNSET, idempotency_key: str | None = None
) -> Call[dict[str, Any]]:
    """The cluster file of such a plan. What `motley plan --cluster` needs to find the plan that `askPlan` finds for the same question: the
    cluster file, completed by what is known here of devices and nodes of the same names (memory, speed, the tables measured for such a
    job, links); without `cluster` the devices that can be used now. Scope jobs:read or jobs:write."""
    return Call("POST", "/v1/plans:cluster", dict[str, Any], body={"spec": spec, "cluster": cluster}, keyed=True, key=idempotency_key)


def get_storage() -> Call[GetStorageAnswer]:
    """What jobs and people have on the disk. Administrators see everybody's, others their own. Scope jobs:read."""
    return Call("GET", "/v1/storage", GetStorageAnswer)


def get_job(id: int | Numbered) -> Call[Job]:
    """One job. `spec` can be posted again as it is. Scope jobs:read."""
    return Call("GET", f"/v1/jobs/{job_segment(id)}", Job)


def change_job(
    id: int | Numbered, *, priority: int | Unset = UNSET, begin: datetime | None | Unset = UNSET, at_most: int | None | Unset = UNSET
) -> Call[ChangeJobAnswer]:
    """Change the priority, the begin, or how many elements of an array run at once. 409 once the job has ended, and for `begin` once it has
    started. Of an array, the elements that have not started change, too. 403 above one's ceiling of `priority`. Scope jobs:write."""
    return Call("PATCH", f"/v1/jobs/{job_segment(id)}", ChangeJobAnswer, body={"priority": priority, "begin": begin, "at_most": at_most})


def remove_job(id: int | Numbered) -> Call[RemoveJobAnswer]:
    """Remove a job that has ended, with its checkpoints, results, metrics and logs. Of an array, its elements, too. What it used stays in
    the usage. 409 names why it stays: it has not ended, it is shared, or a job that has not ended comes after it or starts from what it
    made. Its owner's or an administrator's to remove. Scope jobs:write."""
    return Call("DELETE", f"/v1/jobs/{job_segment(id)}", RemoveJobAnswer)


def cancel_job(id: int | Numbered, *, idempotency_key: str | None = None) -> Call[Commanded]:
    """Cancel; a running job writes a checkpoint first. Scope jobs:write."""
    return Call("POST", f"/v1/jobs/{job_segment(id)}/cancel", Commanded, keyed=True, key=idempotency_key)


def extend_job(id: int | Numbered, *, seconds: int, idempotency_key: str | None = None) -> Call[ExtendJobAnswer]:
    """A longer time limit. 409 names the job that is to start on its devices and would start later; administrators may do that. Scope
    jobs:write."""
    return Call("POST", f"/v1/jobs/{job_segment(id)}/extend", ExtendJobAnswer, body={"seconds": seconds}, keyed=True, key=idempotency_key)


def hold_job(id: int | Numbered, *, idempotency_key: str | None = None) -> Call[Commanded]:
    """Keep it from starting; a running job writes a checkpoint and stops. Scope jobs:write."""
    return Call("POST", f"/v1/jobs/{job_segment(id)}/hold", Commanded, keyed=True, key=idempotency_key)


def release_job(id: int | Numbered, *, idempotency_key: str | None = None) -> Call[Commanded]:
    """Let a held job start. Scope jobs:write."""
    return Call("POST", f"/v1/jobs/{job_segment(id)}/release", Commanded, keyed=True, key=idempotency_key)


def resume_job(id: int | Numbered, *, steps: int | None | Unset = UNSET, idempotency_key: str | None = None) -> Call[Commanded]:
    """Go on from the last checkpoint, also beyond the end. From the first step where no checkpoint was stored. The learning rate follows
    its schedule to the new end. Scope jobs:write."""
    return Call("POST", f"/v1/jobs/{job_segment(id)}/resume", Commanded, body={"steps": steps}, keyed=True, key=idempotency_key)


def share_job(
    id: int | Numbered, *, visibility: str | Unset = UNSET, group: str | None | Unset = UNSET, idempotency_key: str | None = None
) -> Call[ShareJobAnswer]:
    """Who else may see the job, with its data and what it makes. Only its owner and administrators may change it. Scope jobs:write."""
    return Call(
        "POST", f"/v1/jobs/{job_segment(id)}/share", ShareJobAnswer, body={"visibility": visibility, "group": group}, keyed=True,
        key=idempotency_key
    )


def list_metrics(
    id: int | Numbered, *, kind: Literal['all', 'step', 'eval', 'sample', 'ranks'] | Unset = UNSET, buckets: int | Unset = UNSET,
    from_: int | Unset = UNSET, to: int | Unset = UNSET, limit: int | Unset = UNSET, after: str | Unset = UNSET
) -> Listing[ListMetricsAnswer, Metric]:
    """Metrics, a line a step; or in buckets of steps. With `buckets`, the steps or evaluations from `from` to before `to` in at most so
    many buckets of equal width, a power of two; each begins at a multiple of the width, so that buckets stay where they are while the
    job goes on. Scope jobs:read."""
    return Listing(
        Call("GET", f"/v1/jobs/{job_segment(id)}/metrics", ListMetricsAnswer, query={"kind": kind, "buckets": buckets, "from": from_, "to":
        to, "limit": limit, "after": after}), lambda page: page.lines, lambda page: page.next
    )


def list_logs(id: int | Numbered, *, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListLogsAnswer, LogLine]:
    """Log lines in order. To follow them: events with `type=log`. Scope jobs:read."""
    return Listing(
        Call("GET", f"/v1/jobs/{job_segment(id)}/logs", ListLogsAnswer, query={"limit": limit, "after": after}), lambda page: page.lines,
        lambda page: page.next
    )


def get_job_plan(id: int | Numbered) -> Call[GetJobPlanAnswer]:
    """The plan of the newest run. 404 before there is one. Scope jobs:read."""
    return Call("GET", f"/v1/jobs/{job_segment(id)}/plan", GetJobPlanAnswer)


def list_runs(id: int | Numbered, *, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListRunsAnswer, Run]:
    """The attempts of a job, newest first. Scope jobs:read."""
    return Listing(
        Call("GET", f"/v1/jobs/{job_segment(id)}/runs", ListRunsAnswer, query={"limit": limit, "after": after}), lambda page: page.runs,
        lambda page: page.next
    )


def get_trace(id: int | Numbered) -> Call[GetTraceAnswer]:
    """What ran when, in Chrome's trace format. A sample of the newest traced run's steps. Scope jobs:read."""
    return Call("GET", f"/v1/jobs/{job_segment(id)}/trace", GetTraceAnswer)


def get_why(id: int | Numbered) -> Call[GetWhyAnswer]:
    """Why the job is where it is, in a sentence. Scope jobs:read."""
    return Call("GET", f"/v1/jobs/{job_segment(id)}/why", GetWhyAnswer)


def get_lanes(
    id: int | Numbered, *, step: int | Unset = UNSET, from_: int | Unset = UNSET, to: int | Unset = UNSET, px: int | Unset = UNSET,
    first_rank: int | Unset = UNSET, ranks: int | Unset = UNSET
) -> Call[Lanes]:
    """A step as lanes, predicted beside measured. Of the last run that recorded a trace, else of the last run. The prediction is the step
    that was simulated when the run was placed (null of very long programs, and of runs from before). Measured clocks are aligned by the
    messages between ranks; `residual_ns` says how right they are. Events within one pixel are one box. Scope jobs:read."""
    return Call(
        "GET", f"/v1/jobs/{job_segment(id)}/lanes", Lanes, query={"step": step, "from": from_, "to": to, "px": px, "first_rank": first_rank,
        "ranks": ranks}
    )


def list_artifacts(
    id: int | Numbered, *, limit: int | Unset = UNSET, after: str | Unset = UNSET
) -> Listing[ListArtifactsAnswer, ListArtifactsAnswerArtifact]:
    """The files a job made. Scope jobs:read."""
    return Listing(
        Call("GET", f"/v1/jobs/{job_segment(id)}/artifacts", ListArtifactsAnswer, query={"limit": limit, "after": after}), lambda page:
        page.artifacts, lambda page: page.next
    )


def list_notices(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListNoticesAnswer, Notice]:
    """What people were told of their jobs, or are to be told. The 1,000 newest of one's own; for administrators of everybody's. Old ones go
    with old events."""
    return Listing(
        Call("GET", "/v1/notices", ListNoticesAnswer, query={"limit": limit, "after": after}), lambda page: page.notices, lambda page:
        page.next
    )


def change_notices(*, url: str | None | Unset = UNSET, key: Literal['keep', 'new'] | None | Unset = UNSET) -> Call[ChangeNoticesAnswer]:
    """Where oneself is told of jobs that name no address, and the key of the signatures."""
    return Call("PATCH", "/v1/notices", ChangeNoticesAnswer, body={"url": url, "key": key})


def get_queue(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[GetQueueAnswer, GetQueueAnswerQueue]:
    """What runs, and what waits in which place, of everybody. Scope jobs:read. Owner, account, devices, place and times of every job; names
    of those that one may see."""
    return Listing(
        Call("GET", "/v1/queue", GetQueueAnswer, query={"limit": limit, "after": after}), lambda page: page.queue, lambda page: page.next
    )


def get_file_manifest(sha256: str) -> Call[GetFileManifestAnswer]:
    """The hashes of a file's chunks, to verify ranges. Scope models:read or agent."""
    return Call("GET", f"/v1/blobs/{segment(sha256)}/manifest", GetFileManifestAnswer)


def list_models(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListModelsAnswer, Model]:
    """Registered models. Scope models:read."""
    return Listing(
        Call("GET", "/v1/models", ListModelsAnswer, query={"limit": limit, "after": after}), lambda page: page.models, lambda page:
        page.next
    )


def add_model(
    *, name: str, visibility: str | Unset = UNSET, group: str | None | Unset = UNSET, path: str | None | Unset = UNSET,
    hub: str | None | Unset = UNSET, base: AddModelBase | None | Unset = UNSET, files: Sequence[AddModelFile] | None | Unset = UNSET,
    idempotency_key: str | None = None
) -> Call[Model]:
    """Register a model under a name. From files uploaded before, by its name on the Hugging Face Hub, or (scope admin) from an absolute
    path on the server's host, without a copy. What the server fetches of the Hub (`hub.fetch` of its configuration says for whom) it
    fetches before it answers. The model is opened and checked first. Names are unique per owner: one's own existing name is pointed to
    the new content and sharing; older jobs keep theirs. What is uploaded is its owner's alone unless `visibility` says more, what is
    registered from a path everyone's. Scope models:write."""
    return Call(
        "POST", "/v1/models", Model, body={"name": name, "visibility": visibility, "group": group, "path": path, "hub": hub, "base": base,
        "files": files}, keyed=True, key=idempotency_key
    )


def get_model(name: str) -> Call[Model]:
    """One model with its config and files. Scope models:read."""
    return Call("GET", f"/v1/models/{segment(name)}", Model)


def remove_model(name: str) -> Call[None]:
    """Forget a name. Only its owner's or an administrator's to forget. Jobs that use the content keep it. Scope models:write."""
    return Call("DELETE", f"/v1/models/{segment(name)}", None)


def list_nodes(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListNodesAnswer, ListNodesAnswerNode]:
    """Machines that joined. Scope nodes:read."""
    return Listing(
        Call("GET", "/v1/nodes", ListNodesAnswer, query={"limit": limit, "after": after}), lambda page: page.nodes, lambda page: page.next
    )


def get_load(
    *, limit: int | Unset = UNSET, after: str | Unset = UNSET, from_: datetime | Unset = UNSET, to: datetime | Unset = UNSET,
    device: str | Unset = UNSET, by: Literal['minute', 'hour'] | Unset = UNSET
) -> Listing[GetLoadAnswer, DeviceLoad]:
    """What devices did in a time. Computing, waiting and sending (which overlaps the other two) as ranks told it, when they told it; held
    by jobs and leases, free, and the highest temperature. With `device`, its points, too: a minute each (older than two days an hour),
    or by hour. Scope nodes:read."""
    return Listing(
        Call("GET", "/v1/load", GetLoadAnswer, query={"limit": limit, "after": after, "from": from_, "to": to, "device": device, "by": by}),
        lambda page: page.devices, lambda page: page.next
    )


def list_links(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListLinksAnswer, Link]:
    """Links between nodes, one way each; measured, or found to be closed. Scope nodes:read."""
    return Listing(
        Call("GET", "/v1/links", ListLinksAnswer, query={"limit": limit, "after": after}), lambda page: page.links, lambda page: page.next
    )


def list_leases(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListLeasesAnswer, Lease]:
    """Who holds or has booked which device, by beginning. Scope nodes:read."""
    return Listing(
        Call("GET", "/v1/leases", ListLeasesAnswer, query={"limit": limit, "after": after}), lambda page: page.leases, lambda page:
        page.next
    )


def make_lease(
    *, seconds: int, device: str | None | Unset = UNSET, any: str | None | Unset = UNSET, begins: datetime | None | Unset = UNSET,
    note: str | None | Unset = UNSET, kind: Literal['lease', 'maintenance'] | None | Unset = UNSET, idempotency_key: str | None = None
) -> Call[Lease]:
    """Hold a device, now or from a time on. No job is on the device while the lease lasts; what runs there when a booking begins moves at a
    checkpoint. 409 names the lease or the job that has the device then; 422 the longest time of one's leases (a day, or what one's group
    says; administrators: any), or a limit of devices or of the month that it would exceed. Scope leases:write."""
    return Call(
        "POST", "/v1/leases", Lease, body={"seconds": seconds, "device": device, "any": any, "begins": begins, "note": note, "kind": kind},
        keyed=True, key=idempotency_key
    )


def extend_lease(id: int, *, extend_seconds: int) -> Call[Lease]:
    """Move the end of one's lease. 409 when somebody has booked the device then; 422 names a limit, as when it was made. Scope
    leases:write."""
    return Call("PATCH", f"/v1/leases/{segment(id)}", Lease, body={"extend_seconds": extend_seconds})


def end_lease(id: int) -> Call[Lease]:
    """Give a device back, or withdraw a booking. Scope leases:write or jobs:write."""
    return Call("DELETE", f"/v1/leases/{segment(id)}", Lease)


def remove_node(name: str) -> Call[RemoveNodeAnswer]:
    """Take a machine out of the cluster. Revokes its token and its certificate, ends what runs there (jobs go on elsewhere). Its name stays
    taken, and its old key is refused: with a join token with `replace` it joins again. Scope nodes:write."""
    return Call("DELETE", f"/v1/nodes/{segment(name)}", RemoveNodeAnswer)


def list_devices(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListDevicesAnswer, Device]:
    """Devices. Scope nodes:read."""
    return Listing(
        Call("GET", "/v1/devices", ListDevicesAnswer, query={"limit": limit, "after": after}), lambda page: page.devices, lambda page:
        page.next
    )


def change_device(name: str, *, group: str | None) -> Call[ChangeDeviceAnswer]:
    """Whose the device is; jobs of its group go first there, and those of others yield. Scope nodes:write."""
    return Call("PATCH", f"/v1/devices/{segment(name)}", ChangeDeviceAnswer, body={"group": group})


def drain_node(
    name: str, *, after_jobs: bool | None | Unset = UNSET, by: datetime | None | Unset = UNSET, reason: str | None | Unset = UNSET,
    idempotency_key: str | None = None
) -> Call[Drained]:
    """The same for all devices of a machine. Scope nodes:write."""
    return Call(
        "POST", f"/v1/nodes/{segment(name)}/drain", Drained, body={"after_jobs": after_jobs, "by": by, "reason": reason}, keyed=True,
        key=idempotency_key
    )


def undrain_node(name: str, *, idempotency_key: str | None = None) -> Call[Drained]:
    """Let jobs start on all devices of a machine again. Scope nodes:write."""
    return Call("POST", f"/v1/nodes/{segment(name)}/undrain", Drained, keyed=True, key=idempotency_key)


def drain_device(
    name: str, *, after_jobs: bool | None | Unset = UNSET, by: datetime | None | Unset = UNSET, reason: str | None | Unset = UNSET,
    idempotency_key: str | None = None
) -> Call[Drained]:
    """Nothing new starts there; what runs moves with a checkpoint. Scope nodes:write."""
    return Call(
        "POST", f"/v1/devices/{segment(name)}/drain", Drained, body={"after_jobs": after_jobs, "by": by, "reason": reason}, keyed=True,
        key=idempotency_key
    )


def undrain_device(name: str, *, idempotency_key: str | None = None) -> Call[Drained]:
    """Let jobs start there again. Scope nodes:write."""
    return Call("POST", f"/v1/devices/{segment(name)}/undrain", Drained, keyed=True, key=idempotency_key)


def list_profiles(
    *, limit: int | Unset = UNSET, after: str | Unset = UNSET, model: str | Unset = UNSET
) -> Listing[ListProfilesAnswer, Profile]:
    """What was measured here or imported, of devices and links. Scope nodes:read."""
    return Listing(
        Call("GET", "/v1/profiles", ListProfilesAnswer, query={"limit": limit, "after": after, "model": model}), lambda page: page.profiles,
        lambda page: page.next
    )


def import_profiles(
    *, format: Literal['motley-profiles'], version: Literal[1], devices: Sequence[Mapping[str, Any]], profiles: Sequence[Mapping[str, Any]],
    visibility: str | Unset = UNSET, group: str | Unset = UNSET, origin: str | Unset = UNSET, exported_at: str | Unset = UNSET,
    links: Sequence[Mapping[str, Any]] | Unset = UNSET, idempotency_key: str | None = None
) -> Call[ImportProfilesAnswer]:
    """Keep what was measured elsewhere. A document of `motley profile export`. Its profiles are kept as imported, each importer's own, and
    never stand in the place of measured ones. Scope nodes:write."""
    return Call(
        "POST", "/v1/profiles", ImportProfilesAnswer, query={"visibility": visibility, "group": group}, body={"format": format, "version":
        version, "devices": devices, "profiles": profiles, "origin": origin, "exported_at": exported_at, "links": links}, keyed=True,
        key=idempotency_key
    )


def add_join_token(
    *, expires_in: float | str | None | Unset = UNSET, node: str | None | Unset = UNSET, replace: bool | None | Unset = UNSET,
    uses: int | None | Unset = UNSET, idempotency_key: str | None = None
) -> Call[AddJoinTokenAnswer]:
    """A token with which one machine may join, once, or with `uses` several. It pins the cluster's CA, and is not good while the user who
    made it is disabled. Scope nodes:write."""
    return Call(
        "POST", "/v1/join-tokens", AddJoinTokenAnswer, body={"expires_in": expires_in, "node": node, "replace": replace, "uses": uses},
        keyed=True, key=idempotency_key
    )


def revoke_join_tokens(*, node: str | Unset = UNSET) -> Call[RevokeJoinTokensAnswer]:
    """Join tokens that nobody can join with any more. Nodes that joined with them stay. Scope nodes:write."""
    return Call("DELETE", "/v1/join-tokens", RevokeJoinTokensAnswer, query={"node": node})


def enroll(*, token: str, node: str, csr: str, address: str | None | Unset = UNSET) -> Call[EnrollAnswer]:
    """Join as a node. For agents; the join token is the authorisation, and is checked before anything else. A token that is unknown,
    expired, used or bound to another name gets one and the same answer. A name that was ever seen is 409 but for its own key with a
    token bound to it, or a token made with replace."""
    return Call("POST", "/v1/enroll", EnrollAnswer, body={"token": token, "node": node, "csr": csr, "address": address})


def renew_certificate(*, csr: str, idempotency_key: str | None = None) -> Call[RenewCertificateAnswer]:
    """A new certificate for a node. For agents, with their bearer token; the request is signed by the key that the node was enrolled
    with."""
    return Call("POST", "/v1/renew", RenewCertificateAnswer, body={"csr": csr}, keyed=True, key=idempotency_key)


def who_am_i() -> Call[WhoAmIAnswer]:
    """Whose token this is and what it may."""
    return Call("GET", "/v1/whoami", WhoAmIAnswer)


def list_users(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListUsersAnswer, User]:
    """Users. Scope admin."""
    return Listing(
        Call("GET", "/v1/users", ListUsersAnswer, query={"limit": limit, "after": after}), lambda page: page.users, lambda page: page.next
    )


def set_user(
    name: str, *, priority_max: int | None | Unset = UNSET, disabled: bool | None | Unset = UNSET, jobs: Literal['hold',
    'cancel'] | None | Unset = UNSET, account: str | None | Unset = UNSET, identity: None | Unset = UNSET,
    devices_max: int | None | Unset = UNSET, running_max: int | None | Unset = UNSET, queued_max: int | None | Unset = UNSET,
    month_seconds_max: float | None | Unset = UNSET, kept_bytes_max: int | None | Unset = UNSET
) -> Call[SetUserAnswer]:
    """What a user may at most, and what is charged. Scope admin."""
    return Call(
        "PATCH", f"/v1/users/{segment(name)}", SetUserAnswer, body={"priority_max": priority_max, "disabled": disabled, "jobs": jobs,
        "account": account, "identity": identity, "devices_max": devices_max, "running_max": running_max, "queued_max": queued_max,
        "month_seconds_max": month_seconds_max, "kept_bytes_max": kept_bytes_max}
    )


def list_groups(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListGroupsAnswer, Group]:
    """Groups of people, with their members. Those one is in; administrators see all."""
    return Listing(
        Call("GET", "/v1/groups", ListGroupsAnswer, query={"limit": limit, "after": after}), lambda page: page.groups, lambda page:
        page.next
    )


def put_group(*, name: str, members: Sequence[str], idempotency_key: str | None = None) -> Call[Group]:
    """A group and all of its members, who replace those before. Scope admin."""
    return Call("POST", "/v1/groups", Group, body={"name": name, "members": members}, keyed=True, key=idempotency_key)


def set_group(
    name: str, *, parent: str | None | Unset = UNSET, weight: float | None | Unset = UNSET, devices_max: int | None | Unset = UNSET,
    running_max: int | None | Unset = UNSET, queued_max: int | None | Unset = UNSET, month_seconds_max: float | None | Unset = UNSET,
    kept_bytes_max: int | None | Unset = UNSET, time_limit_s: float | None | Unset = UNSET, slice_s: float | None | Unset = UNSET,
    lease_limit_s: float | None | Unset = UNSET, retention_s: float | None | Unset = UNSET
) -> Call[SetGroupAnswer]:
    """Where a group stands in the tree of accounts, its weight and its limits. Scope admin. A limit holds for all that is charged to the
    group and to those below it."""
    return Call(
        "PATCH", f"/v1/groups/{segment(name)}", SetGroupAnswer, body={"parent": parent, "weight": weight, "devices_max": devices_max,
        "running_max": running_max, "queued_max": queued_max, "month_seconds_max": month_seconds_max, "kept_bytes_max": kept_bytes_max,
        "time_limit_s": time_limit_s, "slice_s": slice_s, "lease_limit_s": lease_limit_s, "retention_s": retention_s}
    )


def remove_group(name: str) -> Call[None]:
    """Remove a group; what was shared with it is its owners' alone again. Scope admin. 409 while groups are below it or jobs that have not
    ended are charged to it."""
    return Call("DELETE", f"/v1/groups/{segment(name)}", None)


def get_usage(
    *, from_: datetime | Unset = UNSET, to: datetime | Unset = UNSET, by: Literal['user', 'group', 'device'] | Unset = UNSET
) -> Call[GetUsageAnswer]:
    """What was used between two times, from the ledger. Scope jobs:read; everybody sees everybody's. A second of a device that computes a
    job at half of the reference card's speed is charged as half a second. Days of which only sums are kept count whole."""
    return Call("GET", "/v1/usage", GetUsageAnswer, query={"from": from_, "to": to, "by": by})


def get_shares(*, half_life: int | Unset = UNSET) -> Call[GetSharesAnswer]:
    """What everybody is due and has used, those first who are furthest below their share. Scope jobs:read; everybody sees everybody's."""
    return Call("GET", "/v1/shares", GetSharesAnswer, query={"half_life": half_life})


def get_records(*, from_: datetime | Unset = UNSET, to: datetime | Unset = UNSET) -> Call[GetRecordsAnswer]:
    """What a simulation of a span of time needs beside the jobs that arrived in it. Scope jobs:read; everybody sees everybody's. Read by
    `motley simulate`."""
    return Call("GET", "/v1/records", GetRecordsAnswer, query={"from": from_, "to": to})


def list_arrivals(
    *, from_: datetime | Unset = UNSET, to: datetime | Unset = UNSET, limit: int | Unset = UNSET, after: str | Unset = UNSET
) -> Listing[ListArrivalsAnswer, ListArrivalsAnswerArrival]:
    """The jobs that arrived in a span of time. Scope jobs:read; everybody sees everybody's, without names and specifications."""
    return Listing(
        Call("GET", "/v1/arrivals", ListArrivalsAnswer, query={"from": from_, "to": to, "limit": limit, "after": after}), lambda page:
        page.arrivals, lambda page: page.next
    )


def list_audit(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListAuditAnswer, AuditRow]:
    """What people and administrators changed, newest first. Scope admin."""
    return Listing(
        Call("GET", "/v1/audit", ListAuditAnswer, query={"limit": limit, "after": after}), lambda page: page.audit, lambda page: page.next
    )


def list_tokens(*, limit: int | Unset = UNSET, after: str | Unset = UNSET) -> Listing[ListTokensAnswer, Token]:
    """Tokens, without their secrets. Administrators see all, others their own."""
    return Listing(
        Call("GET", "/v1/tokens", ListTokensAnswer, query={"limit": limit, "after": after}), lambda page: page.tokens, lambda page:
        page.next
    )


def add_token(
    *, user: str | None | Unset = UNSET, note: str | None | Unset = UNSET, expires_in: float | str | None | Unset = UNSET,
    scopes: Sequence[Literal['jobs:read', 'jobs:write', 'nodes:read', 'nodes:write', 'models:read', 'models:write', 'leases:write',
    'admin']] | None | Unset = UNSET, idempotency_key: str | None = None
) -> Call[AddTokenAnswer]:
    """A new token, of oneself or (scope admin) of another user, who is made if need be. Never with a scope that the token one asks with
    lacks, nor one that lives longer: without `expires_in` it ends with that one, without `scopes` it has the usual ones of those."""
    return Call(
        "POST", "/v1/tokens", AddTokenAnswer, body={"user": user, "note": note, "expires_in": expires_in, "scopes": scopes}, keyed=True,
        key=idempotency_key
    )


def revoke_token(id: int) -> Call[None]:
    """Revoke a token. One's own; an administrator's anybody's. It stops working within 5 seconds everywhere."""
    return Call("DELETE", f"/v1/tokens/{segment(id)}", None)


def open_session(*, x_motley: str, Origin: str, code: str | Unset = UNSET, token: str | Unset = UNSET) -> Call[SignedIn]:
    """Sign in to the page. Takes a code of `POST /v1/session-codes` or a token, and sets a cookie (HttpOnly, SameSite=Strict, over TLS
    Secure) with a token of its own: of the same scopes, for 12 hours at most, and valid only while the token that it was made of is. A
    body without either is for a client of a reverse proxy that says who signed in to it (`proxy_user` in the server's configuration):
    the session is that user's, with the usual scopes. With the cookie in the place of a bearer token, every method but GET and HEAD
    needs the header `X-Motley` and an `Origin` that is this server's, as this request does; 403 otherwise. What is not valid: 401."""
    return Call("POST", "/v1/session", SignedIn, headers={"X-Motley": x_motley, "Origin": Origin}, body={"code": code, "token": token})


def close_session() -> Call[None]:
    """Sign out of the page. Revokes the session's token, which it is asked with, and removes the cookie. 409 with another token."""
    return Call("DELETE", "/v1/session", None)


def add_session_code(*, idempotency_key: str | None = None) -> Call[AddSessionCodeAnswer]:
    """A code that signs in to the page once, within ten minutes. Of the token that it is asked with; a session gets none (403)."""
    return Call("POST", "/v1/session-codes", AddSessionCodeAnswer, keyed=True, key=idempotency_key)


def get_provider() -> Call[GetProviderAnswer]:
    """The OpenID provider that people sign in by. What the page shows before anybody has signed in. Both are null where there is none."""
    return Call("GET", "/v1/oidc", GetProviderAnswer)


def begin_sign_in(*, x_motley: str, Origin: str) -> Call[BeginSignInAnswer]:
    """Begin to sign in to the page by the OpenID provider. Answers where the browser goes, and sets a cookie that binds the sign-in to it
    for ten minutes. The provider sends the browser to the page's address `/oidc/callback`, and that shows what came with it to `POST
    /v1/oidc/session` (authorization code flow with PKCE). 502 and 503: the provider does not answer as one. 404: there is none."""
    return Call("POST", "/v1/oidc/login", BeginSignInAnswer, headers={"X-Motley": x_motley, "Origin": Origin})


def end_sign_in(*, x_motley: str, Origin: str, code: str, state: str, iss: str | Unset = UNSET) -> Call[SignedIn]:
    """Sign in to the page with what the OpenID provider gave the browser. Sets a session's cookie, as `POST /v1/session` does. 403 says why
    nobody is signed in: another browser's sign-in, an ID token that does not hold, a person in none of `allowed_groups`, or one who is
    no user here."""
    return Call(
        "POST", "/v1/oidc/session", SignedIn, headers={"X-Motley": x_motley, "Origin": Origin}, body={"code": code, "state": state, "iss":
        iss}
    )


def begin_device() -> Call[BeginDeviceAnswer]:
    """Begin to sign a program in by the OpenID provider (device flow, RFC 8628). The person opens the address, enters the code and agrees;
    meanwhile the program asks `POST /v1/oidc/token` every `interval` seconds. 422: the provider has no device flow. 404: there is no
    provider."""
    return Call("POST", "/v1/oidc/device", BeginDeviceAnswer)


def end_device(*, device_code: str) -> Call[SignedIn]:
    """A token for a program whose person has agreed at the OpenID provider."""
    return Call("POST", "/v1/oidc/token", SignedIn, body={"device_code": device_code})


def add_socket_token() -> Call[SignedIn]:
    """A token for an account of the server's own machine, by its unix socket. Who asks is the account of the process that connected. 403 by
    any other way."""
    return Call("POST", "/v1/socket-token", SignedIn)


def get_openapi() -> Call[str]:
    """This description."""
    return Call("GET", "/v1/openapi.yaml", str)


def get_health() -> Call[Status]:
    """Is the process alive."""
    return Call("GET", "/healthz", Status)


def get_ready() -> Call[GetReadyAnswer]:
    """Can it serve (is the database there, with the right schema). A scheduler that decides nothing does not make the api unready: `status`
    stays `ready`, and `scheduler` says so."""
    return Call("GET", "/readyz", GetReadyAnswer)


def get_metrics() -> Call[str]:
    """Numbers for Prometheus."""
    return Call("GET", "/metrics", str)


class Operations:
    """Every operation of the service that speaks JSON, as a method."""
    list_jobs = SyncPages(list_jobs)
    submit_job = SyncCall(submit_job)
    validate_job = SyncCall(validate_job)
    cancel_jobs = SyncCall(cancel_jobs)
    hold_jobs = SyncCall(hold_jobs)
    release_jobs = SyncCall(release_jobs)
    ask_plan = SyncCall(ask_plan)
    get_cluster_file = SyncCall(get_cluster_file)
    get_storage = SyncCall(get_storage)
    get_job = SyncCall(get_job)
    change_job = SyncCall(change_job)
    remove_job = SyncCall(remove_job)
    cancel_job = SyncCall(cancel_job)
    extend_job = SyncCall(extend_job)
    hold_job = SyncCall(hold_job)
    release_job = SyncCall(release_job)
    resume_job = SyncCall(resume_job)
    share_job = SyncCall(share_job)
    list_metrics = SyncPages(list_metrics)
    list_logs = SyncPages(list_logs)
    get_job_plan = SyncCall(get_job_plan)
    list_runs = SyncPages(list_runs)
    get_trace = SyncCall(get_trace)
    get_why = SyncCall(get_why)
    get_lanes = SyncCall(get_lanes)
    list_artifacts = SyncPages(list_artifacts)
    list_notices = SyncPages(list_notices)
    change_notices = SyncCall(change_notices)
    get_queue = SyncPages(get_queue)
    get_file_manifest = SyncCall(get_file_manifest)
    list_models = SyncPages(list_models)
    add_model = SyncCall(add_model)
    get_model = SyncCall(get_model)
    remove_model = SyncCall(remove_model)
    list_nodes = SyncPages(list_nodes)
    get_load = SyncPages(get_load)
    list_links = SyncPages(list_links)
    list_leases = SyncPages(list_leases)
    make_lease = SyncCall(make_lease)
    extend_lease = SyncCall(extend_lease)
    end_lease = SyncCall(end_lease)
    remove_node = SyncCall(remove_node)
    list_devices = SyncPages(list_devices)
    change_device = SyncCall(change_device)
    drain_node = SyncCall(drain_node)
    undrain_node = SyncCall(undrain_node)
    drain_device = SyncCall(drain_device)
    undrain_device = SyncCall(undrain_device)
    list_profiles = SyncPages(list_profiles)
    import_profiles = SyncCall(import_profiles)
    add_join_token = SyncCall(add_join_token)
    revoke_join_tokens = SyncCall(revoke_join_tokens)
    enroll = SyncCall(enroll)
    renew_certificate = SyncCall(renew_certificate)
    who_am_i = SyncCall(who_am_i)
    list_users = SyncPages(list_users)
    set_user = SyncCall(set_user)
    list_groups = SyncPages(list_groups)
    put_group = SyncCall(put_group)
    set_group = SyncCall(set_group)
    remove_group = SyncCall(remove_group)
    get_usage = SyncCall(get_usage)
    get_shares = SyncCall(get_shares)
    get_records = SyncCall(get_records)
    list_arrivals = SyncPages(list_arrivals)
    list_audit = SyncPages(list_audit)
    list_tokens = SyncPages(list_tokens)
    add_token = SyncCall(add_token)
    revoke_token = SyncCall(revoke_token)
    open_session = SyncCall(open_session)
    close_session = SyncCall(close_session)
    add_session_code = SyncCall(add_session_code)
    get_provider = SyncCall(get_provider)
    begin_sign_in = SyncCall(begin_sign_in)
    end_sign_in = SyncCall(end_sign_in)
    begin_device = SyncCall(begin_device)
    end_device = SyncCall(end_device)
    add_socket_token = SyncCall(add_socket_token)
    get_openapi = SyncCall(get_openapi)
    get_health = SyncCall(get_health)
    get_ready = SyncCall(get_ready)
    get_metrics = SyncCall(get_metrics)


class AsyncOperations:
    """The same, to be awaited."""
    list_jobs = AsyncPages(list_jobs)
    submit_job = AsyncCall(submit_job)
    validate_job = AsyncCall(validate_job)
    cancel_jobs = AsyncCall(cancel_jobs)
    hold_jobs = AsyncCall(hold_jobs)
    release_jobs = AsyncCall(release_jobs)
    ask_plan = AsyncCall(ask_plan)
    get_cluster_file = AsyncCall(get_cluster_file)
    get_storage = AsyncCall(get_storage)
    get_job = AsyncCall(get_job)
    change_job = AsyncCall(change_job)
    remove_job = AsyncCall(remove_job)
    cancel_job = AsyncCall(cancel_job)
    extend_job = AsyncCall(extend_job)
    hold_job = AsyncCall(hold_job)
    release_job = AsyncCall(release_job)
    resume_job = AsyncCall(resume_job)
    share_job = AsyncCall(share_job)
    list_metrics = AsyncPages(list_metrics)
    list_logs = AsyncPages(list_logs)
    get_job_plan = AsyncCall(get_job_plan)
    list_runs = AsyncPages(list_runs)
    get_trace = AsyncCall(get_trace)
    get_why = AsyncCall(get_why)
    get_lanes = AsyncCall(get_lanes)
    list_artifacts = AsyncPages(list_artifacts)
    list_notices = AsyncPages(list_notices)
    change_notices = AsyncCall(change_notices)
    get_queue = AsyncPages(get_queue)
    get_file_manifest = AsyncCall(get_file_manifest)
    list_models = AsyncPages(list_models)
    add_model = AsyncCall(add_model)
    get_model = AsyncCall(get_model)
    remove_model = AsyncCall(remove_model)
    list_nodes = AsyncPages(list_nodes)
    get_load = AsyncPages(get_load)
    list_links = AsyncPages(list_links)
    list_leases = AsyncPages(list_leases)
    make_lease = AsyncCall(make_lease)
    extend_lease = AsyncCall(extend_lease)
    end_lease = AsyncCall(end_lease)
    remove_node = AsyncCall(remove_node)
    list_devices = AsyncPages(list_devices)
    change_device = AsyncCall(change_device)
    drain_node = AsyncCall(drain_node)
    undrain_node = AsyncCall(undrain_node)
    drain_device = AsyncCall(drain_device)
    undrain_device = AsyncCall(undrain_device)
    list_profiles = AsyncPages(list_profiles)
    import_profiles = AsyncCall(import_profiles)
    add_join_token = AsyncCall(add_join_token)
    revoke_join_tokens = AsyncCall(revoke_join_tokens)
    enroll = AsyncCall(enroll)
    renew_certificate = AsyncCall(renew_certificate)
    who_am_i = AsyncCall(who_am_i)
    list_users = AsyncPages(list_users)
    set_user = AsyncCall(set_user)
    list_groups = AsyncPages(list_groups)
    put_group = AsyncCall(put_group)
    set_group = AsyncCall(set_group)
    remove_group = AsyncCall(remove_group)
    get_usage = AsyncCall(get_usage)
    get_shares = AsyncCall(get_shares)
    get_records = AsyncCall(get_records)
    list_arrivals = AsyncPages(list_arrivals)
    list_audit = AsyncPages(list_audit)
    list_tokens = AsyncPages(list_tokens)
    add_token = AsyncCall(add_token)
    revoke_token = AsyncCall(revoke_token)
    open_session = AsyncCall(open_session)
    close_session = AsyncCall(close_session)
    add_session_code = AsyncCall(add_session_code)
    get_provider = AsyncCall(get_provider)
    begin_sign_in = AsyncCall(begin_sign_in)
    end_sign_in = AsyncCall(end_sign_in)
    begin_device = AsyncCall(begin_device)
    end_device = AsyncCall(end_device)
    add_socket_token = AsyncCall(add_socket_token)
    get_openapi = AsyncCall(get_openapi)
    get_health = AsyncCall(get_health)
    get_ready = AsyncCall(get_ready)
    get_metrics = AsyncCall(get_metrics)
