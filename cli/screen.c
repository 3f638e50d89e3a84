/* A terminal by termios, ioctl and the few control sequences that every terminal of the last forty years
 * knows. */
#include "cli/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/cli.h"

#define ANOTHER_SCREEN "\033[?1049h\033[?25l"
#define FIRST_SCREEN "\033[?25h\033[?1049l"

enum { LINE_BYTES = 4096 };

void screen_size(unsigned *columns, unsigned *rows)
{
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    *columns = known && size.ws_col > 0 ? size.ws_col : 80;
    *rows = known && size.ws_row > 0 ? size.ws_row : 24;
}

static void signals_of_interest(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGWINCH);
}

int screen_open(struct screen *screen, struct err *err)
{
    sigset_t set;
    *screen = (struct screen){.signals = -1};
    if (tcgetattr(STDIN_FILENO, &screen->before) < 0)
        return err_errno(err, ERR_IO, errno, "the terminal");
    signals_of_interest(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    screen->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    struct termios keys = screen->before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* ISIG stays set, so Ctrl-C sends SIGINT */
    keys.c_cc[VMIN] = 0;
    keys.c_cc[VTIME] = 0;
    if (screen->signals < 0 || tcsetattr(STDIN_FILENO, TCSANOW, &keys) < 0) {
        err_errno(err, ERR_IO, errno, "the terminal");
        close(screen->signals);
        return -1;
    }
    screen->is_open = true;
    fputs(ANOTHER_SCREEN, stdout);
    fflush(stdout);
    return 0;
}

void screen_close(struct screen *screen)
{
    sigset_t set;
    if (!screen->is_open)
        return;
    fputs(FIRST_SCREEN, stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &screen->before);
    close(screen->signals);
    signals_of_interest(&set);
    sigprocmask(SIG_UNBLOCK, &set, NULL); /* a pending signal that was not read ends the process here */
    screen->is_open = false;
}

/* Reads all pending signals. Returns whether one of them asks the program to end. SIGWINCH needs no action
 * here, because each drawing asks for the terminal's size. */
static bool told_to_end(const struct screen *screen)
{
    struct signalfd_siginfo info;
    bool end = false;
    while (read(screen->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        end |= info.ssi_signo != SIGWINCH;
    return end;
}

static void read_keys(struct screen *screen, bool *end)
{
    struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&fd, 1, 0) <= 0)
        return;
    ssize_t size =
        read(STDIN_FILENO, screen->keys + screen->key_count, sizeof(screen->keys) - screen->key_count);
    if (size > 0)
        screen->key_count += (unsigned)size;
    else if (size == 0 || errno != EINTR)
        *end = true;
}

int screen_key(struct screen *screen, bool *end)
{
    static const struct {
        const char *sent;
        int key;
    } named[] = {{"\033[A", KEY_UP},   {"\033OA", KEY_UP},       {"\033[B", KEY_DOWN},
                 {"\033OB", KEY_DOWN}, {"\033[5~", KEY_PAGE_UP}, {"\033[6~", KEY_PAGE_DOWN},
                 {"\033", KEY_ESCAPE}};
    *end |= told_to_end(screen);
    if (screen->key_count == 0)
        read_keys(screen, end);
    if (screen->key_count == 0)
        return KEY_NONE;
    int key = screen->keys[0];
    unsigned size = 1;
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        unsigned length = (unsigned)strlen(named[i].sent);
        if (length <= screen->key_count && memcmp(screen->keys, named[i].sent, length) == 0) {
            key = named[i].key;
            size = length;
            break;
        }
    }
    screen->key_count -= size;
    memmove(screen->keys, screen->keys + size, screen->key_count);
    return key;
}

unsigned screen_lines(const char *text, unsigned columns, unsigned rows, const char *end)
{
    char line[LINE_BYTES], clean[LINE_BYTES];
    unsigned count = 0;
    for (; *text && count < rows; count++) {
        size_t size = strcspn(text, "\n");
        bool bold = *text == SCREEN_BOLD;
        snprintf(line, sizeof(line), "%.*s", (int)(size - bold), text + bold);
        show_clean(line, columns, clean, sizeof(clean));
        printf("%s%s%s%s", bold ? "\033[1m" : "", clean, bold ? "\033[0m" : "", end);
        text += size + (text[size] == '\n');
    }
    return count;
}
