"""Motley from Python: submit, follow, draw and load what a lab's service trains."""
from ._call import APages, Call, Listing, Pages
from ._json import UNSET, Unset
from ._wire import Retry
from .client import AsyncClient, Client, Server
from .errors import (BadAnswer, Busy, Conflict, Corrupt, Denied, Fault, Invalid, JobFailed, Limited, MotleyError, NoFit, NotFound, Refused, Stale,
                     TooBig, Unauthenticated, Unreachable)
from .jobs import RunningJob
from .models import Job, Specification
from .picture import Picture
from .streams import Event

__version__ = "0.1.0"
__all__ = [
    "UNSET", "APages", "AsyncClient", "BadAnswer", "Busy", "Call", "Client", "Conflict", "Corrupt", "Denied", "Event", "Fault", "Invalid", "Job",
    "JobFailed", "Limited", "Listing", "MotleyError", "NoFit", "NotFound", "Pages", "Picture", "Refused", "Retry", "RunningJob", "Server",
    "Specification", "Stale", "TooBig", "Unauthenticated", "Unreachable", "Unset",
]
