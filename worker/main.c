/* motley-worker --socket PATH --dir DIR runs one rank on one device; the agent starts it so.
 * motley-worker --devices prints the cards of this machine as JSON, for the agent and for people. It runs
 * motley-worker --look CARD for each, which runs a kernel there.
 * motley-worker --health MS prints their state, a line of JSON every MS milliseconds, until the reader closes
 * the pipe.
 */
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/usage.h"
#include "engine/gpu/cards.h"
#include "engine/gpu/code.h"
#include "engine/gpu/health.h"
#include "worker/worker.h"

enum { MMAP_BYTES = 512 << 10, ARENAS = 2, LOOK_SECONDS = 30 /* a card */ };

static struct worker *the_worker; /* used by the signal handler alone */

static void worker_on_signal(int number)
{
    (void)number;
    worker_stop(the_worker);
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = worker_on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

/* Runs until the reader closes the pipe. Returns the exit status. */
static int print_health(const char *interval)
{
    struct err err;
    char *end;
    long ms = strtol(interval, &end, 10);
    if (*end != '\0' || ms < 10 || ms > 3600000)
        return 2;
    if (gpu_health_watch((uint32_t)ms, &err) == 0)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return 1;
}

/* Prints and frees the document. Returns the exit status. */
static int print_json(json_t *document)
{
    int status = document && json_dumpf(document, stdout, JSON_INDENT(1)) == 0 && puts("") >= 0 ? 0 : 1;
    json_decref(document);
    return status;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"socket", required_argument, NULL, 's'}, {"dir", required_argument, NULL, 'd'},
        {"devices", no_argument, NULL, 'D'},      {"code", no_argument, NULL, 'C'},
        {"health", required_argument, NULL, 'H'}, {"visible", required_argument, NULL, 'V'},
        {"look", required_argument, NULL, 'L'},   {NULL, 0, NULL, 0}};
    static const char usage[] = "usage: motley-worker --socket PATH --dir DIR; motley-agent starts it\n";
    const struct gpu_cards_options cards = {.root = "", .program = "/proc/self/exe", .seconds = LOOK_SECONDS};
    struct worker_options options = {.confined = true};
    struct err err;
    if (usage_answered(argc, argv, usage))
        return 0;
    /* Large blocks are always mapped and unmapped, because a plan counts this process's memory closely. */
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    mallopt(M_ARENA_MAX, ARENAS);
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;)
        if (option == 's')
            options.socket = optarg;
        else if (option == 'd')
            options.dir = optarg;
        else if (option == 'D')
            return print_json(gpu_cards(&cards, &err));
        else if (option == 'L')
            return print_json(gpu_card_look(optarg, &err));
        else if (option == 'V')
            setenv("CUDA_VISIBLE_DEVICES", optarg, 1); /* set before any driver is opened */
        else if (option == 'C')
            return print_json(gpu_code_list(&err));
        else if (option == 'H')
            return print_health(optarg);
        else
            return 2;
    if (!options.socket || !options.dir || optind < argc) {
        fputs(usage, stderr);
        return 2;
    }
    if (worker_create(&options, &the_worker, &err) < 0) {
        log_event(LOG_LEVEL_ERROR, "worker_failed", "code=%s text=\"%s\"", err_code_name(err.code), err.text);
        return 1;
    }
    catch_signals();
    int result = worker_main(the_worker, &err);
    if (result < 0)
        log_event(LOG_LEVEL_ERROR, "worker_failed", "code=%s text=\"%s\"", err_code_name(err.code), err.text);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    worker_destroy(the_worker);
    return result < 0 ? 1 : 0;
}
