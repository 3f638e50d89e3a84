/* The scheduler's configuration file, in YAML:
 *
 *   name: scheduler-1
 *   postgres: "host=/run/motley/pg dbname=motley"
 *   redis: {address: "unix:/run/motley/redis.sock", user: scheduler, password: …,
 *           tls: {ca: FILE, cert: FILE, key: FILE}}
 *   links: [{between: [left, right], rate: 1Gbit/s, latency: 1ms}]
 *   limits: {…}
 *   sharing: {…}
 *   planner: {…}
 *   planners: {NAME: {…}}
 *
 * `links` are emulated links. `limits` holds any field of struct scheduler_limits by its name; the number at
 * the end of each field's comment is its default. `sharing` sets the policies (scheduler/policy/policy.h):
 * share, limits, width, wait, reserve: true or false, whether each applies; half_life, move: times;
 * width_least, scavenger_charge: numbers; reference: the device whose speed is 1 in the ledger (else the
 * fastest one that is measured). common/planners.h describes `planner` and `planners`.
 */
#ifndef MOTLEY_SCHEDULER_LEADER_CONFIG_H
#define MOTLEY_SCHEDULER_LEADER_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "common/planners.h"
#include "scheduler/policy/policy.h"

struct scheduler_limits {
    uint32_t unreachable_ms; /* a node that is silent for so long becomes unreachable; 5000 */
    uint32_t lost_ms;        /* the workers of a node that is silent for so long are given up; 30000 */
    uint32_t missing_ms; /* a worker that its restarted agent does not name is given up after this; 10000 */
    uint32_t start_ms;   /* a run whose workers are not all ready after this is stopped; 1800000 */
    uint32_t stop_ms;    /* a worker that was told to stop without a checkpoint is killed after this; 10000 */
    /* a worker that was told to stop with a checkpoint is killed after this and twice the predicted time of
     * storing it; 120000 */
    uint32_t checkpoint_stop_ms;
    /* bytes a second with which checkpoints are stored from nodes whose links nobody measured; 10e6 */
    double store_bytes_per_s;
    uint32_t kill_ms; /* a killed worker whose end nobody reports is given up after this; 10000 */
    /* pause after the first loss of a run; it doubles with each further loss; 1000 */
    uint32_t retry_ms_min;
    uint32_t retry_ms_max;     /* longest pause after a loss; 60000 */
    uint32_t redeliver_ms;     /* first pause before an unconfirmed message is sent again; it doubles; 2000 */
    uint32_t profile_start_ms; /* how far in the future the common start of profiles is set; 1000 */
    uint32_t profile_ms;       /* longest time that a device is measured; 6000 */
    /* how long a profile's answer may take beyond the measurement; 240000, since a driver's first translation
     * of the kernels for its card takes up to two minutes */
    uint32_t profile_grace_ms;
    uint32_t links_ms;      /* how long a link measurement's answer may take; 10000 */
    uint32_t measure_tries; /* attempts to measure one profile or one link; 3 */
    /* queued jobs that are told their place and why they wait, shared by the users within accounts; 64 */
    uint32_t queue_max;
    uint32_t queue_check_ms; /* how often the queue in memory is compared with the database; 600000 */
    uint32_t batch_max;      /* events that one transaction commits at most; 512 */
    uint32_t event_days;     /* days that events and traces are kept; 30 */
    /* days that a finished job keeps its lines of single steps and its earlier attempts; 180 */
    uint32_t history_days;
    uint32_t dataset_days; /* days that an encoded data set which nobody uses is kept; 90 */
    uint32_t ledger_days;  /* days that single rows of the ledger are kept after their end; 180 */
    /* a lease of a card on which nobody's process has held memory for so long is ended; 1800000 */
    uint32_t lease_idle_ms;
    uint32_t usage_days; /* days that the daily sums of the ledger's rows are kept; 730 */
    uint32_t rank_steps; /* a running job keeps the lines of single ranks for so many last steps; 10000 */
    uint32_t prune_rows; /* rows that one transaction removes from a table at most; 2000 */
    uint32_t prune_ms;   /* pause between two searches for rows that are too old; 600000 */
    /* a standby deposes a leader that has shown no sign of life for so long; 15000 */
    uint32_t leader_silent_ms;
    uint32_t leader_poll_ms; /* how often a standby tries to become the leader; 250 */
    uint32_t look_ms;        /* pause between two weighings of a run whose devices' speed has changed; 5000 */
    /* a device that a run left as slower than its profile is measured again after this, and so again; 60000
     */
    uint32_t remeasure_ms;
    uint32_t wait_steps;    /* a transfer may stand still for so many of the plan's predicted steps; 20 */
    uint32_t wait_ms_min;   /* lower bound of that time; 60000 */
    uint32_t wait_ms_max;   /* upper bound of that time; 86400000 */
    uint32_t save_wait_ms;  /* ranks wait so long for a rank that stores its part of a checkpoint; 3600000 */
    uint32_t start_wait_ms; /* how long the program waits for PostgreSQL and Redis at its start; 30000 */
};

struct scheduler_config {
    char *name, *postgres;
    char *redis_address, *redis_user, *redis_password; /* user and password may be NULL */
    char *redis_ca, *redis_cert, *redis_key;           /* NULL: the connection is not encrypted */
    /* holds "EPOCH PID" while this scheduler leads (leader_note.h); NULL: no file is written */
    char *leader_file;
    /* emulated links, one entry a direction: [{"from","to","bytes_per_s","latency_s","emulated": true}] */
    json_t *links;
    struct planners planners; /* external planners, asked beside the built-in one */
    struct scheduler_limits limits;
    struct policy_settings sharing;
    char *sharing_reference; /* or NULL */
    json_t *document;        /* as it was read */
};

/* Reads and checks the file. An ERR_INVALID names the path of the wrong key. On failure nothing is left to
 * release. */
int scheduler_config_load(const char *path, struct scheduler_config *config, struct err *err);
/* Checks a document that was read already, in the same way. */
int scheduler_config_parse(const json_t *document, struct scheduler_config *config, struct err *err);
/* Reads the file again and takes over what can change while the scheduler runs: `sharing`, and `limits` but
 * for those that are used at the start alone. ERR_CONFLICT names the first key with another value that takes
 * a restart. On failure nothing is changed. */
int scheduler_config_reload(const char *path, struct scheduler_config *config, struct err *err);
void scheduler_config_fini(struct scheduler_config *config);

#endif
