/* The scheduler's configuration file (YAML):
 *
 *   name: scheduler-1
 *   postgres: "host=/run/motley/pg dbname=motley"
 *   redis: {address: "unix:/run/motley/redis.sock", user: scheduler, password: …, tls: {ca: F, cert: F, key:
 * F}} links: [{between: [left, right], rate: 1Gbit/s, latency: 1ms}]        emulated limits: {…} every field
 * of struct scheduler_limits by its name
 *   planner: {…}, planners: {NAME: {…}}        common/planners.h
 */
#ifndef MOTLEY_SCHEDULER_CONFIG_H
#define MOTLEY_SCHEDULER_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "common/planners.h"

struct scheduler_limits {
    uint32_t unreachable_ms;     /* a node that is silent so long is unreachable; 5000 */
    uint32_t lost_ms;            /* … and so long: its workers are given up; 30000 */
    uint32_t missing_ms;         /* a worker its restarted agent does not know is given up; 10000 */
    uint32_t start_ms;           /* a worker that is not ready by then is given up; 1800000 */
    uint32_t stop_ms;            /* a stop without a checkpoint is killed after; 10000 */
    uint32_t checkpoint_stop_ms; /* a stop with one; 120000 */
    uint32_t kill_ms;            /* a killed worker that says nothing is given up; 10000 */
    uint32_t retry_ms_min;       /* back-off after the first loss, doubling; 1000 */
    uint32_t retry_ms_max;       /* 60000 */
    uint32_t redeliver_ms;       /* an unconfirmed message is sent again after, backing off; 2000 */
    uint32_t profile_start_ms;   /* how far ahead the common start of profiles is set; 1000 */
    uint32_t profile_ms;         /* how long a device is measured, at most; 6000 */
    uint32_t profile_grace_ms;   /* answer awaited after that; 60000 */
    uint32_t links_ms;           /* a link measurement's answer awaited; 10000 */
    uint32_t measure_tries;      /* of one profile or link; 3 */
    uint32_t queue_max;          /* queued jobs read at once, twice that with a window; 64 */
    uint32_t batch_max;          /* events in one transaction; 512 */
    uint32_t event_days;         /* events and traces are kept; 30 */
    uint32_t history_days;       /* of finished jobs: lines of single steps, earlier attempts; 180 */
    uint32_t dataset_days;       /* encoded data sets that nobody used; 90 */
    uint32_t rank_steps;         /* of a running job: lines of single ranks, so many steps back; 10000 */
    uint32_t prune_rows;         /* removed from a table in one transaction, at most; 2000 */
    uint32_t prune_ms;           /* between two looks for what is too old; 600000 */
    uint32_t leader_silent_ms;   /* a leader frozen so long is deposed by a standby; 15000 */
    uint32_t leader_poll_ms;     /* how often a standby tries; 250 */
    uint32_t look_ms;            /* between two looks at a run whose devices' speed has changed; 5000 */
    uint32_t wait_steps;    /* a transfer may stand still for so many of the plan's predicted steps; 20 */
    uint32_t wait_ms_min;   /* … but not less than; 60000 */
    uint32_t wait_ms_max;   /* … nor more; 86400000 */
    uint32_t save_wait_ms;  /* ranks wait so long for one that stores its part of a checkpoint; 3600000 */
    uint32_t start_wait_ms; /* how long to wait for PostgreSQL and Redis at start; 30000 */
};

struct scheduler_config {
    char *name, *postgres;
    char *redis_address, *redis_user, *redis_password; /* user, password may be NULL */
    char *redis_ca, *redis_cert, *redis_key;           /* NULL: plain */
    char *leader_file; /* while leading, "EPOCH PID" stands there (leader_note.h); NULL: nowhere */
    json_t *links; /* emulated, both directions: [{"from","to","bytes_per_s","latency_s","emulated": true}] */
    struct planners planners; /* of somebody else's, asked beside the built-in one */
    struct scheduler_limits limits;
};

/* Reads and checks the file. ERR_INVALID names the path of what is wrong. On
 * failure nothing is left to release. */
int scheduler_config_load(const char *path, struct scheduler_config *config, struct err *err);
/* The same of a document that was read already. */
int scheduler_config_parse(const json_t *document, struct scheduler_config *config, struct err *err);
void scheduler_config_fini(struct scheduler_config *config);

#endif
