/* Nodes, devices, models and join tokens. */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/units.h"
#include "planner/given/cluster.h"

static int show_list(struct cli *cli, json_t *answer, const char *member, const char *columns,
                     struct err *err)
{
    int result =
        cli->json ? show_json(answer, err) : show_table(json_object_get(answer, member), columns, err);
    json_decref(answer);
    return result;
}

/* Lists the jobs that only nodes know, because the database was restored from an older backup. */
static void show_unknown(const json_t *jobs)
{
    const json_t *job;
    size_t index;
    if (json_array_size(jobs) > 0)
        printf("jobs of the time after the backup, which the database does not know:");
    json_array_foreach ((json_t *)(uintptr_t)jobs, index, job)
        printf("%s %lld (%s)", index > 0 ? "," : "", (long long)show_num(job, "job", 0),
               show_str(job, "node"));
    if (json_array_size(jobs) > 0)
        printf("\n");
}

int command_nodes(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (client_list(cli, "/v1/nodes", "nodes", &answer, err) < 0)
        return -1;
    if (!cli->json)
        show_unknown(json_object_get(answer, "unknown_jobs"));
    return show_list(cli, answer, "nodes",
                     "NODE:name:s STATE:state:s RELEASE:release:s ADDRESS:address:s LAST-SEEN:last_seen:w "
                     "DISK-FREE:disk_free_bytes:b REFUSED:refused:n WHY:why:s",
                     err);
}

/* Adds to a link's document how it is shown. */
static void link_words(json_t *link)
{
    const bool unreachable = json_is_true(json_object_get(link, "unreachable"));
    char text[32];
    json_object_set_new(link, "state",
                        json_string(unreachable                                       ? "cannot connect"
                                    : json_is_true(json_object_get(link, "emulated")) ? "emulated"
                                                                                      : "measured"));
    if (unreachable)
        return;
    units_rate(text, show_num(link, "bytes_per_s", 0));
    json_object_set_new(link, "rate", json_string(text));
    units_seconds(text, show_num(link, "latency_s", 0));
    json_object_set_new(link, "latency", json_string(text));
}

int command_links(struct cli *cli, struct err *err)
{
    json_t *answer = NULL, *link;
    size_t index;
    if (client_list(cli, "/v1/links", "links", &answer, err) < 0)
        return -1;
    json_array_foreach (json_object_get(answer, "links"), index, link)
        if (!cli->json)
            link_words(link);
    return show_list(
        cli, answer, "links",
        "FROM:from:s TO:to:s STATE:state:s RATE:rate:s LATENCY:latency:s AT:measured_at:w WHY:why:s", err);
}

/* Formats `value` in multiples of `unit` ("35.6", "120"); "-" for none. */
static const char *amount(char out[24], double value, double unit)
{
    double units = value / unit;
    if (value > 0)
        snprintf(out, 24, units < 99.95 ? "%.3g" : "%.0f", units);
    else
        snprintf(out, 24, "-");
    return out;
}

static void show_entry(const json_t *entry)
{
    char memory[32], single[24], half[24], rate[24], watts[24], both[40] = "as fp32 ";
    double f16 = show_num(entry, "flops_16", 0);
    if (f16 > 0)
        snprintf(both, sizeof(both), "%s%s (%.0f %%)", amount(half, f16, 1e12),
                 json_is_true(json_object_get(entry, "bf16")) ? " " : "*",
                 100 * show_num(entry, "efficiency_16", 0));
    printf("%-18s %-5s %-12s %9s %8s (%.0f %%) %15s %10s %8s  ±%.0f %%  %s\n", show_str(entry, "name"),
           show_str(entry, "kind"), show_str(entry, "runs"),
           units_bytes(memory, (uint64_t)show_num(entry, "memory_bytes", 0)),
           amount(single, show_num(entry, "flops_fp32", 0), 1e12), 100 * show_num(entry, "efficiency", 0),
           both, amount(rate, show_num(entry, "memory_bytes_per_s", 0), 1e9),
           amount(watts, show_num(entry, "board_watts", 0), 1), 100 * show_num(entry, "uncertainty", 0),
           show_str(entry, "source"));
}

