"""Loss curves: SVG of our own, or drawn on matplotlib's axes where somebody has them."""
from __future__ import annotations

import html
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .models import MetricBucket

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 40


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two others: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


class Picture:
    """A job's loss by step: the mean of each bucket, a band from the least to the most, held-out loss as dots."""

    def __init__(self, name: str, buckets: Sequence[MetricBucket], held_out: Sequence[MetricBucket]) -> None:
        self.name = name
        self.points = [(b.step + (b.steps - 1) / 2, b.loss.least, b.loss.mean, b.loss.most) for b in buckets if b.loss]
        self.dots = [(b.step, b.loss.last) for b in held_out if b.loss]

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> Path:
        to = Path(path)
        to.write_text(self.svg, encoding="utf-8")
        return to

    @property
    def svg(self) -> str:
        title = f"loss of {html.escape(self.name)}"
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
                f'font-family="sans-serif" font-size="12" role="img" aria-label="{title}">'
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/><text x="{LEFT}" y="22" font-size="14" fill="#222">{title}</text>')
        body = self._body() if self.points or self.dots else f'<text x="{LEFT}" y="{HEIGHT // 2}" fill="#666">no step was done yet</text>'
        return head + body + "</svg>"

    def _body(self) -> str:
        values = [v for _, least, _, most in self.points for v in (least, most)] + [v for _, v in self.dots]
        steps = [point[0] for point in self.points] + [step for step, _ in self.dots]
        low, high = min(values), max(values)
        room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        low, high, first, last = low - room, high + room, min(steps), max(max(steps), min(steps) + 1)

        def x(step: float) -> str:
            return f"{LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT):.1f}"

        def y(value: float) -> str:
            return f"{TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM):.1f}"

        out: list[str] = []
        for value in ticks(low, high):
            out.append(f'<path d="M{LEFT} {y(value)}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>'
                       f'<text x="{LEFT - 8}" y="{y(value)}" dy="4" text-anchor="end" fill="#444">{value:.4g}</text>')
        for step in ticks(first, last):
            out.append(f'<text x="{x(step)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#444">{step:.6g}</text>')
        out.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end" fill="#444">step</text>')
        if self.points:
            band = " ".join([f"{x(s)},{y(most)}" for s, _, _, most in self.points] +
                            [f"{x(s)},{y(least)}" for s, least, _, _ in reversed(self.points)])
            line = " ".join(f"{x(s)},{y(mean)}" for s, _, mean, _ in self.points)
            out.append(f'<polygon points="{band}" fill="#1f77b4" fill-opacity="0.25" stroke="#1f77b4" stroke-opacity="0.25"/>'
                       f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>')
        out += [f'<circle cx="{x(s)}" cy="{y(v)}" r="3" fill="#d62728"><title>held-out loss {v:.4f} at step {s}</title></circle>'
                for s, v in self.dots]
        if self.dots:
            out.append(f'<text x="{WIDTH - RIGHT}" y="22" text-anchor="end" fill="#d62728">● held-out</text>')
        return "".join(out)

    def draw(self, axes: Any) -> Any:
        """The same on matplotlib's axes, for figures of one's own. matplotlib itself is the caller's."""
        steps = [point[0] for point in self.points]
        axes.fill_between(steps, [point[1] for point in self.points], [point[3] for point in self.points], alpha=0.25)
        axes.plot(steps, [point[2] for point in self.points], label=self.name)
        if self.dots:
            axes.plot([step for step, _ in self.dots], [value for _, value in self.dots], "o", label=f"{self.name}, held-out")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        return axes
