"""Made by client/generate.py from api/openapi.yaml: change that, and run it again."""
from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Mapping, Sequence

from ._json import UNSET, Answered, Sent, Unset


@dataclass(frozen=True, kw_only=True)
class ProblemError(Answered):
    pointer: str  # /train/batch_rows
    detail: str


@dataclass(frozen=True, kw_only=True)
class PlanRankTensor(Answered):
    kv_heads: list[int] | None = None
    columns: list[int] | None = None


@dataclass(frozen=True, kw_only=True)
class PlanRank(Answered):
    rank: int
    device: str
    like: str | None = None  # the catalogue's entry that it is estimated as
    runs: str | None = None  # real, emulated, planned only; with `like`: whether jobs run on such a card
    stage: int | None = None
    blocks: list[int] | None = None
    block_ranges: list[list[int]] | None = None
    rows: int | None = None
    state_share: float | None = None
    experts: int | None = None
    experts_held: str | None = None
    expert_ranges: list[list[int]] | None = None
    tensor: PlanRankTensor | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    device_base_bytes: int | None = None
    process_base_bytes: int | None = None
    moments_host_bytes: int | None = None
    memory: dict[str, int] | None = None  # by purpose
    busy_s: float | None = None
    recompute: bool | None = None
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlanAlternative(Answered):
    placement: str
    device: str | None = None
    like: str | None = None
    runs: str | None = None
    verdict: str
    step_s: float | None = None
    needs_bytes: int | None = None
    has_bytes: int | None = None
    stages: int | None = None
    micro_batch_rows: int | None = None
    schedule: str | None = None
    runnable: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PlanLeftOut(Answered):
    device: str
    why: str
    like: str | None = None
    runs: str | None = None
    step_s_with: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlanAnswerWouldGain(Answered):
    what: str
    step_s: float
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class PlanAnswerRestsOn(Answered):
    measured: float | None = None
    imported: float | None = None
    estimated: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlanAnswerModel(Answered):
    parameters: int | None = None
    trained: int | None = None
    method: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlanAnswerCorrected(Answered):
    """what earlier runs changed: how many, and the factor that step_s contains"""
    runs: int
    times: float


@dataclass(frozen=True, kw_only=True)
class DataStats(Answered):
    rows: int | None = None
    tokens: int | None = None
    labelled: int | None = None  # tokens that are learnt
    sum_sq: int | None = None  # the sum of the squares of the rows' lengths, which attention costs
    longest: int | None = None
    truncated: int | None = None
    first_truncated_line: int | None = None  # 0: none
    dropped: int | None = None
    first_dropped_line: int | None = None  # 0: none
    format: str | None = None
    bin_tokens: int | None = None  # the width of a bin of lengths
    lengths: list[int] | None = None  # rows by length
    said: str | None = None  # all of it in a sentence
    doubts: list[str] | None = None  # what looks wrong: rows that were dropped, unknown roles
    first: str | None = None  # the first row, what is learnt between ⟦ and ⟧


@dataclass(frozen=True, kw_only=True)
class PlanAnswerData(Answered):
    train: DataStats | None = None
    eval: DataStats | None = None


@dataclass(frozen=True, kw_only=True)
class PlanAnswer(Answered):
    verdict: str  # fits, does not fit; others may come
    words: str | None = None
    placement: str | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    lower_bound_s: float | None = None
    used_bound_s: float | None = None  # the same bound for the devices of the plan alone
    plan_s: float | None = None
    steps: int | None = None  # of the job; 0: not known, as its rows are not
    ranks: list[PlanRank] | None = None
    alternatives: list[PlanAlternative] | None = None
    left_out: list[PlanLeftOut] | None = None
    would_gain: list[PlanAnswerWouldGain] | None = None  # other choices of the job, with which it would train at least a tenth faster
    schedule: str | None = None  # of several stages
    micro_batch_rows: int | None = None
    micro_batches: int | None = None
    shortfall_bytes: int | None = None  # when nothing fits: what the devices of the nearest placement lack
    digest: str | None = None
    repeats: str | None = None  # digest of the plan that a trial chose for this run, where it has that plan
    uncertainty: float | None = None  # relative, of step_s
    rests_on: PlanAnswerRestsOn | None = None
    links_emulated: bool | None = None
    runnable: bool | None = None
    model: PlanAnswerModel | None = None
    cost_per_million_tokens: float | None = None
    kwh_per_million_tokens: float | None = None
    basis: str | None = None
    corrected: PlanAnswerCorrected | None = None  # what earlier runs changed: how many, and the factor that step_s contains
    brief: bool | None = None  # of askPlan
    planner: dict[str, Any] | None = None  # of an external planner that was asked: name, verdict, why, plan_s, step_s, built_in_step_s, ratio
    warnings: list[str] | None = None  # what looks wrong in the measured tables it rests on, in the specification or in its data
    unmeasured: list[str] | None = None  # devices whose costs are estimates
    data: PlanAnswerData | None = None
    program: str | None = None
    inputs: dict[str, Any] | None = None  # specification, config, row sizes, devices, profiles, links


@dataclass(frozen=True, kw_only=True)
class Problem(Answered):
    type: str  # urn:motley:problem:CODE
    instance: str  # urn:motley:request:ID, with the id of X-Request-Id
    errors: list[ProblemError] | None = None  # With 422, every place in the body that is wrong (32 at most), the one of `detail` first.
    title: str
    status: int
    detail: str  # A sentence that names the thing, the place and the limit.
    code: str  # invalid, not-found, unauthenticated, denied, conflict, limit, too-big, no-fit …
    plan: PlanAnswer | None = None  # With no-fit: the plan that shows by how much.


@dataclass(frozen=True, kw_only=True)
class JobLine(Answered):
    id: int
    name: str
    owner: str | None = None
    visibility: str | None = None  # mine, group, everyone; others may come
    group: str | None = None  # that it is shared with
    labels: dict[str, str] | None = None  # Texts to find the job by.
    state: str  # held, queued, starting, running, stopping, succeeded, failed, cancelled; others may come
    priority: int | None = None
    created: str | None = None
    updated: str | None = None
    attempt: int | None = None
    step: int | None = None  # steps done
    steps: int | None = None
    loss: float | None = None
    why: str | None = None
    ended_by: str | None = None  # time_limit; others may come
    array_of: int | None = None  # of an element, its array
    index: int | None = None  # of an element, its number there, from 0
    elements: int | None = None  # of an array: how many it has


@dataclass(frozen=True, kw_only=True)
class ListJobsAnswer(Answered):
    jobs: list[JobLine]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class Submitted(Answered):
    id: int
    state: str  # held, queued, starting, running, stopping, succeeded, failed, cancelled; others may come
    created: datetime
    warnings: list[str] | None = None  # what looks wrong in the specification or its data; absent: nothing


