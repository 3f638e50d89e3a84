#!/usr/bin/env python3
"""Prints the layering table of docs/DESIGN.md, made from tools/lint.py: what each room may include, and its parts."""
import lint

BEGIN, END = "<!-- made by tools/layering.py -->", "<!-- end -->"


def table():
    lines = ["| room | may include | its parts, from the bottom up |", "|---|---|---|"]
    for room, others in lint.MAY_INCLUDE.items():
        named = [f"{other} (descriptions)" if (room, other) == ("planner", "model") else
                 f"{other} (policies, simulator)" if (room, other) == ("cli", "scheduler") else other
                 for other in lint.MAY_INCLUDE if other in others]
        lines.append(f"| `{room}/` | {', '.join(named) or 'third-party only'} | {', '.join(lint.PARTS.get(room, []))} |")
    return "\n".join(lines)


def is_in(text):
    """Whether a document has the table as it is now."""
    return f"{BEGIN}\n{table()}\n{END}" in text


if __name__ == "__main__":
    print(table())
