/* The agent's configuration, from a file (YAML or JSON):
 *
 *     name: left                     node name: 1 to 64 of a-z, 0-9 and -
 *     address: 10.0.0.2              host, or host:port, by which other nodes reach this one; default: found
 *     listen: 0.0.0.0                local address to listen on; default: the host of `address`
 *     ports: 7000-7015               ports to listen on, one for each worker and one for measuring links;
 *                                    default: any
 *     devices:                       default: one CPU device (all cores, 80 % of the memory, less
 *                                    what cards take that have no memory of their own) and every card
 *       - {kind: cpu, threads: 1, memory: 450MiB, isa: avx2}
 *       - {kind: cuda, index: 0}     cuda, hip: a card by its driver's number; memory: most of what is free
 *       - {kind: emulated, memory: 1GiB, isa: warp64, like: v100}
 *       - {kind: paced, memory: 1GiB, pace: {flops: 2e9, flops_16: 8e9, bytes_per_s: 5e7}}
 *     cards: all                     or named: only cards in `devices`; default: all if there is no `devices`
 *     exclude: [cuda:1, GPU-5f3a…]   cards that are not used: kind and number, UUID or PCI address
 *     cache: 20GiB                   limit of the node's chunk cache
 *     journal: 128MiB                limit of events stored until they are acknowledged
 *     private: DIR                   folder around the agent's home that no worker may read (the home alone)
 *     throttle_window: 60s           time over which a card's clock is averaged (1s to 1h)
 *     grace: 120s                    time that workers have to end their step and store a checkpoint when the
 *                                    agent ends (1s to 1day)
 *     until: 2026-12-24T18:00:00Z    when this machine is taken away; default: SLURM_JOB_END_TIME, else never
 *     sandbox: auto                  or required (no device whose worker cannot be confined), or off
 *
 * A configuration does not change once read. Thread: any.
 */
#ifndef MOTLEY_AGENT_CONFIG_H
#define MOTLEY_AGENT_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum { AGENT_DEVICES_MAX = 64, AGENT_NAME_SIZE = 65 };

/* Rates of a paced device, which computes on the CPU and takes the time of these (engine/device/backend.h).
 */
struct agent_pace {
    double flops, flops_16, bytes_per_s, bus_bytes_per_s, launch_s;
};

struct agent_device {
    char name[AGENT_NAME_SIZE + 32]; /* "left/cpu0" */
    char kind[16];                   /* "cpu", "cuda", "hip", "emulated", "paced" */
    char isa[32]; /* as configured: native, amx, avx512-bf16, avx512, avx2, sse42; emulated: warp32, warp64 */
    char like[128]; /* name of a card, or of the card that an emulated one imitates; or "" */
    char arch[32];  /* architecture of a card; or "" */
    uint32_t index; /* number that the driver gives the card */
    uint32_t threads;
    uint64_t memory_limit_bytes; /* 0 for a card until agent_config_cards sets it */
    uint64_t
        base_bytes; /* of a card: memory that a worker takes beyond the limit (cards.h); 0: none or unknown */
    struct agent_pace pace; /* of a paced device */
    char visible[48];       /* CUDA_VISIBLE_DEVICES that the card's worker needs (cards.h); or "" */
    bool configured;        /* the configuration gives memory_limit_bytes */
    bool locked;            /* `lock` is an open file that reserves the card for this agent (card_lock) */
    int lock;
};

enum agent_sandbox { AGENT_SANDBOX_AUTO, AGENT_SANDBOX_REQUIRED, AGENT_SANDBOX_OFF };
extern const char *const agent_sandboxes[]; /* their names, NULL-terminated */

struct agent_config {
    char name[AGENT_NAME_SIZE];
    char host[256];                 /* host of the address; never empty */
    uint16_t port;                  /* port for measuring links; 0: any of the range */
    char listen[256];               /* local address to listen on */
    uint16_t port_first, port_last; /* range of the ports to listen on; 0 and 0: any port */
    uint64_t cache_limit_bytes;
    uint64_t journal_limit_bytes;
    double throttle_window_s; /* time over which the clock of a card that is too warm is averaged */
    double grace_s;           /* time that workers have to end when the agent ends */
    int64_t until_us;         /* wall clock: when this machine is taken away; 0: never */
    int sandbox;              /* of workers: a number of agent_sandboxes */
    bool all_cards;           /* use every usable card in addition to the named devices */
    const json_t *exclude;    /* array of strings, borrowed from the document; or NULL */
    const char *private; /* folder around the agent's home that workers may not read; borrowed; or NULL */
    uint32_t device_count;
    struct agent_device devices[AGENT_DEVICES_MAX];
    json_t *held; /* {device: bytes}: limits of the devices on which workers of this home's earlier agent run;
                     NULL: none; owned */
    /* All cards that the drivers report, with `device`, or `why` for one that is not used, and `left_out`
     * where the configuration leaves it out; NULL before agent_config_cards; owned. */
    json_t *cards;
};

/* Reads 'document'. With NULL all values are defaults and the name is the host's. 'fallback_host' is the
 * address when the document gives none. ERR_INVALID names the path; ERR_UNSUPPORTED an instruction set that
 * this CPU lacks. */
int agent_config_read(const json_t *document, const char *fallback_host, struct agent_config *config,
                      struct err *err);

/* Matches the devices with the cards that the drivers report (agent/cards.h; taken). Named devices that
 * cannot be used leave the list; config->cards says `why`. With all_cards every usable card becomes a device.
 * Release with agent_config_fini. */
int agent_config_cards(struct agent_config *config, json_t *cards, struct err *err);
/* Refuses a range of ports that is too small for the devices, with ERR_INVALID; agent_config_cards does so,
 * too. */
int agent_config_ports(const struct agent_config *config, struct err *err);
/* Returns `cards` of a configuration that uses none, where the machine has some: one entry that says so; else
 * NULL. */
json_t *agent_config_no_cards(void);
void agent_config_fini(struct agent_config *config);

/* Writes the local address from which packets to 'url' leave: "127.0.0.1" for a loopback server. */
int agent_own_host(const char *url, char host[256], struct err *err);

#endif
