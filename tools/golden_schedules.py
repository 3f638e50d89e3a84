#!/usr/bin/env python3
"""Learning rates of transformers' schedules, for tests/model/test_spec.c.

Run with a Python that has torch and transformers (versions: ../shared/golden/versions.json); prints JSON:
a list of {spec: train settings as a specification has them, steps, rate: the learning rate of each step}.
transformers begins at rate 0 (t/W) and Motley at peak/W ((t+1)/W, docs/INTERFACES.md): warm-ups are ours
but for cosine_warmup_with_min_lr, which begins as Motley does. Beyond the last step transformers' half cosines
rise again, and Motley stays where it was: those end with the last step here.
"""
import json

import torch
from transformers import get_scheduler

PEAK = 3e-3
CASES = [
    ("linear", {}, {}, 0.0),
    ("cosine", {}, {}, 0.0),
    ("constant_with_warmup", {}, {}, 0.1),
    ("cosine_with_min_lr", {}, {"min_lr_rate": 0.2}, 0.2),
    ("cosine_warmup_with_min_lr", {}, {"min_lr_rate": 0.2}, 0.2),
    ("cosine_with_restarts", {"cycles": 3}, {"num_cycles": 3}, 0.0),
    ("polynomial", {"power": 2.0}, {"power": 2.0, "lr_end": 0.1 * PEAK}, 0.1),
    ("polynomial", {"power": 0.5}, {"power": 0.5, "lr_end": 0.0}, 0.0),
    ("inverse_sqrt", {}, {}, 0.1),
    ("warmup_stable_decay", {"decay_steps": 9}, {"num_decay_steps": 9, "min_lr_ratio": 0.05}, 0.05),
]


def rates(name, warmup, steps, extra):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=PEAK)
    schedule = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps,
                             scheduler_specific_kwargs=dict(extra))
    out = []
    for _ in range(steps + 6):
        out.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return out


def main():
    cases = []
    for name, settings, extra, final in CASES:
        for warmup, steps in ((0, 20), (5, 24)):
            rate = rates(name, warmup, steps, extra)
            if name.startswith("cosine") and name != "cosine_with_restarts":
                rate = rate[:steps]
            if name != "cosine_warmup_with_min_lr":
                rate[:warmup] = [PEAK * (t + 1) / warmup for t in range(warmup)]
            spec = {"schedule": name, "learning_rate": PEAK, "warmup_steps": warmup, "final_fraction": final, **settings}
            cases.append({"spec": spec, "steps": steps, "rate": [float("%.12g" % r) for r in rate]})
    print("[" + ",\n".join(json.dumps(case) for case in cases) + "]")


if __name__ == "__main__":
    main()