@dataclass(frozen=True, kw_only=True)
class SpecificationMethod(Sent):
    """what is trained"""
    kind: Literal['lora', 'full'] | Unset = UNSET  # adapters, or all weights
    base: Literal['fp32', 'bf16', 'fp16', 'nf4', 'packed'] | Unset = UNSET  # how frozen weights are stored; packed: in the quantised blocks of the file
    double_quant: bool | Unset = UNSET  # the scales of nf4 are quantised, too
    optimizer: Literal['adamw', 'adamw8bit'] | Unset = UNSET  # adamw8bit keeps its moments in 8 bits
    rank: int | Unset = UNSET  # of the adapters
    alpha: float | Unset = UNSET  # the adapter's product is scaled by alpha / rank
    dropout: float | Unset = UNSET  # share of an adapter's inputs that a step leaves out
    targets: Sequence[str] | str | Unset = UNSET  # names of matrices or tables (lm_head, embed_tokens) or ends of their modules' names, all-linear, or one regular expression; absent: attention's (q_proj, k_proj, v_proj, o_proj, or their like)
    target_parameters: Sequence[str] | None | Unset = UNSET  # names, or ends of names, of tensors of all experts of a layer, which get adapters as peft's target_parameters have them: mlp.experts.gate_up_proj, mlp.experts.down_proj; targets may be [] beside them
    exclude_modules: Sequence[str] | str | None | Unset = UNSET  # what of the targets is left out, named likewise
    layers_to_transform: Sequence[int] | int | None | Unset = UNSET  # numbers of the layers that get adapters, from 0; null: all
    layers_pattern: Sequence[str] | str | None | Unset = UNSET  # the name before the layer's number, for layers_to_transform; null: any
    rank_pattern: Mapping[str, int] | Unset = UNSET  # ranks by names or regular expressions, as peft has them; the first that matches counts
    alpha_pattern: Mapping[str, float] | Unset = UNSET  # alphas, likewise
    rslora: bool | Unset = UNSET  # the product is scaled by alpha / sqrt(rank) (Kalajdzievski 2023)
    modules_to_save: Sequence[Literal['embed_tokens', 'lm_head']] | Unset = UNSET  # trained whole beside the adapter
    start_from: str | None | Unset = UNSET  # a peft adapter to go on from


@dataclass(frozen=True, kw_only=True)
class SpecificationData(Sent):
    """the rows"""
    train: str  # the rows to learn: a file, or hf:OWNER/NAME of the Hub
    eval: str | None | Unset = UNSET  # the file of evaluation rows
    format: Literal['auto', 'alpaca', 'chat', 'text', 'tokens', 'sharegpt', 'prompt-completion', 'prompt-completion-chat'] | Unset = UNSET  # of the rows; auto: found from their keys
    sequence_tokens: int | Unset = UNSET  # longer rows are cut
    shuffle: bool | Unset = UNSET  # each epoch in another order
    learn: Literal['answer', 'all'] | Unset = UNSET  # which tokens count in the loss
    chat_template: str | Mapping[str, Any] | None | Unset = UNSET  # auto (the model's own), a name such as chatml, or an object of turns
    day: str | Unset = UNSET  # what strftime_now of the chat template tells


@dataclass(frozen=True, kw_only=True)
class SpecificationTrain(Sent):
    """the optimiser and its steps"""
    batch_rows: int | Unset = UNSET  # rows of a step, over all devices
    steps: int | Unset = UNSET  # 100 without this and epochs
    epochs: int | Unset = UNSET  # passes over the data; beside steps: so many steps in passes that end as epochs do
    learning_rate: float | Unset = UNSET  # the schedule's peak
    schedule: Literal['cosine', 'linear', 'constant', 'constant_with_warmup', 'cosine_with_min_lr', 'cosine_warmup_with_min_lr', 'cosine_with_restarts', 'polynomial', 'inverse_sqrt', 'warmup_stable_decay'] | Unset = UNSET  # of the learning rate, by transformers' names
    warmup_steps: int | Unset = UNSET  # steps in which the rate rises to its peak
    final_fraction: float | Unset = UNSET  # share of the peak at the end of a schedule that ends
    cycles: int | Unset = UNSET  # of cosine_with_restarts
    power: float | Unset = UNSET  # of polynomial
    decay_steps: int | Unset = UNSET  # of warmup_stable_decay
    weight_decay: float | Unset = UNSET  # decoupled from the gradient
    decay: Literal['all', 'matrices'] | Unset = UNSET  # what weight decay applies to; matrices: no norms, no biases, as in transformers' Trainer
    betas: Sequence[float] | Unset = UNSET  # of AdamW
    eps: float | Unset = UNSET  # of AdamW
    clip_norm: float | Unset = UNSET  # 0: no clipping
    seed: int | Unset = UNSET  # of order, dropout and new adapters
    compute: Literal['auto', 'fp32', 'bf16', 'fp16'] | Unset = UNSET  # what the operands of products are rounded to; auto: what is fastest on the devices of the job's first plan, and fp32 unless a card multiplies 16 bits faster
    recompute: bool | Literal['auto'] | Unset = UNSET  # auto, or whether the backward pass computes activations again
    label_smoothing: float | Unset = UNSET  # share of the target given to all tokens
    neftune_alpha: float | Unset = UNSET  # 0: no noise on the embeddings
    router_aux: bool | float | Unset = UNSET  # true: the model's own coefficient


@dataclass(frozen=True, kw_only=True)
class SpecificationPlacementCount(Sent):
    """how many devices the job is to have"""
    least: int | Unset = UNSET  # the job waits while its plan has fewer devices
    most: int | Unset = UNSET  # at most so many devices


@dataclass(frozen=True, kw_only=True)
class SpecificationPlacement(Sent):
    """where it may run"""
    kind: Literal['auto', 'single', 'pipeline', 'data', 'hybrid', 'expert', 'tensor', 'server'] | Unset = UNSET  # how the model is split; auto: what is fastest
    devices: Sequence[str] | None | Unset = UNSET  # the devices that may be used; null: any
    exclude: Sequence[str] | Unset = UNSET  # devices that may not be used
    count: SpecificationPlacementCount | Unset = UNSET  # how many devices the job is to have
    micro_batch_rows: int | Literal['auto'] | Unset = UNSET  # rows that a rank computes at a time
    stages: int | Literal['auto'] | Unset = UNSET  # of a pipeline
    schedule: Literal['auto', '1f1b', 'gpipe', 'interleaved', 'split'] | Unset = UNSET  # the order of a pipeline's instructions
    boundary: Literal['auto', 'fp32', 'bf16', 'fp16'] | Unset = UNSET  # What activations and gradients between ranks are rounded to; auto: as train.compute
    moments: Literal['device', 'host'] | Unset = UNSET  # Where the optimiser's moments lie between updates
    objective: Literal['time', 'cost', 'energy'] | Unset = UNSET  # the least seconds a step, price a token, or energy a token
    fallback: Literal['wait', 'any'] | Unset = UNSET  # When `kind` does not fit the devices that are there: wait for others, or be placed as any kind
    move: Literal['auto', 'never'] | Unset = UNSET  # Whether the running job moves to another plan when that pays
    trials: int | Unset = UNSET  # how many other plans, no slower by their forecasts as far as these can tell, the first steps are run on in turn; the one that was fastest is kept
    planner: str | None | Unset = UNSET  # a planner that the scheduler's configuration names, or `built-in`; for administrators (scope admin)
    plan: Mapping[str, Any] | None | Unset = UNSET  # the plan to run, as `motley get` writes it (or its member `plan`), in the place of a search; the job never moves from it