static int show_catalogue(struct cli *cli, struct err *err)
{
    json_t *answer = cluster_catalogue(err), *entry;
    size_t index;
    if (!answer)
        return -1;
    if (cli->json)
        return show_list(cli, answer, "devices", "", err);
    printf("%-18s %-5s %-12s %9s %15s %15s %10s %8s  %-5s  %s\n", "NAME", "KIND", "RUNS", "MEMORY",
           "FP32 TFLOP/s", "16-BIT TFLOP/s", "GB/s", "POWER W", "TIMES", "FROM");
    json_array_foreach (json_object_get(answer, "devices"), index, entry)
        show_entry(entry);
    printf(
        "\nPeak rates of dense products at boost clock and, in brackets, the share of them that training is "
        "taken to "
        "reach;\n16-bit products are summed in 32 bits, * in float16 alone, no bfloat16. Of a cpu: one "
        "thread's.\n"
        "`like` in a cluster file takes these names, or what nvidia-smi and rocm-smi print. Where it says no "
        "memory_bytes,\na plan uses 92 %% of a card's memory, less 0.5 GB.\n"
        "RUNS, real: jobs have run on one; emulated: its kernels pass their tests on an emulator, and no "
        "real "
        "one is known to\nhave run them; planned only: no worker of this release runs there, and --runnable "
        "refuses it.\n");
    json_decref(answer);
    return 0;
}

