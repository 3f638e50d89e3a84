/* A terminal: how large it is, texts that fit into it, and keys as they are pressed.
 *
 * Whoever opens it must close it on every way out: it then is as it was.
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
    int signals;        /* a descriptor that can be read when a signal to end, or of another size, came */
    unsigned key_count; /* of those that were read */
    unsigned char keys[64];
};

/* How large the terminal of stdout is; 80 by 24 where it does not say. */
void screen_size(unsigned *columns, unsigned *rows);
/* Shows another screen and takes keys one by one, unseen. Signals to end (SIGINT, SIGTERM, SIGHUP) are
 * blocked and read from `signals`. stdin and stdout must be a terminal. */
int screen_open(struct screen *screen, struct err *err);
void screen_close(struct screen *screen);
/* Reads what came. Returns a key or a character, KEY_NONE when there is none; *end becomes true after a
 * signal to end or when the terminal is gone. */
int screen_key(struct screen *screen, bool *end);
/* Writes the first lines of a text that fit, cut and cleaned (show_clean), and returns how many. A line that
 * begins with SCREEN_BOLD is bold. `end` is written after each line. */
#define SCREEN_BOLD '\1'
unsigned screen_lines(const char *text, unsigned columns, unsigned rows, const char *end);

#endif
