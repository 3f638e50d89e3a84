/* Writes a plan's picture. Graphviz, if it is installed, places the nodes; show/draw.h draws everything. */
#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/process.h"
#include "show/draw.h"

enum { DOT_MS = 5000, LAYOUT_BYTES_MAX = 1 << 20 };

/* Waits for the process, and kills it after DOT_MS. True when it succeeded. */
static bool ended_well(pid_t pid)
{
    int status = -1, fd = pidfd_open(pid, 0);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    bool over = fd >= 0 && poll(&ready, 1, DOT_MS) == 1;
    if (fd >= 0)
        close(fd);
    if (!over) {
        struct err ignored = {0};
        (void)process_stop(pid, 0, SIGKILL, 0, &ignored);
        return false;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Runs `dot -Tplain` on folder/plan.dot; false when Graphviz is missing or fails. */
static bool run_dot(const char *folder, const struct buf *dot, struct buf *layout)
{
    char in[256], out[256];
    struct err ignored = {0};
    pid_t pid = 0;
    snprintf(in, sizeof(in), "%s/plan.dot", folder);
    snprintf(out, sizeof(out), "%s/plan.plain", folder);
    const char *const argv[] = {"dot", "-Tplain", in, NULL};
    const struct process_options options = {
        .argv = argv, .stdout_path = out, .own_group = true, .die_with_parent = true};
    return file_write_atomic(in, dot->data, dot->size, 0600, &ignored) == 0 &&
           process_spawn(&options, &pid, &ignored) == 0 && ended_well(pid) &&
           file_read_all(out, LAYOUT_BYTES_MAX, layout, &ignored) == 0;
}

/* Has Graphviz place the nodes; the layout stays empty when it cannot, which is no error. */
static void find_layout(const struct draw_input *input, struct buf *layout)
{
    char folder[] = "/tmp/motley-draw-XXXXXX";
    struct err ignored = {0};
    struct buf dot = {.limit = LAYOUT_BYTES_MAX};
    if (draw_dot(input, &dot, &ignored) == 0 && dot.size > 0 && mkdtemp(folder)) {
        if (!run_dot(folder, &dot, layout))
            buf_clear(layout);
        (void)file_remove_tree(folder, &ignored);
    }
    buf_fini(&dot);
}

int draw_write(const char *path, const struct draw_input *given, struct err *err)
{
    struct draw_input input = *given;
    struct buf layout = {.limit = LAYOUT_BYTES_MAX}, picture = {.limit = DRAW_BYTES_MAX};
    find_layout(&input, &layout);
    if (layout.size > 0)
        input.layout = buf_str(&layout);
    int result = draw_svg(&input, &picture, err);
    if (result == 0)
        result = file_write_atomic(path, picture.data, picture.size, 0644, err);
    buf_fini(&layout);
    buf_fini(&picture);
    return result;
}
