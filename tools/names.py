"""Static functions whose name another file's function has, too: a search or a debugger then finds both."""
import recursion

# It has the names of the vendors' table, which its macros paste.
PASTED = {"engine/gpu/vendor_driver.c"}


def find(paths, read):
    """Yields (file, line, name, other files) of each such name."""
    files = {}
    for path, text, _, line in recursion.functions([p for p in paths if p not in PASTED], read).values():
        head = recursion.FUNCTION.match(text)
        files.setdefault(head.group(2), {})[path] = (line, "static" in (head.group(1) or ""))
    for name, at in sorted(files.items()):
        statics = [path for path, (_, static) in at.items() if static]
        if len(at) > 1 and statics:
            yield statics[0], at[statics[0]][0], name, sorted(set(at) - {statics[0]})
