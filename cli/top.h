/* `motley top`: the documents of the api that its views show, and the views as text.
 *
 * The event stream says when a document must be read again, and reports the steps of the followed jobs. One
 * thread. Texts of the server are cleaned where they are printed.
 */
#ifndef MOTLEY_CLI_TOP_H
#define MOTLEY_CLI_TOP_H

#include "cli/cli.h"

enum {
    TOP_FOLLOWED_MAX = 16, /* most jobs whose steps are followed */
    TOP_PACE_STEPS = 10,   /* last steps of which medians are taken, as on the page */
    TOP_RANKS_MAX = 64,
};

/* The slowest rank of a job is named if its computing takes this many times the predicted time, as on the
 * page. */
#define TOP_SLOW 1.15

/* The last TOP_PACE_STEPS values of a quantity, for their median. */
struct top_recent {
    double values[TOP_PACE_STEPS];
    uint64_t count; /* values added so far */
};

struct top_rank {
    char device[64];
    double predicted_s; /* predicted seconds of computing per step; 0: not known */
    struct top_recent compute_s, wait_s;
};

/* A running job whose steps are followed. */
struct top_job {
    int64_t id;
    double step; /* steps done; -1: not known yet */
    double loss;
    double predicted_s; /* predicted seconds per step; 0: not known */
    struct top_recent seconds;
    unsigned rank_count;
    struct top_rank ranks[TOP_RANKS_MAX];
};

struct top {
    struct cli *cli;
    json_t *me, *queue, *devices, *load; /* documents as last read; owned. `load` may be NULL */
    json_t *jobs;                        /* array of the running jobs that the user may see; owned */
    struct top_job *followed;            /* room for TOP_FOLLOWED_MAX jobs */
    unsigned followed_count;
    bool may_see_devices;
};

enum top_view { TOP_ALL, TOP_JOBS, TOP_DEVICES, TOP_QUEUE, TOP_VIEWS };

/* ---- what is read (cli/top_data.c) ---- */
int top_init(struct top *top, struct cli *cli, struct err *err);
void top_fini(struct top *top);
/* Reads the queue and the running jobs; *changed becomes true when the followed jobs have changed. */
int top_read_queue(struct top *top, bool *changed, struct err *err);
int top_read_devices(struct top *top, struct err *err);
/* Reads how long each device computed in the last hour. */
int top_read_load(struct top *top, struct err *err);
/* Takes an event of a followed job. */
void top_event(struct top *top, const char *type, const json_t *data);
/* Returns the followed job with this id, or NULL. */
struct top_job *top_followed(const struct top *top, int64_t id);
/* Returns the median; NaN when no value was added. */
double top_median(const struct top_recent *recent);

/* ---- what is shown (cli/top_text.c) ---- */

/* Writes the headline: how many jobs run and wait, and when the user's next job starts or ends. */
void top_headline(const struct top *top, char *out, size_t size);
/* Writes a view as lines of text, at most `most` rows of each table; with `bold` titles begin with
 * SCREEN_BOLD. */
int top_text(const struct top *top, enum top_view view, unsigned most, bool bold, FILE *out, struct err *err);
/* Returns how many rows the table of a view has. */
size_t top_count(const struct top *top, enum top_view view);
/* Returns all views as a new document {"headline", "jobs", "devices", "queue"}, with times and devices in the
 * api's own form. */
json_t *top_document(const struct top *top);

#endif