@dataclass(frozen=True, kw_only=True)
class SpecificationResult(Sent):
    """what is written at the end"""
    kind: Literal['adapter', 'merged', 'gguf'] | Unset = UNSET  # of method.kind full it is always merged
    dtype: Literal['fp32', 'bf16', 'fp16'] | None | Unset = UNSET  # null: as the base's file has it


@dataclass(frozen=True, kw_only=True)
class SpecificationCheckpoint(Sent):
    """what is kept on the way"""
    every_steps: int | Unset = UNSET  # 0: only at the end
    keep: int | Unset = UNSET  # so many of the last ones


@dataclass(frozen=True, kw_only=True)
class SpecificationEval(Sent):
    """loss of held-out rows, on wherever data.eval names some"""
    every_steps: int | Unset = UNSET  # 0: only before the first and after the last step


@dataclass(frozen=True, kw_only=True)
class SpecificationSample(Sent):
    """an answer of the model, before and after"""
    prompt: str  # what the model is asked before and after
    tokens: int | Unset = UNSET  # of its answer
    temperature: float | Unset = UNSET  # 0: greedy
    seed: int | Unset = UNSET  # of the answer's draws


@dataclass(frozen=True, kw_only=True)
class SpecificationLimits(Sent):
    """of time and attempts"""
    retries: int | Unset = UNSET  # attempts after losses of workers since the newest checkpoint
    time: float | str | None | Unset = UNSET  # after which the job stores a checkpoint and ends


@dataclass(frozen=True, kw_only=True)
class Specification(Sent):
    """Everything but `model` and `data.train` has a default. Unknown keys are refused by their path."""
    name: str | Unset = UNSET  # what lists call the job
    model: str  # a folder, a .gguf, a registered name, or OWNER/NAME of the Hub
    priority: int | Unset = UNSET  # higher goes first
    labels: Mapping[str, str] | Unset = UNSET  # Texts to find the job by.
    method: SpecificationMethod | Unset = UNSET  # what is trained
    data: SpecificationData  # the rows
    train: SpecificationTrain | Unset = UNSET  # the optimiser and its steps
    placement: SpecificationPlacement | Unset = UNSET  # where it may run
    result: SpecificationResult | Unset = UNSET  # what is written at the end
    checkpoint: SpecificationCheckpoint | Unset = UNSET  # what is kept on the way
    eval: SpecificationEval | None | Unset = UNSET  # loss of held-out rows, on wherever data.eval names some
    sample: SpecificationSample | None | Unset = UNSET  # an answer of the model, before and after
    limits: SpecificationLimits | None | Unset = UNSET  # of time and attempts
    hold: bool | Unset = UNSET  # queued, but not started before its release
    notify: str | None | Unset = UNSET  # the https:// or mailto: address that is told when the job ends or is held; none: no address; null is the submitter's own (motley notify)
    account: str | None | Unset = UNSET  # the group that is charged; null is the submitter's default account
    service: Literal['urgent', 'normal', 'scavenger'] | Unset = UNSET  # urgent is for administrators (scope admin)
    begin: datetime | None | Unset = UNSET  # the job does not start before this time, such as 2026-01-31T08:00:00Z; in a file also 2h, from the submit on
    after: Sequence[int] | None | Unset = UNSET  # jobs that must have succeeded before it starts
    after_any: Sequence[int] | None | Unset = UNSET  # jobs that must have ended before it starts
    array: Mapping[str, Sequence[Any]] | None | Unset = UNSET  # One job for each combination of these values: `seed: [1, 2]`. Keys are those of `train` and `method` that change neither files nor devices; at most 1000 elements.
    at_most: int | None | Unset = UNSET  # elements of the array at once


@dataclass(frozen=True, kw_only=True)
class CommandedJobsJob(Answered):
    id: int
    state: str  # held, queued, starting, running, stopping, succeeded, failed, cancelled; others may come
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class CommandedJobsRefused(Answered):
    id: int
    code: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class CommandedJobs(Answered):
    jobs: list[CommandedJobsJob]
    refused: list[CommandedJobsRefused]
    more: bool  # true: further jobs match the filter


@dataclass(frozen=True, kw_only=True)
class GetStorageAnswerGroup(Answered):
    group: str
    retention_s: float  # its own time or that of a group above it


@dataclass(frozen=True, kw_only=True)
class GetStorageAnswerUser(Answered):
    user: str
    jobs: int  # that have ended
    checkpoints_bytes: int
    results_bytes: int
    uploads_bytes: int
    kept_bytes_max: int | None = None  # that checkpoints and results of ended jobs may have; 0 is any number


@dataclass(frozen=True, kw_only=True)
class GetStorageAnswer(Answered):
    groups: list[GetStorageAnswerGroup]  # those of which what ended jobs left goes after a time; administrators see all, others their own
    users: list[GetStorageAnswerUser]
    database_bytes: int
    disk_bytes: int  # of the disk that holds the files
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class JobArray(Answered):
    """of an array; null: the job is none"""
    size: int  # elements
    made: int  # elements that are jobs by now
    at_most: int | None  # elements at once
    states: dict[str, int]  # how many of those jobs are in each state


@dataclass(frozen=True, kw_only=True)
class ModelBase(Answered):
    """What adapters name as their base (base_model_name_or_path, revision of adapter_config.json)."""
    name: str  # OWNER/NAME of the hub, an absolute path of its owner's machine, or a registered name
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobInputsSample(Answered):
    ids: list[int] | None = None


@dataclass(frozen=True, kw_only=True)
class JobInputs(Answered):
    """What the specification's names stood for when it was submitted."""
    model: str | None = None  # content id; null: it is still to be fetched from the Hub
    base: ModelBase | None = None  # What adapters name as their base (base_model_name_or_path, revision of adapter_config.json).
    train: str | None = None  # key of the encoded data set
    eval: str | None = None
    adapter: dict[str, str] | None = None  # files' SHA-256
    sample: JobInputsSample | None = None
    expert_share: list[list[float] | None] | None = None
    compute: Literal['fp32', 'bf16', 'fp16'] | None = None  # what a job with train.compute: auto is computed in, since its first run
    plan: str | None = None  # digest of the plan with which the next run begins where its devices are free; of a job whose plans were tried (trial)


@dataclass(frozen=True, kw_only=True)
class TrialPlan(Answered):
    digest: str | None = None
    placement: str
    devices: list[str]
    predicted_s: float  # seconds of a step
    measured_s: float | None  # seconds of a step; null: it was not tried


