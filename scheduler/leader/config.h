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
 * `links` are emulated links. `limits` may hold any field of struct scheduler_limits by its name; each
 * field's comment says its default. `sharing` sets the policies (scheduler/policy/policy.h): share, limits,
 * width, wait, reserve: true or false, whether each applies; half_life, move: times; width_least,
 * scavenger_charge: numbers; reference: the device whose speed is 1 in the ledger (else the fastest one that
 * is measured). common/planners.h describes `planner` and `planners`.
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
    /* a node becomes unreachable after this silence; default 5000 */
    uint32_t unreachable_ms;
    /* the workers of a node are given up after this silence of the node; default 30000 */
    uint32_t lost_ms;
    /* a worker that its restarted agent does not name is given up after this time; default 10000 */
    uint32_t missing_ms;
    /* a run whose workers are not all ready after start_least_ms and the time in which their weights come,
     * and at most start_ms, is stopped; defaults 300000, as a driver's first translation of the kernels takes
     * up to two minutes, and 1800000 */
    uint32_t start_least_ms, start_ms;
    /* a worker that was told to stop without a checkpoint is killed after this time; default 10000 */
    uint32_t stop_ms;
    /* a worker that was told to stop with a checkpoint is killed after this time plus twice the predicted
     * time of storing the checkpoint; default 120000 */
    uint32_t checkpoint_stop_ms;
    /* rate at which checkpoints are assumed to be stored from nodes whose links were not measured; default
     * 10e6 */
    double store_bytes_per_s;
    /* a killed worker whose end its agent does not report is given up after this time; default 10000 */
    uint32_t kill_ms;
    /* pause before the next attempt after a job's first lost one; it doubles with each further loss; default
     * 1000 */
    uint32_t retry_ms_min;
    /* longest pause before the next attempt after a lost one; default 60000 */
    uint32_t retry_ms_max;
    /* first pause before an unconfirmed message is sent again; it doubles with each repetition; default
     * 2000 */
    uint32_t redeliver_ms;
    /* time from the request until all devices of a machine begin to measure at once; default 1000 */
    uint32_t profile_start_ms;
    /* longest time that one device is measured; default 6000 */
    uint32_t profile_ms;
    /* time that a profile's answer may take beyond the measurement; default 240000, since a driver's first
     * translation of the kernels for its card takes up to two minutes */
    uint32_t profile_grace_ms;
    /* time that a link measurement's answer may take; default 10000 */
    uint32_t links_ms;
    /* attempts to measure one profile or one link for which jobs wait; default 3 */
    uint32_t measure_tries;
    /* number of queued jobs whose wait codes are kept for slices and extensions, and which are refused when
     * they fit nowhere; the users within accounts share it equally; default 64 */
    uint32_t queue_max;
    /* how often the queue in memory is compared with the database; default 600000 */
    uint32_t queue_check_ms;
    /* most events that one transaction commits; default 512 */
    uint32_t batch_max;
    /* days that events and traces are kept; default 30 */
    uint32_t event_days;
    /* days that a finished job keeps its metrics of single steps and its earlier attempts; default 180 */
    uint32_t history_days;
    /* days that an encoded data set which no job uses is kept; default 90 */
    uint32_t dataset_days;
    /* days that the ledger's rows are kept singly after their end; default 180 */
    uint32_t ledger_days;
    /* a lease ends when no process has held memory of its device for this time; default 1800000 */
    uint32_t lease_idle_ms;
    /* days that the daily sums of the ledger's rows are kept; default 730 */
    uint32_t usage_days;
    /* number of a running job's last steps whose metrics are kept for each rank; default 10000 */
    uint32_t rank_steps;
    /* most rows that one transaction removes from a table; default 2000 */
    uint32_t prune_rows;
    /* pause between two searches for rows that are too old; default 600000 */
    uint32_t prune_ms;
    /* a standby deposes a leader that has shown no sign of life for this time; default 15000 */
    uint32_t leader_silent_ms;
    /* how often a standby tries to become the leader; default 250 */
    uint32_t leader_poll_ms;
    /* least time between two decisions whether a run should move to other devices; default 5000 */
    uint32_t look_ms;
    /* how long passes leave out what the database refused; default 30000 */
    uint32_t aside_ms;
    /* a device that a run measured slower than its profile is profiled again after this time, and repeatedly;
     * the first pause after measure_tries failed attempts, which doubles up to 16 times this; default 60000
     */
    uint32_t remeasure_ms;
    /* a transfer may stand still for this many of the plan's predicted step times; default 20 */
    uint32_t wait_steps;
    /* least time that a transfer may stand still; default 60000 */
    uint32_t wait_ms_min;
    /* longest time that a transfer may stand still; default 86400000 */
    uint32_t wait_ms_max;
    /* longest time that ranks wait for a rank that stores its part of a checkpoint; default 3600000 */
    uint32_t save_wait_ms;
    /* time that the program waits for PostgreSQL and Redis at its start; default 30000 */
    uint32_t start_wait_ms;
};

struct scheduler_config {
    char *name, *postgres;
    char *redis_address, *redis_user, *redis_password; /* user and password may be NULL */
    char *redis_ca, *redis_cert, *redis_key;           /* NULL: the connection is not encrypted */
    /* holds "EPOCH PID" while this scheduler leads (leader_note.h); NULL: no file is written */
    char *leader_file;
    /* emulated links, one entry for each direction: [{"from","to","bytes_per_s","latency_s","emulated":
     * true}] */
    json_t *links;
    struct planners planners; /* external planners, asked beside the built-in one */
    struct scheduler_limits limits;
    struct policy_settings sharing;
    char *sharing_reference; /* name of the reference device (`sharing.reference`), or NULL */
    json_t *document;        /* the whole file as it was read */
};

/* Reads and checks the file. An ERR_INVALID names the path of the wrong key. On failure nothing is left to
 * release. */
int scheduler_config_load(const char *path, struct scheduler_config *config, struct err *err);
/* Checks a document that was already read from the file, in the same way. */
int scheduler_config_parse(const json_t *document, struct scheduler_config *config, struct err *err);
/* Reads the file again and takes over what can change while the scheduler runs: `sharing`, and `limits`
 * except the fields that are used only at the start. ERR_CONFLICT names the first other key whose value has
 * changed, which needs a restart. On failure nothing is changed. */
int scheduler_config_reload(const char *path, struct scheduler_config *config, struct err *err);
void scheduler_config_fini(struct scheduler_config *config);

#endif