/* Prints a fact about a device behind its name: ": " before the first, ", " before the others. */
static void add_fact(bool *first, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add_fact(bool *first, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    printf("%s", *first ? ": " : ", ");
    vprintf(fmt, args);
    va_end(args);
    *first = false;
}

/* Whether the health of a device says more than that nobody else computes on the CPU, and says it of now. */
static bool health_matters(const json_t *device)
{
    const json_t *health = json_object_get(device, "health");
    return json_is_object(health) && strcmp(show_str(device, "state"), "unreachable") != 0 &&
           show_num(health, "others_cores", 1) >= 0.25;
}

/* Says until when the job on a drained device may stay there. */
static const char *drain_end(const json_t *object, char out[24])
{
    const char *at = show_str(object, "drain_at");
    return strcmp(at, "after jobs") == 0 ? "it ends" : clock_words(at, out);
}

/* Prints, for example, "left/cuda0: 93 °C, 900 of 1800 MHz (thermal), 349 of 350 W, others hold 3.00 GiB" */
static void show_health(const json_t *device)
{
    const json_t *health = json_object_get(device, "health"), *reason;
    if (strcmp(show_str(device, "state"), "unreachable") == 0)
        health = NULL; /* how it was once says nothing of now */
    const double others = show_num(health, "others_bytes", 0), ecc = show_num(health, "ecc_uncorrected", 0);
    bool first = true;
    char bytes[32], at[24];
    size_t index;
    printf("%s", show_str(device, "name"));
    if (json_is_string(json_object_get(device, "drain_why")))
        add_fact(&first, "drained: %s (motley undrain %s)", show_str(device, "drain_why"),
                 show_str(device, "name"));
    if (json_is_string(json_object_get(device, "drain_at")))
        add_fact(&first, "its job may stay until %s", drain_end(device, at));
    if (json_is_string(json_object_get(device, "lacks")))
        add_fact(&first, "cannot run a worker: %s", show_str(device, "lacks"));
    if (json_object_get(health, "temperature_c"))
        add_fact(&first, "%.0f °C", show_num(health, "temperature_c", 0));
    if (json_object_get(health, "clock_khz"))
        add_fact(&first, "%.0f of %.0f MHz", show_num(health, "clock_khz", 0) / 1e3,
                 show_num(health, "clock_max_khz", 0) / 1e3);
    json_array_foreach (json_object_get(health, "throttle"), index, reason)
        printf("%s%s", index == 0 ? " (" : ", ", json_string_value(reason));
    printf("%s", json_array_size(json_object_get(health, "throttle")) > 0 ? ")" : "");
    if (show_num(health, "heat", 1) < 1)
        add_fact(&first, "throttled to %.0f %%", 100 * show_num(health, "heat", 1));
    if (json_object_get(health, "power_w"))
        add_fact(&first, "%.0f of %.0f W", show_num(health, "power_w", 0),
                 show_num(health, "power_limit_w", 0));
    if (others > 0)
        add_fact(&first, "others hold %s", units_bytes(bytes, (uint64_t)others));
    if (ecc > 0)
        add_fact(&first, "%.0f memory errors", ecc);
    if (json_object_get(health, "others_cores"))
        add_fact(&first, "others compute on %.2f cores", show_num(health, "others_cores", 0));
    if (json_object_get(health, "xid"))
        add_fact(&first, "Xid %.0f%s%s", show_num(health, "xid", 0),
                 json_object_get(health, "xid_means") ? ": " : "", show_str(health, "xid_means"));
    if (json_object_get(health, "why"))
        add_fact(&first, "health unknown: %s", show_str(health, "why"));
    printf("\n");
}

/* Prints why cards that are present or were configured are not used. */
static void show_unused(const json_t *cards)
{
    const json_t *card;
    size_t index;
    json_array_foreach ((json_t *)(uintptr_t)cards, index, card) {
        char number[32] =
            ""; /* a driver that cannot be used has none; its cards that it does not show have an address */
        if (json_object_get(card, "index"))
            snprintf(number, sizeof(number), ":%.0f", show_num(card, "index", 0));
        else if (json_object_get(card, "pci"))
            snprintf(number, sizeof(number), " %.24s", show_str(card, "pci"));
        printf("not used: %s %s%s%s%s: %s\n", show_str(card, "node"), show_str(card, "kind"), number,
               json_object_get(card, "name") ? " " : "",
               json_object_get(card, "name") ? show_str(card, "name") : "", show_str(card, "why"));
    }
}

/* Prints, for example, "left/cuda0: 9.8 TFLOP/s measured, 12.6 of v100 in the catalogue (0.78 of it)" */
static void show_catalogued(const json_t *device)
{
    const json_t *compared = json_object_get(device, "catalogue");
    if (json_is_object(compared))
        printf("%s: %.3g TFLOP/s measured, %.3g of %s in the catalogue (%.3g of it)\n",
               show_str(device, "name"), show_num(compared, "flops_per_s", 0) / 1e12,
               show_num(compared, "estimated_flops_per_s", 0) / 1e12, show_str(compared, "entry"),
               show_num(compared, "ratio", 0));
}

/* Prints, for example, "left/cuda0: products by /usr/lib/libcublasLt.so.12, 12.1.3" */
static void show_products(const json_t *device)
{
    const json_t *products = json_object_get(device, "products");
    if (json_is_string(json_object_get(products, "library")))
        printf("%s: products by %s\n", show_str(device, "name"), show_str(products, "library"));
    else if (json_is_string(json_object_get(products, "why")))
        printf("%s: products by our own kernels: %s\n", show_str(device, "name"), show_str(products, "why"));
}

int command_devices(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (cli_option(cli, "--catalogue"))
        return show_catalogue(cli, err);
    if (cli_option(cli, "--code"))
        return show_code(cli, err);
    if (client_list(cli, "/v1/devices", "devices", &answer, err) < 0)
        return -1;
    json_t *unused = json_incref(json_object_get(answer, "unused"));
    json_t *devices = json_incref(json_object_get(answer, "devices")), *device;
    size_t index;
    int result = show_list(cli, answer, "devices",
                           "DEVICE:name:s KIND:kind:s STATE:state:s ISA:isa_effective:s THREADS:threads:n "
                           "MEMORY:memory_limit_bytes:b OWN:base_bytes:b DRAINED:drained:s JOB:job:n "
                           "USER:job_owner:s CARD:like:s",
                           err);
    if (!cli->json && result == 0) {
        json_array_foreach (devices, index, device)
            if (health_matters(device) || json_is_string(json_object_get(device, "drain_why")) ||
                json_is_string(json_object_get(device, "drain_at")))
                show_health(device);
        json_array_foreach (devices, index, device)
            show_catalogued(device);
        json_array_foreach (devices, index, device)
            show_products(device);
        show_unused(unused);
    }
    json_decref(devices);
    json_decref(unused);
    return result;
}

int command_drain(struct cli *cli, struct err *err)
{
    char name[512];
    json_t *answer = NULL, *body = NULL;
    const char *by, *why = cli_option(cli, "--reason");
    const bool after = cli_option(cli, "--after-jobs") != NULL;
    char at[32];
    if (cli_option_time(cli, "--by", 1, &by, at, err) < 0)
        return -1;
    if (by || why || after)
        body = json_pack("{s:b, s:s*, s:s*}", "after_jobs", (int)after, "by", by, "reason", why);
    int result =
        http_escape(cli->words[0], name, sizeof(name), err) < 0
            ? -1
            : client_call(cli, "POST", body, &answer, err, "/v1/%s/%s/%s",
                          strchr(cli->words[0], '/') ? "devices" : "nodes", name, cli->command->name);
    json_decref(body);
    if (result < 0)
        return -1;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("%s is %s%s%s\n", cli->words[0],
               strcmp(cli->command->name, "drain") == 0 ? "being drained" : "in use again",
               *show_str(answer, "drain_at") ? ": its job may stay until " : "", drain_end(answer, at));
    json_decref(answer);
    return result;
}

int command_device(struct cli *cli, struct err *err)
{
    char name[512];
    json_t *answer = NULL;
    const char *group = cli_option(cli, "--group");
    if (strcmp(cli->words[0], "set") != 0 || !group)
        return err_set(err, ERR_INVALID, "usage: motley device set DEVICE --group NAME (none: everybody's)");
    json_t *body = json_pack("{s:s?}", "group", strcmp(group, "none") == 0 ? NULL : group);
    int result = http_escape(cli->words[1], name, sizeof(name), err) < 0
                     ? -1
                     : client_call(cli, "PATCH", body, &answer, err, "/v1/devices/%s", name);
    json_decref(body);
    if (result < 0)
        return -1;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("%s is %s%s\n", cli->words[1], strcmp(group, "none") == 0 ? "everybody's" : "group ",
               strcmp(group, "none") == 0 ? "" : group);
    json_decref(answer);
    return result;
}

int command_node(struct cli *cli, struct err *err)
{
    char name[512];
    json_t *answer = NULL;
    if (strcmp(cli->words[0], "remove") != 0)
        return err_set(err, ERR_INVALID, "usage: motley node remove NAME");
    if (http_escape(cli->words[1], name, sizeof(name), err) < 0 ||
        client_call(cli, "DELETE", NULL, &answer, err, "/v1/nodes/%s", name) < 0)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("%s is removed; what ran there goes on elsewhere\n", cli->words[1]);
    json_decref(answer);
    return result;
}

static int revoke_join_tokens(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    char node[256] = "";
    const char *named = cli_option(cli, "--node");
    if (cli_option(cli, "--uses") || cli_option(cli, "--expires") || cli_option(cli, "--replace"))
        return err_set(
            err, ERR_INVALID,
            "motley join-token --revoke: takes --node alone, and without it ends all that are good");
    if ((named && http_escape(named, node, sizeof(node), err) < 0) ||
        client_call(cli, "DELETE", NULL, &answer, err, "/v1/join-tokens%s%s", named ? "?node=" : "", node) <
            0)
        return -1;
    const int result = cli->json ? show_json(answer, err) : 0;
    if (!cli->json)
        printf("%lld revoked\n", (long long)show_num(answer, "revoked", 0));
    json_decref(answer);
    return result;
}

int command_join_token(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    int64_t uses;
    if (cli_option(cli, "--revoke"))
        return revoke_join_tokens(cli, err);
    const char *expires_in;
    char lasts[32];
    if (cli_option_i64(cli, "--uses", 1, 1000, 1, &uses, err) < 0 ||
        cli_option_expires(cli, &expires_in, lasts, err) < 0)
        return -1;
    json_t *wish = json_pack("{s:s*, s:s*}", "node", cli_option(cli, "--node"), "expires_in", expires_in);
    if (cli_option(cli, "--replace"))
        json_object_set_new(wish, "replace", json_true());
    if (cli_option(cli, "--uses")) /* a server of the release before does not know it */
        json_object_set_new(wish, "uses", json_integer(uses));
    int made = client_call(cli, "POST", wish, &answer, err, "/v1/join-tokens");
    json_decref(wish);
    if (made < 0)
        return -1;
    int result = 0;
    if (cli->json) {
        result = show_json(answer, err);
    } else {
        char expires[24];
        printf("%s\n", show_str(answer, "token"));
        char times[32] = "once";
        if (uses > 1)
            snprintf(times, sizeof(times), "%lld times", (long long)uses);
        fprintf(stderr,
                "good %s, until %s; on the machine that joins:\n  MOTLEY_JOIN=TOKEN motley-agent --api %s "
                "--home DIR\n",
                times, clock_words(show_str(answer, "expires"), expires), cli->address);
    }
    json_decref(answer);
    return result;
}

static int model_list(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (cli->word_count != 1)
        return err_set(err, ERR_INVALID, "usage: motley model list");
    if (client_list(cli, "/v1/models", "models", &answer, err) < 0)
        return -1;
    size_t index;
    json_t *model, *base;
    if (!cli->json)
        json_array_foreach (json_object_get(answer, "models"), index, model) {
            json_object_set_new(model, "called",
                                json_sprintf("%s/%s", show_str(model, "owner"), show_str(model, "name")));
            base = json_object_get(model, "base");
            json_object_set_new(model, "from",
                                json_sprintf("%s%s%s", show_str(base, "name"),
                                             *show_str(base, "revision") ? "@" : "",
                                             show_str(base, "revision")));
        }
    return show_list(
        cli, answer, "models",
        "NAME:called:s VISIBLE-TO:visibility:s CONTENT:content:s BASE:from:s REGISTERED:created:w", err);
}

int command_model(struct cli *cli, struct err *err)
{
    if (strcmp(cli->words[0], "list") == 0)
        return model_list(cli, err);
    if (strcmp(cli->words[0], "get") == 0 && cli->word_count == 2)
        return hub_get(cli, cli->words[1], err);
    if (strcmp(cli->words[0], "add") != 0 || cli->word_count != 3)
        return err_set(err, ERR_INVALID,
                       "usage: motley model add NAME PATH|OWNER/NAME [--visibility WHO] [--base OWNER/NAME], "
                       "motley model get "
                       "OWNER/NAME[@REVISION][:FILE], or motley model list");
    char path[PATH_MAX];
    json_t *answer = NULL;
    const bool here = realpath(cli->words[2], path) != NULL;
    if (!here && !hub_means(cli->words[2]))
        return err_errno(err, ERR_INVALID, errno, "could not open the model %s", cli->words[2]);
    if ((here ? upload_model(cli, cli->words[1], path, &answer, err)
              : upload_hub_model(cli, cli->words[1], cli->words[2], &answer, err)) < 0)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("%s is registered, content %.16s…\n", show_str(answer, "name"), show_str(answer, "content"));
    json_decref(answer);
    return result;
}