@dataclass(frozen=True, kw_only=True)
class Trial(Answered):
    """The first steps of a job, run on its best plans in turn (placement.trials). Only plans whose forecasts lie within each other's
    uncertainty are tried, in at most 2 % of the job's predicted time."""
    state: str  # trying, done, given up; others may come
    at: int | None = None  # index of the plan that runs, or runs next
    chosen: int | None = None  # index of the plan that was kept
    words: str | None = None  # what was tried and what it saved, in a sentence, once the trial has ended
    plans: list[TrialPlan]  # the plan with the best forecast first
    plan: str | None = None  # digest of the plan with which the next run begins
    moves: int | None = None
    unsure: float | None = None  # relative error of the forecasts: the spread of past ones, or 0.15
    step_tokens: float | None = None
    budget_s: float | None = None  # seconds that the trial may take
    spent_s: float | None = None  # seconds that moves took, and steps on slower plans took longer
    saves_s: float | None = None  # seconds that the plan kept takes less than the first one, by the measured times


@dataclass(frozen=True, kw_only=True)
class Yield(Answered):
    """the run was asked for a checkpoint, after which it stops and goes on elsewhere; it keeps its devices if none is stored in time"""
    why: str | None = None  # scavenger, owner, urgent, slice; others may come
    job: int | None = None  # to which it yields
    by: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class RunRankMemory(Answered):
    """As the worker measured it at its end, in bytes."""
    peak: dict[str, int] | None = None  # by purpose
    predicted: dict[str, int] | None = None  # by purpose
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    predicted_bytes: int | None = None
    device_base_bytes: int | None = None
    vm_hwm_bytes: int | None = None
    process_base_bytes: int | None = None
    predicted_base_bytes: int | None = None
    early_bytes: int | None = None
    host: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class RunRank(Answered):
    rank: int
    node: str
    device: str
    state: str  # sent, ready, running, done, failed, stopped, lost; others may come
    code: str | None = None
    why: str | None = None
    memory: RunRankMemory | None = None  # As the worker measured it at its end, in bytes.


@dataclass(frozen=True, kw_only=True)
class JobRun(Answered):
    id: int
    attempt: int | None = None
    epoch: int | None = None
    state: str
    why: str | None = None
    yields: Yield | None = None  # the run was asked for a checkpoint, after which it stops and goes on elsewhere; it keeps its devices if none is stored in time
    plan_answer: PlanAnswer | None = None
    limit_at: datetime | None = None  # when its time limit is used up
    step_s: float | None = None  # seconds per step as predicted and corrected by what was measured
    started: datetime | None = None
    ended: datetime | None = None
    ranks: list[RunRank] | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Answered):
    step: int
    best: bool
    at: datetime
    blobs: dict[str, Any]  # files by name


@dataclass(frozen=True, kw_only=True)
class Artifact(Answered):
    name: str
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class JobNotice(Answered):
    id: int
    event: str  # succeeded, failed, cancelled, held; the job's new state
    state: str  # waiting, delivered, given up, dropped; others may come
    attempts: int
    at: datetime  # when the job's state changed
    next: datetime | None  # when a waiting one is tried again
    why: str | None  # what the last attempt failed for


@dataclass(frozen=True, kw_only=True)
class Job(Answered):
    id: int
    name: str
    owner: str | None = None
    visibility: str | None = None  # mine, group, everyone; others may come
    group: str | None = None  # that it is shared with
    labels: dict[str, str] | None = None  # Texts to find the job by.
    state: str  # held, queued, starting, running, stopping, succeeded, failed, cancelled; others may come
    priority: int | None = None
    created: str | None = None
    updated: str | None = None
    attempt: int | None = None
    step: int | None = None  # steps done
    steps: int | None = None
    loss: float | None = None
    why: str | None = None
    started: datetime | None = None
    ended: datetime | None = None
    account: str | None = None  # the group that is charged
    service: str | None = None  # urgent, normal, scavenger; others may come
    begins: datetime | None = None  # it does not start before
    place: int | None = None  # of a job that waits, 1 is the first
    wait: str | None = None  # code of the reason for which it waits; others may come
    waits_for: int | None = None  # the job that it waits for
    starts: datetime | None = None  # predicted
    array_of: int | None = None  # of an element, its array
    index: int | None = None  # of an element, its number there, from 0
    array: JobArray | None = None  # of an array; null: the job is none
    files_until: str | None = None  # of a job that has ended: when its checkpoints and results go, by a rule of its group; null: not by themselves
    files_gone: str | None = None  # when they went
    losses: int | None = None  # attempts that were lost since the last newer checkpoint
    stop_why: str | None = None  # why its run was told to stop
    held_by_admin: bool | None = None  # only an administrator may release it
    ended_by: str | None = None  # time_limit; what ended a job that succeeded so far; resume goes on from its last checkpoint
    code: str | None = None  # the name of the error that it failed with; dependency: it was to start after a job that did not succeed
    spec: dict[str, Any]  # The specification with every default filled
    inputs: JobInputs | None = None  # What the specification's names stood for when it was submitted.
    trial: Trial | None = None
    run: JobRun | None = None
    checkpoints: list[Checkpoint] | None = None
    artifacts: list[Artifact] | None = None
    notices: list[JobNotice] | None = None  # what its owner was told, at most the 20 newest; null: the job is somebody else's


@dataclass(frozen=True, kw_only=True)
class ChangeJobAnswer(Answered):
    id: int
    state: str  # held, queued, starting, running, stopping, succeeded, failed, cancelled; others may come
    priority: int
    begins: datetime | None
    at_most: int | None


@dataclass(frozen=True, kw_only=True)
class RemoveJobAnswer(Answered):
    id: int
    removed: list[int]
    bytes: int  # of files that nothing refers to any more


@dataclass(frozen=True, kw_only=True)
class Commanded(Answered):
    id: int
    state: str  # held, queued, starting, running, stopping, succeeded, failed, cancelled; others may come
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExtendJobAnswer(Answered):
    id: int
    time_limit_s: float


@dataclass(frozen=True, kw_only=True)
class ShareJobAnswer(Answered):
    id: int
    visibility: str  # mine, group, everyone; others may come
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Metric(Answered):
    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None  # before clipping; null of a step that was skipped
    loss_scale: int | None = None  # of a job in fp16
    skipped: bool | None = None  # true: its gradients or its loss were not finite, and nothing was changed
    learning_rate: float | None = None
    rows: int | None = None
    tokens: int | None = None
    labelled_tokens: int | None = None
    seconds: float | None = None
    eval: str | None = None  # of an evaluation: which data
    prompt: str | None = None  # of a sample
    ids: list[int] | None = None  # of a sample: the tokens that were drawn
    text: str | None = None  # of a sample: the tokens as text
    rank: int | None = None  # of a line of kind ranks
    device: str | None = None
    compute_s: float | None = None  # of a rank: seconds of the step in which it computed
    wait_s: float | None = None
    send_s: float | None = None  # beside the other two
    wall_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series(Answered):
    """Of the steps of a bucket that have a value; null when none has."""
    least: float
    mean: float  # Of tokens_per_s: all tokens by all seconds.
    most: float
    last: float


