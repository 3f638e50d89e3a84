/* `motley top`: what the cluster does, as far as its views need it.
 *
 * Everything is read by pages of the api; the event stream says when to read again, and tells the steps of
 * the jobs that are followed. One thread. Texts of the server are cleaned where they are printed.
 */
#ifndef MOTLEY_CLI_TOP_H
#define MOTLEY_CLI_TOP_H

#include "cli/cli.h"

enum {
    TOP_FOLLOWED_MAX = 16, /* jobs of one stream */
    TOP_PACE_STEPS = 10,   /* of which medians are taken, as the page does */
    TOP_RANKS_MAX = 64,
};

/* Where ranks take this many times what was predicted, the slowest is named; as on the page. */
#define TOP_SLOW 1.15

/* The last values of something, of which the median is of interest. */
struct top_recent {
    double values[TOP_PACE_STEPS];
    uint64_t count; /* of all that were added */
};

struct top_rank {
    char device[64];
    double predicted_s; /* computing a step; 0: not known */
    struct top_recent compute_s, wait_s;
};

/* A job that runs, whose events are followed. */
struct top_job {
    int64_t id;
    double step; /* steps done; -1: none was told yet */
    double loss;
    double predicted_s; /* of a step; 0: not known */
    struct top_recent seconds;
    unsigned rank_count;
    struct top_rank ranks[TOP_RANKS_MAX];
};

struct top {
    struct cli *cli;
    json_t *me, *queue, *devices, *load; /* documents as they were read last; owned. `load` may be NULL */
    json_t *jobs;                        /* those that run and that one may see: a list */
    struct top_job *followed;            /* TOP_FOLLOWED_MAX of them */
    unsigned followed_count;
    bool may_see_devices;
};

enum top_view { TOP_ALL, TOP_JOBS, TOP_DEVICES, TOP_QUEUE, TOP_VIEWS };

/* ---- what is read (cli/top_data.c) ---- */
int top_init(struct top *top, struct cli *cli, struct err *err);
void top_fini(struct top *top);
/* Reads the queue and the jobs that run; *changed becomes true when others are followed now. */
int top_read_queue(struct top *top, bool *changed, struct err *err);
int top_read_devices(struct top *top, struct err *err);
/* Reads what every device did in the last hour. */
int top_read_load(struct top *top, struct err *err);
/* Takes an event of a followed job. */
void top_event(struct top *top, const char *type, const json_t *data);
/* The followed job of that id, or NULL. */
struct top_job *top_followed(const struct top *top, int64_t id);
/* The median; NaN when nothing was added. */
double top_median(const struct top_recent *recent);

/* ---- what is shown (cli/top_text.c) ---- */

/* Writes the first sentence: how many run and wait, and where one's own stand. */
void top_headline(const struct top *top, char *out, size_t size);
/* Writes a view as lines of text, its titles with SCREEN_BOLD when `bold`. Of each table at most `most` rows.
 */
int top_text(const struct top *top, enum top_view view, unsigned most, bool bold, FILE *out, struct err *err);
/* How many rows the table of a view has, of those that were read. */
size_t top_count(const struct top *top, enum top_view view);
/* The same as a document, times and devices as the api says them: {"headline", "jobs", "devices", "queue"}.
 * Returns new. */
json_t *top_document(const struct top *top);

#endif
