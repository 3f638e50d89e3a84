/* A terminal for a full-screen program: its size, output cut to that size, and single keys.
 *
 * The program must close an open screen before it ends, on errors too; that restores the terminal.
 */
#ifndef MOTLEY_CLI_SCREEN_H
#define MOTLEY_CLI_SCREEN_H

#include <stdbool.h>
#include <stdio.h>
#include <termios.h>

#include "common/err.h"

enum screen_key { KEY_NONE = 0, KEY_ESCAPE = 27, KEY_UP = 256, KEY_DOWN, KEY_PAGE_UP, KEY_PAGE_DOWN };

struct screen {
    bool is_open;
    struct termios before;
    int signals;        /* signalfd of SIGINT, SIGTERM, SIGHUP and SIGWINCH */
    unsigned key_count; /* bytes in keys[] that were read from the terminal and not returned yet */
    unsigned char keys[64];
};

/* Sets the size of stdout's terminal; 80 by 24 when it is unknown. */
void screen_size(unsigned *columns, unsigned *rows);
/* Switches to the terminal's alternate screen and to reading single keys without echo. SIGINT, SIGTERM and
 * SIGHUP are blocked and read from `signals`. stdin and stdout must be a terminal. */
int screen_open(struct screen *screen, struct err *err);
void screen_close(struct screen *screen);
/* Returns the next key or character that was typed, or KEY_NONE when there is none. *end becomes true after
 * SIGINT, SIGTERM or SIGHUP, or when the terminal is gone. */
int screen_key(struct screen *screen, bool *end);
/* Writes the first `rows` lines of a text, each cleaned (show_clean) and cut to `columns`, and returns their
 * number. A line that begins with SCREEN_BOLD is bold. `end` is written after each line. */
#define SCREEN_BOLD '\1'
unsigned screen_lines(const char *text, unsigned columns, unsigned rows, const char *end);

#endif