@dataclass(frozen=True, kw_only=True)
class MetricBucket(Answered):
    step: int  # Where the bucket begins.
    first: int  # The first step in it.
    last: int
    steps: int
    skipped: int  # Steps whose gradients or loss were not finite.
    tokens: int | None = None
    loss: Series | None  # Of the steps of a bucket that have a value; null when none has.
    grad_norm: Series | None  # Of the steps of a bucket that have a value; null when none has.
    learning_rate: Series | None  # Of the steps of a bucket that have a value; null when none has.
    loss_scale: Series | None  # Of the steps of a bucket that have a value; null when none has.
    seconds: Series | None  # Of the steps of a bucket that have a value; null when none has.
    tokens_per_s: Series | None  # Of the steps of a bucket that have a value; null when none has.


@dataclass(frozen=True, kw_only=True)
class ListMetricsAnswer(Answered):
    lines: list[Metric]
    width: int | None = None  # Of a bucket, in steps; null without steps.
    buckets: list[MetricBucket] | None = None
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class LogLine(Answered):
    at: datetime | None = None
    level: str | None = None  # debug, info, warn, error; others may come
    text: str | None = None
    rank: int | None = None
    device: str | None = None
    move: dict[str, Any] | None = None  # of a line that says that the job moves, or why not


@dataclass(frozen=True, kw_only=True)
class ListLogsAnswer(Answered):
    lines: list[LogLine]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page
    last: str | None = None  # `after` for lines that come later, also when nothing is there yet


@dataclass(frozen=True, kw_only=True)
class ProgramRank(Answered):
    device: str
    node: str
    stage: int | None = None
    blocks: list[int] | None = None
    ranges: list[list[int]] | None = None
    rows: int | None = None
    rows_share: float | None = None
    state_share: float | None = None
    owns_tied: bool | None = None
    copies_tied: bool | None = None
    experts: Any = None  # null, or which experts it holds
    recompute: bool | None = None
    window: int | None = None
    memory: dict[str, int] | None = None  # by purpose
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    device_base_bytes: int | None = None
    process_base_bytes: int | None = None
    busy_s: float | None = None
    slots: list[dict[str, Any]] | None = None
    programs: dict[str, Any] | None = None  # train, evaluate, save: lists of instructions
    updates: list[list[int]] | None = None
    programs_digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan(Answered):
    """docs/PROGRAM.md has it. placement.plan of a specification takes it as it is."""
    version: int | None = None
    digest: str | None = None
    placement: str | None = None
    schedule: str | None = None
    block_count: int | None = None
    batch_rows: int | None = None
    micro_batches: int | None = None
    tokens_bound: int | None = None  # tokens of a micro-batch at most
    rows_bound: int | None = None
    labelled_bound: int | None = None
    sequence_bound: int | None = None
    compute: Literal['fp32', 'bf16', 'fp16'] | None = None  # what the operands of products are rounded to; absent: fp32
    trains_embedding: bool | None = None
    ranks: list[ProgramRank] | None = None
    groups: list[dict[str, Any]] | None = None  # of ranks that reduce together
    costs: dict[str, Any] | None = None  # what was predicted when it was made


@dataclass(frozen=True, kw_only=True)
class GetJobPlanAnswer(Answered):
    run: int
    attempt: int | None = None
    epoch: int | None = None
    plan: Plan  # docs/PROGRAM.md has it. placement.plan of a specification takes it as it is.
    answer: PlanAnswer | None = None


@dataclass(frozen=True, kw_only=True)
class Run(Answered):
    id: int
    attempt: int | None = None
    epoch: int | None = None
    state: str
    why: str | None = None
    yields: Yield | None = None  # the run was asked for a checkpoint, after which it stops and goes on elsewhere; it keeps its devices if none is stored in time
    start_step: int | None = None  # that it went on from
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    ranks: list[RunRank] | None = None


@dataclass(frozen=True, kw_only=True)
class ListRunsAnswer(Answered):
    runs: list[Run]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class TraceEvent(Answered):
    """Chrome's trace format."""
    ph: str
    pid: int
    tid: int | None = None
    name: str | None = None
    cat: str | None = None
    ts: float | None = None
    dur: float | None = None
    cname: str | None = None
    args: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class GetTraceAnswer(Answered):
    displayTimeUnit: str | None = None
    traceEvents: list[TraceEvent]


@dataclass(frozen=True, kw_only=True)
class GetWhyAnswerSooner(Answered):
    kind: str  # run, lease, device, limit, steps, memory, devices; others may come
    words: str
    starts: str  # predicted start with the change


@dataclass(frozen=True, kw_only=True)
class GetWhyAnswer(Answered):
    id: int
    state: str  # held, queued, starting, running, stopping, succeeded, failed, cancelled; others may come
    why: str
    code: str | None = None
    run: JobRun | None = None  # the newest run
    place: int | None = None  # in the queue, from 1
    wait: str | None = None  # why it waits: devices, reserved, absent, user-devices, …
    waits_for: int | None = None  # the job that the reason names
    starts: str | None = None  # predicted
    starts_earliest: str | None = None  # of a queued job: the range of its start; null: too little is known
    starts_latest: str | None = None
    ranges: int | None = None  # of a queued job: how many of the last thousand starts had been told as ranges
    ranges_right: float | None = None  # the share of them that was right
    sooner: list[GetWhyAnswerSooner] | None = None  # of a queued job: what would let it start sooner, the soonest first; null: not answered yet, ask again


@dataclass(frozen=True, kw_only=True)
class LanesRank(Answered):
    rank: int
    device: str
    node: str
    offset_ns: int  # Added to the rank's own clock.
    residual_ns: int | None
    compute_predicted_ns: int | None
    compute_measured_ns: int | None
    predicted: list[list[int]]
    measured: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class LanesDifference(Answered):
    rank: int
    instr: int
    op: str
    queue: int
    micro_batch: int  # -1: the whole step.
    peer: int  # -1: none.
    predicted_ns: int
    measured_ns: int


@dataclass(frozen=True, kw_only=True)
class Lanes(Answered):
    run: int
    step: int | None  # The measured step; null: none was recorded.
    steps: list[int]  # The recorded steps.
    from_ns: int
    to_ns: int
    end_ns: int  # The longer of both.
    predicted_ns: int | None  # The predicted step's length.
    measured_ns: int | None
    residual_ns: int | None  # To how much the clocks are aligned; null: messages bound some clock on one side only.
    slack_ns: int  # By how much messages contradict each other; a clock was set meanwhile.
    unmatched: int  # Recorded events that are no instruction of the plan.
    columns: list[str]  # What the numbers of a box are.
    queues: list[str]
    ops: list[str]
    ranks: list[LanesRank]
    differences: list[LanesDifference]  # Instructions whose predicted and measured time differ most, of the whole step.


