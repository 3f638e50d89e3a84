#!/usr/bin/env python3
"""Draws the growth that bench_planner_search printed: seconds to a plan and the ratio to the lower bound over the
number of devices, both axes logarithmic, with the limits set for 64, 512 and 4,096 devices.

    draw_planner_growth.py RESULTS.txt PICTURE.svg
"""
import math
import re
import sys

LINE = re.compile(r"^\s*(\d+) devices\s+([\d.]+) s\s+ratio\s+([\d.]+|-)\s+peak (\d+) MiB")
LIMITS = {64: 0.2, 512: 3.0, 4096: 60.0}
LEFT, TOP, WIDTH, HEIGHT = 70, 30, 620, 360


def read(path):
    with open(path, encoding="utf-8") as file:
        found = [LINE.match(line) for line in file]
    return [(int(m[1]), float(m[2]), m[3], int(m[4])) for m in found if m]


def main():
    points = read(sys.argv[1])
    if not points:
        sys.exit(f"{sys.argv[1]}: no line of growth in it")
    x_low, x_high = math.log2(points[0][0]), math.log2(max(points[-1][0], 4096))
    y_low, y_high = -2.0, 2.0

    def x_of(devices):
        return LEFT + WIDTH * (math.log2(devices) - x_low) / (x_high - x_low)

    def y_of(seconds):
        return TOP + HEIGHT * (y_high - math.log10(max(seconds, 0.01))) / (y_high - y_low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{TOP + HEIGHT + 60}" '
           'font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{LEFT}" y="18">seconds of one core to a plan (dots; beside them the step over the lower bound), '
           'limits (bars)</text>']
    for exponent in range(-2, 3):
        y = y_of(10 ** exponent)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** exponent:g} s</text>')
    for exponent in range(math.ceil(x_low), math.floor(x_high) + 1):
        x = x_of(2 ** exponent)
        out.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{2 ** exponent}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2:.0f}" y="{TOP + HEIGHT + 40}" text-anchor="middle">devices</text>')
    for devices, seconds in LIMITS.items():
        x, y = x_of(devices), y_of(seconds)
        out.append(f'<line x1="{x - 14:.1f}" y1="{y:.1f}" x2="{x + 14:.1f}" y2="{y:.1f}" stroke="#c33" '
                   'stroke-width="3"/>')
    path = " ".join(f"{x_of(d):.1f},{y_of(s):.1f}" for d, s, _, _ in points)
    out.append(f'<polyline points="{path}" fill="none" stroke="#36c" stroke-width="2"/>')
    for devices, seconds, ratio, _ in points:
        x, y = x_of(devices), y_of(seconds)
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#36c"/>')
        out.append(f'<text x="{x + 7:.1f}" y="{y + 15:.1f}" fill="#555">{ratio}</text>')
    out.append("</svg>")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
