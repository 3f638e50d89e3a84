/* What an agent is told: its command line and its configuration file (YAML or JSON).
 *
 *     name: left                     node name: 1 to 64 of a-z, 0-9 and -
 *     address: 10.0.0.2              what other nodes reach this one by: a host, or host:port; default: found
 * out
 *     devices:                       default: one CPU device of all cores and 80 % of the memory, and every
 *                                    card that the drivers show
 *       - {kind: cpu, threads: 1, memory: 450MiB, isa: avx2}
 *       - {kind: cuda, index: 0}     cuda, hip: a card by its driver's number; memory: of what is free by
 * default
 *       - {kind: emulated, memory: 1GiB, isa: warp64, like: v100}
 *     cards: all                     or named: the cards that are listed alone. Default: all where no devices
 * are exclude: [cuda:1, GPU-5f3a…]   cards left alone: by kind and number, by UUID or by PCI address cache:
 * 20GiB                   bound of the node's chunk cache journal: 128MiB                bound of events kept
 * until they are acknowledged
 *
 *     throttle_window: 60s           over which a card's clock is averaged before it counts as throttled (1s
 * to 1h)
 *
 * Immutable once read. Thread: any.
 */
#ifndef MOTLEY_AGENT_CONFIG_H
#define MOTLEY_AGENT_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum { AGENT_DEVICES_MAX = 64, AGENT_NAME_SIZE = 65 };

struct agent_device {
    char name[AGENT_NAME_SIZE + 32]; /* "left/cpu0" */
    char kind[16];                   /* "cpu", "cuda", "hip", "emulated" */
    char isa[32];                    /* as asked for: native, avx512, avx2, sse42; emulated: warp32, warp64 */
    char like[128];                  /* what a card is called, or an emulated one is estimated as; "" */
    char arch[32];                   /* of a card; "" */
    uint32_t index;                  /* of a card, as its driver counts */
    uint32_t threads;
    uint64_t memory_limit_bytes; /* 0: of a card, until agent_config_cards */
    uint64_t base_bytes; /* of a card: what a worker takes beside the limit (cards.h); 0: none or not known */
    bool locked;         /* `lock` is an open file that keeps the card to us (card_lock) */
    int lock;
};

struct agent_config {
    char name[AGENT_NAME_SIZE];
    char host[256]; /* of the address; never empty */
    uint16_t port;  /* of the address, where links are measured; 0: any */
    uint64_t cache_limit_bytes;
    uint64_t journal_limit_bytes;
    double throttle_window_s; /* over which the clock of a card that is too warm is averaged */
    bool all_cards;           /* every usable card, beside the devices that were named */
    const json_t *exclude;    /* array of strings, borrowed from the document; or NULL */
    uint32_t device_count;
    struct agent_device devices[AGENT_DEVICES_MAX];
    json_t *cards; /* all that the drivers show, with `device` and why one is not used; NULL before
                      agent_config_cards; owned */
};

/* Read 'document' (NULL: all defaults; the name then is the host's). 'fallback_host' is the address when none
 * is given. ERR_INVALID names the path; ERR_UNSUPPORTED an instruction set that this CPU lacks. */
int agent_config_read(const json_t *document, const char *fallback_host, struct agent_config *config,
                      struct err *err);

/* Match the devices with the cards that the drivers show (agent/cards.h; taken over). Devices that were named
 * and cannot be used leave the list and stand in config->cards with their `why`; with all_cards every usable
 * card becomes a device. agent_config_fini releases. */
int agent_config_cards(struct agent_config *config, json_t *cards, struct err *err);
void agent_config_fini(struct agent_config *config);

/* The address of this machine's own that packets to 'url' leave from: "127.0.0.1" for a loopback server. */
int agent_own_host(const char *url, char host[256], struct err *err);

#endif