@dataclass(frozen=True, kw_only=True)
class ListArtifactsAnswerArtifact(Answered):
    name: str
    sha256: str
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class ListArtifactsAnswer(Answered):
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page
    artifacts: list[ListArtifactsAnswerArtifact]


@dataclass(frozen=True, kw_only=True)
class Notice(Answered):
    id: int
    user: str
    job: int
    event: str  # succeeded, failed, cancelled, held; the job's new state
    state: str  # waiting, delivered, given up, dropped; others may come
    url: str
    attempts: int
    at: datetime  # when the job's state changed
    next: datetime | None  # when a waiting one is tried again
    ended: datetime | None
    why: str | None  # what the last attempt failed for


@dataclass(frozen=True, kw_only=True)
class ListNoticesAnswer(Answered):
    url: str | None  # where oneself is told of jobs that name no address
    notices: list[Notice]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class ChangeNoticesAnswer(Answered):
    url: str | None
    key: str  # X-Motley-Signature is "sha256=" and the HMAC-SHA256 of a body with these characters


@dataclass(frozen=True, kw_only=True)
class SchedulerState(Answered):
    """How the scheduler's passes go. `deciding`; `failing`: each try fails, since `since`; `silent`: nothing was decided for ten seconds,
    since `since`; `absent`: none has led yet. Known within ten seconds."""
    state: str  # deciding, failing, silent, absent; others may come
    since: str | None = None
    why: str | None = None  # a sentence, of every state but deciding
    age_s: float | None = None  # seconds since nothing was left to decide
    set_aside_count: int  # jobs, devices and the like that passes leave out for a while, as the database refused what was decided of them


@dataclass(frozen=True, kw_only=True)
class GetQueueAnswerQueue(Answered):
    id: int
    name: str | None  # null: one may not see the job
    owner: str
    account: str | None
    service: str
    state: str
    priority: int
    place: int | None  # from 1; null: not looked at yet
    wait: str | None  # why it waits: devices, reserved, absent, user-devices, after, …
    waits_for: int | None  # the job that it waits for
    array_of: int | None  # of an element, its array
    index: int | None  # of an element, its number there, from 0
    elements: int | None  # of an array: how many it has
    made: int | None  # of an array: how many of them are jobs by now
    devices: list[str]
    since: str | None  # when it started, or since when it waits
    starts: str | None  # predicted
    starts_earliest: str | None = None  # the range of the start; null: too little is known
    starts_latest: str | None = None
    ends: str | None  # predicted
    ends_by: str | None  # time_limit; what ends it then, before its steps do


@dataclass(frozen=True, kw_only=True)
class GetQueueAnswer(Answered):
    jobs: dict[str, int]  # how many jobs are in each state
    scheduler: SchedulerState  # How the scheduler's passes go. `deciding`; `failing`: each try fails, since `since`; `silent`: nothing was decided for ten seconds, since `since`; `absent`: none has led yet. Known within ten seconds.
    queue: list[GetQueueAnswerQueue]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class GetFileManifestAnswer(Answered):
    size: int
    sha256: str
    chunk_bytes: int
    chunks: list[str]


@dataclass(frozen=True, kw_only=True)
class ModelFile(Answered):
    name: str | None = None
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Model(Answered):
    name: str | None
    owner: str | None = None
    visibility: str | None = None
    group: str | None = None
    content: str
    config: dict[str, Any] | None = None  # its config.json
    created: datetime | None = None
    info: dict[str, Any] | None = None
    base: ModelBase | None = None
    files: list[ModelFile] | None = None


@dataclass(frozen=True, kw_only=True)
class ListModelsAnswer(Answered):
    models: list[Model]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class AddModelBase(Sent):
    """What adapters name as their base: OWNER/NAME of the hub, or an absolute path of one's own machine, of which one inside a hub's cache
    becomes OWNER/NAME and revision. Absent: of `path`, its folder."""
    name: str
    revision: str | None | Unset = UNSET  # of a model of the hub


@dataclass(frozen=True, kw_only=True)
class AddModelFile(Sent):
    name: str
    sha256: str
    size: int | None | Unset = UNSET


@dataclass(frozen=True, kw_only=True)
class ListNodesAnswerUnknownJob(Answered):
    job: int
    node: str
    run: int
    reported: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class ListNodesAnswerNode(Answered):
    name: str
    state: str  # joining, alive, leaving, left, unreachable, barred; others may come; leaving: its agent is being stopped, and its jobs move; left: it was stopped in good order; barred: it flooded Redis and may come back with a new join token
    leaves: datetime | None = None  # from when on jobs are to leave it, as its agent said: it is being stopped, or its machine is taken away some time later
    refused: int | None = None  # messages of it that were refused since it joined
    clock_ahead_s: float | None = None  # how far its clock is ahead of that of the scheduler, in seconds; below 0, behind
    disk_bytes: int | None = None  # of the disk with the home of its agent; null where that has not said it
    disk_free_bytes: int | None = None  # what its user may still take of it
    lacking: str | None = None  # what its devices lack in order to run a worker: nothing starts there until it is mended
    why: str | None = None  # a clock that is 30 s or more off, what is lacking, that workers are in no sandbox, and why the last message was refused
    marked: datetime | None = None
    address: str | None = None
    release: str | None = None  # of its agent, such as 0.1.0; null: it has not said hello, or is older than this member
    protocol: int | None = None  # of its agent: those whose numbers differ by at most 1 work together; null as for release
    faults: list[str] | None = None  # what its agent found wrong with the machine, each a sentence that says what to do
    machine_id: str | None = None
    devices: int | None = None  # how many
    enrolled: datetime | None = None
    last_seen: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class ListNodesAnswer(Answered):
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page
    incarnation: str | None = None  # Which life of the database this is; a restored backup begins another.
    unknown_jobs: list[ListNodesAnswerUnknownJob] | None = None  # Jobs that nodes remember from before a backup was restored and that it does not know; the newest 1000.
    nodes: list[ListNodesAnswerNode]


@dataclass(frozen=True, kw_only=True)
class LoadPoint(Answered):
    at: datetime
    compute_s: float
    wait_s: float
    send_s: float
    temperature_c: float | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceLoad(Answered):
    name: str
    compute_s: float
    wait_s: float
    send_s: float
    held_s: float
    free_s: float
    temperature_c: float | None = None
    points: list[LoadPoint] | None = None


