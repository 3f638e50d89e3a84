"""What a job made, as a model in memory. torch, transformers and peft are the caller's own."""
from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import Any

from . import files
from .client import Client
from .errors import MotleyError
from .jobs import RunningJob
from .models import Job


def cache_folder() -> Path:
    """Where models and adapters are kept: MOTLEY_CACHE, else ~/.cache/motley."""
    return Path(os.environ.get("MOTLEY_CACHE") or Path.home() / ".cache" / "motley")


def fetch(job: RunningJob | Job | int, *, client: Client | None = None, cache: str | os.PathLike[str] | None = None) -> Path:
    """A folder with what the job made: `adapter/` or `model/`."""
    handle = _handle(job, client)
    folder = Path(cache or cache_folder()) / "jobs" / _key(handle)
    handle.client.run(files.fetch_artifacts(handle.id, folder, handle.client.retry))
    return folder


def base(job: RunningJob | Job | int, *, client: Client | None = None, cache: str | os.PathLike[str] | None = None) -> Path:
    """A folder with the model that the job began with, as the service has it."""
    handle = _handle(job, client)
    inputs = handle.get().inputs
    if inputs is None or inputs.model is None:
        raise MotleyError(f"job {handle.id} does not say which model it began with: give load(…, base=FOLDER)")
    folder = Path(cache or cache_folder()) / "models" / inputs.model
    return handle.client.run(files.model_files(inputs.model, folder, handle.client.retry))


def load(job: RunningJob | Job | int, base_model: Any = None, *, client: Client | None = None,
         cache: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """The model that a job trained: the base model with its adapter by peft, or the merged or full model by transformers.

    `base_model` is a folder, a name of the hub or a model in memory; without it the service's own copy is fetched.
    `options` go to transformers' from_pretrained."""
    handle = _handle(job, client)
    folder = fetch(handle, cache=cache)
    if (folder / "model" / "config.json").exists():
        return _transformers().from_pretrained(str(folder / "model"), **options)
    if not (folder / "adapter" / "adapter_config.json").exists():
        raise MotleyError(f"job {handle.id} is {handle.state} and left neither adapter/ nor model/ (an adapter.gguf is for llama.cpp)")
    if base_model is None:
        base_model = base(handle, cache=cache)
    if isinstance(base_model, (str, os.PathLike)):
        base_model = _transformers().from_pretrained(os.fspath(base_model), **options)
    peft: Any = importlib.import_module("peft")
    return peft.PeftModel.from_pretrained(base_model, str(folder / "adapter"))


def _transformers() -> Any:
    module: Any = importlib.import_module("transformers")
    return module.AutoModelForCausalLM


def _handle(job: RunningJob | Job | int, client: Client | None) -> RunningJob:
    return job if isinstance(job, RunningJob) else (client or Client()).job(job)


def _key(handle: RunningJob) -> str:
    """A job's number says nothing without its service, and a resumed job makes other files."""
    made = "".join(sorted(artifact.sha256 for artifact in handle.client.list_artifacts(handle.id)))
    return f"{handle.id}-{hashlib.sha256(made.encode()).hexdigest()[:16]}"
