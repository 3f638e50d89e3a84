"""A program on a pseudo-terminal, and what that terminal would show.

The screen knows the few control sequences that Motley writes. Any other one is a failure: so a text of somebody
that reaches the terminal as a control sequence is found.
"""
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata

from claims import SLOW, Failed, expect

SEQUENCE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


def own_terminal():
    """In the program, before it begins: the terminal is its own, so that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    def __init__(self, command, columns=100, rows=30):
        self.master, self.slave = pty.openpty()
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.pending = ""
        self.seen = ""  # everything that was written
        self.row = self.column = 0
        self.is_other = False  # the other screen, which a view has for itself, is shown
        self.is_stale = False  # since the size changed, no view has reached the last row
        self.columns, self.rows, self.cells = 0, 0, []
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True, preexec_fn=own_terminal)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, columns, rows):
        """As a window is made larger or smaller: the program is told, and what the screen had is gone."""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.row, self.column = min(self.row, rows - 1), min(self.column, columns - 1)
        if hasattr(self, "process"):
            self.is_stale = self.is_other  # what the program wrote before it knew may be for the larger size
            self.process.send_signal(signal.SIGWINCH)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def lines(self):
        return ["".join(row).rstrip() for row in self.cells]

    def text(self):
        return "\n".join(self.lines())

    def read(self, seconds=0.1):
        """Takes what was written; False when the program has closed the terminal and all of it was read."""
        if not select.select([self.master], [], [], seconds)[0]:
            return self.process.poll() is None
        self.pending += self.decoder.decode(os.read(self.master, 65536))
        self.take()
        return True

    def until(self, what, question, timeout=30):
        """Reads until the question (of this terminal) is true; what it answered is returned."""
        deadline = time.monotonic() + timeout * SLOW
        while True:
            answer = question(self)
            if answer and not self.is_stale:
                return answer
            going = self.read()
            expect(time.monotonic() < deadline, f"{what}: after {timeout} s the terminal shows\n{self.text()}")
            expect(going or question(self), f"{what}: the program ended ({self.process.returncode}) and the terminal shows\n{self.text()}")

    def shows(self, words, timeout=30):
        """Waits until the screen has these words (a regular expression)."""
        return self.until(f"no {words!r}", lambda terminal: re.search(words, terminal.text()), timeout)

    def end(self, status=0, timeout=30):
        """Waits for the program's end; the terminal must be as it was before."""
        deadline = time.monotonic() + timeout * SLOW
        while self.read():
            expect(time.monotonic() < deadline, f"it goes on after {timeout} s\n{self.text()}")
        expect(self.process.wait() == status, f"status {self.process.returncode}, not {status}\n{self.text()}")
        expect(termios.tcgetattr(self.slave) == self.before, "the terminal is left in another mode")

    # ---- what is written ----

    def take(self):
        while self.pending:
            if self.pending[0] != "\x1b":
                self.put(self.pending[0])
                self.advance(1)
                continue
            found = SEQUENCE.match(self.pending)
            if not found:
                if len(self.pending) < 16 and re.match(r"\x1b(\[[?0-9;]*)?$", self.pending):
                    return  # the rest of it comes
                raise Failed(f"a control sequence that is not Motley's: {self.pending[:20]!r}")
            self.control(found.group(1), found.group(2))
            self.advance(found.end())

    def advance(self, size):
        self.seen += self.pending[:size]
        self.pending = self.pending[size:]

    def put(self, character):
        if character == "\n":
            if self.row == self.rows - 1:
                self.cells = [*self.cells[1:], [" "] * self.columns]
            self.row = min(self.row + 1, self.rows - 1)
        elif character == "\r":
            self.column = 0
        else:
            category = unicodedata.category(character)
            expect(category not in ("Cc", "Cf"), f"a control character that is not Motley's: {character!r}")
            wide = 0 if category == "Mn" else 2 if unicodedata.east_asian_width(character) in "WF" else 1
            if self.column + wide > self.columns:  # lines of a log go on in the next row; those of a view must not
                if self.is_stale:
                    return
                expect(not self.is_other, f"a line of more than {self.columns} columns: {''.join(self.cells[self.row])!r} {character!r}")
                self.put("\n")
                self.put("\r")
            for at in range(self.column, self.column + wide):
                self.cells[self.row][at] = character if at == self.column else ""
            self.column += wide

    def control(self, numbers, letter):
        values = [int(each) if each else 1 for each in numbers.lstrip("?").split(";")]
        if letter == "H":
            # What was written for a larger size may come after the window is smaller: a terminal keeps the cursor in its window.
            row, column = values[0], values[1] if len(values) > 1 else 1
            self.row, self.column = min(row, self.rows) - 1, min(column, self.columns) - 1
            self.is_stale = self.is_stale and row != self.rows
        elif letter == "A":
            self.row = max(0, self.row - values[0])
        elif letter == "K":
            begin = 0 if numbers == "2" else self.column
            self.cells[self.row][begin:] = [" "] * (self.columns - begin)
        elif letter == "J":
            self.cells[self.row][self.column:] = [" "] * (self.columns - self.column)
            for row in range(self.row + 1, self.rows):
                self.cells[row] = [" "] * self.columns
        elif letter in "hl" and numbers in ("?1049", "?25"):
            if numbers == "?1049":
                self.is_other = letter == "h"
                self.cells = [[" "] * self.columns for _ in range(self.rows)]
        else:
            expect(letter == "m" and numbers in ("", "0", "1", "7"), f"a control sequence that is not Motley's: {numbers}{letter}")