@dataclass(frozen=True, kw_only=True)
class GetLoadAnswer(Answered):
    from_: datetime = field(metadata={"name": "from"})
    to: datetime
    devices: list[DeviceLoad]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class Link(Answered):
    from_: str = field(metadata={"name": "from"})
    to: str
    latency_s: float
    bytes_per_s: float
    duplex_bytes_per_s: float | None = None  # each way while both ways are in use; 0 or absent if not measured
    unreachable: bool | None = None  # `from` could open no connection to `to`: bytes_per_s is 1, and no plan uses this way
    why: str | None = None  # of an unreachable one
    emulated: bool | None = None  # The mesh delays and paces it.
    measured_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class ListLinksAnswer(Answered):
    links: list[Link]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class Lease(Answered):
    id: int
    device: str
    holder: str
    account: str  # the group that is charged; empty for none
    kind: str  # lease or maintenance
    note: str
    begins: datetime
    ends: datetime
    active: bool  # it has begun and is not over


@dataclass(frozen=True, kw_only=True)
class ListLeasesAnswer(Answered):
    leases: list[Lease]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class RemoveNodeAnswer(Answered):
    name: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class DeviceCatalogue(Answered):
    """its last profile beside the catalogue's entry of that name, where there are both"""
    entry: str | None = None
    flops_per_s: float | None = None  # of a layer's forward pass, measured
    estimated_flops_per_s: float | None = None  # that the catalogue takes it to reach
    ratio: float | None = None  # the first by the second


@dataclass(frozen=True, kw_only=True)
class DeviceProducts(Answered):
    """what multiplies matrices on a card"""
    library: str | None = None  # the vendor's library, with its file and version; null: our own kernels
    why: str | None = None  # why no library of the vendor's does


@dataclass(frozen=True, kw_only=True)
class DeviceHealthMigSlice(Answered):
    uuid: str | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceHealthMig(Answered):
    mode: str | None = None
    slices: list[DeviceHealthMigSlice] | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceHealthLink(Answered):
    to: str | None = None  # the other card's PCI address
    level: str | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceHealth(Answered):
    """as its agent told last; of a card what the vendor's management library could say, of a CPU others_cores alone"""
    temperature_c: int | None = None
    power_w: int | None = None
    power_limit_w: int | None = None
    clock_khz: int | None = None
    clock_max_khz: int | None = None
    throttle: list[str] | None = None  # thermal, power, brake, hardware
    heat: float | None = None  # what is left of its speed, averaged
    ecc_uncorrected: int | None = None
    ecc_uncorrected_total: int | None = None
    xid: int | None = None
    xid_means: str | None = None  # whose fault that is, a program's or the card's, and what the card needs
    memory_bytes: int | None = None
    used_bytes: int | None = None
    others_bytes: int | None = None  # that others hold
    others_cores: float | None = None  # of the CPU's machine, on which processes compute that are not of its agent
    usable_bytes: int | None = None  # that plans may use now
    processes: int | None = None  # that compute there
    mig: DeviceHealthMig | None = None
    links: list[DeviceHealthLink] | None = None
    why: str | None = None  # why it cannot be asked


@dataclass(frozen=True, kw_only=True)
class Device(Answered):
    name: str
    node: str
    group: str | None = None  # whose it is; null: everybody's
    kind: str
    state: str  # free, busy, leased, lacking, draining, drained, unreachable or gone
    cpu: str | None = None  # the model of a CPU
    threads: int | None = None
    isa: str | None = None  # as configured: native, amx, avx512-bf16, avx512, avx2 or sse42
    isa_effective: str | None = None
    machine_id: str | None = None
    drained: bool | None = None
    lacks: str | None = None  # what it lacks in order to run a worker (state `lacking`); it is tried again by itself
    drain_why: str | None = None  # why it is drained
    drain_at: str | None = None  # until when what runs on it stays: a time, or "after jobs"
    catalogue: DeviceCatalogue | None = None  # its last profile beside the catalogue's entry of that name, where there are both
    memory_limit_bytes: int | None = None
    base_bytes: int | None = None  # of these, what a worker on a card takes for itself: scratch memory and the areas of its vendor's library of products; plans have the rest
    products: DeviceProducts | None = None  # what multiplies matrices on a card
    job: int | None = None  # what runs there; null of a job that one may not see
    job_owner: str | None = None  # whose job runs there, which everybody sees; null: none
    health: DeviceHealth | None = None  # as its agent told last; of a card what the vendor's management library could say, of a CPU others_cores alone


@dataclass(frozen=True, kw_only=True)
class ListDevicesAnswerUnused(Answered):
    node: str | None = None
    name: str | None = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class ListDevicesAnswer(Answered):
    devices: list[Device]
    unused: list[ListDevicesAnswerUnused] | None = None  # cards that are there, or were named, and are not used
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class ChangeDeviceAnswer(Answered):
    name: str
    group: str | None


@dataclass(frozen=True, kw_only=True)
class Drained(Answered):
    name: str
    drained: bool
    devices: list[str] | None = None
    drain_why: str | None = None
    drain_at: str | None = None  # a time, or "after jobs"; null: at once
    job: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProfilePoint(Answered):
    block: str | None = None
    rows: int | None = None
    tokens: float | None = None
    labelled: float | None = None
    sum_sq: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    recompute_s: float | None = None
    saved_bytes: int | None = None
    boundary_bytes: int | None = None
    workspace_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Profile(Answered):
    """A profile document (docs/CONTRACTS.md)."""
    device: str
    key: str
    content: str | None = None
    digest: str | None = None
    origin: str  # measured, imported; others may come
    owner: str | None = None  # who imported it
    measured_at: str | None = None
    shape: str | None = None  # digest of the model's shape
    method: str | None = None
    base: str | None = None
    compute: str | None = None
    isa: str | None = None
    threads: int | None = None
    neighbours_busy: bool | None = None  # other devices of the node computed meanwhile
    spread: float | None = None  # how much longer repeats took, relative
    waited_share: float | None = None  # of the time of measuring, in which other programs had its cores
    wire_s_per_byte: float | None = None  # CPU seconds in which the node sends a byte and receives another; absent: not measured
    noise: float | None = None  # by how much its times may be off, 0.1: by a tenth; absent: the device was quiet
    layer_flops: dict[str, float] | None = None  # by token, and by token squared
    step_s: dict[str, float] | None = None  # the optimiser's step, by block
    cut_share: dict[str, float] | None = None  # of the heads or columns, in attention_cut and ffn_cut
    weights_bytes: dict[str, float] | None = None  # by block
    adapter_bytes: dict[str, float] | None = None  # by block
    optimizer_bytes: dict[str, float] | None = None  # by block
    base_process_bytes: int | None = None
    points: list[ProfilePoint] | None = None


@dataclass(frozen=True, kw_only=True)
class ListProfilesAnswer(Answered):
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page
    profiles: list[Profile]
    links: list[Link]


@dataclass(frozen=True, kw_only=True)
class ImportProfilesAnswer(Answered):
    imported: int


@dataclass(frozen=True, kw_only=True)
class AddJoinTokenAnswer(Answered):
    token: str
    expires: str


@dataclass(frozen=True, kw_only=True)
class RevokeJoinTokensAnswer(Answered):
    revoked: int


@dataclass(frozen=True, kw_only=True)
class EnrollAnswerRedis(Answered):
    address: str | None = None
    user: str | None = None
    password: str | None = None
    tls: bool | None = None


@dataclass(frozen=True, kw_only=True)
class EnrollAnswer(Answered):
    node: str
    seal: str  # key of the MAC on its messages
    certificate: str
    ca: str
    token: str
    generation: int
    redis: EnrollAnswerRedis | None


@dataclass(frozen=True, kw_only=True)
class RenewCertificateAnswerRedis(Answered):
    """where it is now; user and password stay as they were"""
    address: str | None = None
    tls: bool | None = None


@dataclass(frozen=True, kw_only=True)
class RenewCertificateAnswer(Answered):
    node: str
    certificate: str
    ca: str
    generation: int
    redis: RenewCertificateAnswerRedis | None = None  # where it is now; user and password stay as they were


@dataclass(frozen=True, kw_only=True)
class WhoAmIAnswer(Answered):
    name: str
    kind: str  # user, agent; others may come
    expires: str | None = None  # of the token
    priority_max: int | None = None  # the ceiling of a user's jobs
    scopes: list[str]


@dataclass(frozen=True, kw_only=True)
class User(Answered):
    id: int
    name: str
    created: datetime | None = None
    priority_max: int | None = None
    disabled: bool | None = None
    account: str | None = None
    devices_max: int | None = None  # 0: no limit, as in the next ones.
    running_max: int | None = None
    queued_max: int | None = None
    month_seconds_max: int | None = None
    kept_bytes_max: int | None = None
    groups: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class ListUsersAnswer(Answered):
    users: list[User]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class SetUserAnswer(Answered):
    name: str
    told: int | None = None  # with `jobs`: how many jobs were held or cancelled


@dataclass(frozen=True, kw_only=True)
class Group(Answered):
    name: str
    members: list[str]
    parent: str | None = None
    weight: float | None = None
    devices_max: int | None = None
    running_max: int | None = None
    queued_max: int | None = None
    month_seconds_max: float | None = None
    kept_bytes_max: int | None = None
    time_limit_s: float | None = None
    slice_s: float | None = None
    lease_limit_s: float | None = None
    retention_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ListGroupsAnswer(Answered):
    groups: list[Group]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class SetGroupAnswer(Answered):
    name: str


@dataclass(frozen=True, kw_only=True)
class GetUsageAnswerUsage(Answered):
    name: str | None  # null: charged to no group
    held_s: float  # device-seconds
    charged_s: float  # device-seconds normalised by speed
    jobs: int


@dataclass(frozen=True, kw_only=True)
class GetUsageAnswer(Answered):
    usage: list[GetUsageAnswerUsage]


@dataclass(frozen=True, kw_only=True)
class GetSharesAnswerShare(Answered):
    user: str
    group: str | None
    due: float  # the part of everything that they are due
    used: float  # the part of everything that they used
    used_s: float  # charged device-seconds, halved every half-life
    rank: int


@dataclass(frozen=True, kw_only=True)
class GetSharesAnswer(Answered):
    half_life_s: float
    shares: list[GetSharesAnswerShare]


@dataclass(frozen=True, kw_only=True)
class GetRecordsAnswerDevice(Answered):
    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class GetRecordsAnswerClasse(Answered):
    id: int
    speeds: dict[str, float]  # by device, as a part of the reference device's


@dataclass(frozen=True, kw_only=True)
class GetRecordsAnswerForecast(Answered):
    class_: int = field(metadata={"name": "class"})
    devices: list[str]
    step_s: float | None  # predicted seconds a step; null: no plan fits
    runs: int  # runs on exactly these devices
    steps: int  # that they did
    seconds: float  # that they took


@dataclass(frozen=True, kw_only=True)
class GetRecordsAnswerLease(Answered):
    device: str
    begins: str
    ends: str


@dataclass(frozen=True, kw_only=True)
class GetRecordsAnswer(Answered):
    sharing: dict[str, Any] | None  # as in the scheduler's configuration
    users: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    devices: list[GetRecordsAnswerDevice]
    classes: list[GetRecordsAnswerClasse]
    forecasts: list[GetRecordsAnswerForecast]
    leases: list[GetRecordsAnswerLease]


@dataclass(frozen=True, kw_only=True)
class ListArrivalsAnswerArrival(Answered):
    id: int
    at: str  # since when it might have started
    user: str
    group: str | None
    class_: int = field(metadata={"name": "class"})
    service: str
    priority: int
    steps: int
    started: str | None
    ended: str | None
    state: str
    devices: list[str] | None  # of its last run
    step_s: float | None  # predicted seconds a step on them
    ran_s: float  # seconds that its runs took


@dataclass(frozen=True, kw_only=True)
class ListArrivalsAnswer(Answered):
    next: str | None
    arrivals: list[ListArrivalsAnswerArrival]


@dataclass(frozen=True, kw_only=True)
class AuditRow(Answered):
    id: int
    at: str
    who: str  # the user's name, or node:NAME
    user_id: int | None = None
    token: int | None = None  # the id of the token
    address: str | None = None
    what: str
    object: str
    before: Any = None
    after: Any = None


@dataclass(frozen=True, kw_only=True)
class ListAuditAnswer(Answered):
    audit: list[AuditRow]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class Token(Answered):
    id: int
    user: str
    scopes: list[str]
    note: str | None = None
    created: datetime | None = None
    expires: datetime | None = None
    made_by: int | None = None  # the token that it was made with
    session: bool  # of the page


@dataclass(frozen=True, kw_only=True)
class ListTokensAnswer(Answered):
    tokens: list[Token]
    next: str | None  # `after` of the next page, an opaque text; null: this is the last page


@dataclass(frozen=True, kw_only=True)
class AddTokenAnswer(Answered):
    id: int
    user: str
    token: str
    scopes: list[str]
    expires: str | None = None


@dataclass(frozen=True, kw_only=True)
class SignedIn(Answered):
    user: str
    scopes: list[str]
    expires: datetime
    token: str | None = None  # For programs; a session has its cookie


@dataclass(frozen=True, kw_only=True)
class AddSessionCodeAnswer(Answered):
    code: str
    expires: datetime


@dataclass(frozen=True, kw_only=True)
class GetProviderAnswer(Answered):
    issuer: str | None
    name: str | None  # What the page calls it


@dataclass(frozen=True, kw_only=True)
class BeginSignInAnswer(Answered):
    location: str


@dataclass(frozen=True, kw_only=True)
class BeginDeviceAnswer(Answered):
    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None  # The same with the code in it
    expires_in: int  # Seconds
    interval: int  # Seconds


@dataclass(frozen=True, kw_only=True)
class Status(Answered):
    status: str


@dataclass(frozen=True, kw_only=True)
class GetReadyAnswer(Answered):
    status: str
    scheduler: SchedulerState  # How the scheduler's passes go. `deciding`; `failing`: each try fails, since `since`; `silent`: nothing was decided for ten seconds, since `since`; `absent`: none has led yet. Known within ten seconds.
