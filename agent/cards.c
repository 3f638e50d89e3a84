#include "agent/cards.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/json.h"
#include "common/program_json.h"

enum {
    ANSWER_SECONDS = 40, /* for the drivers, and for each card: 30 s, and what ending a hung process takes */
    CARDS_ALONE_MAX = 64
};
static const uint64_t RESERVE_BYTES =
    500000000; /* bytes of a card that stay free in addition to the 8 % that plans do not use */
static const uint64_t STEP_BYTES =
    64 << 20; /* limits are multiples of this, so that small changes of the free memory change no limit */

/* Returns the card that a process sees when only `uuid` is visible to it, or why it sees none. */
static json_t *card_alone(const char *worker, const char *uuid)
{
    const char *argv[] = {worker, "--visible", uuid, "--devices", NULL};
    struct err why = {.text = "its driver does not show it"};
    json_t *answer = program_json(argv, 2 * ANSWER_SECONDS, &why), *driver;
    size_t i;
    json_array_foreach (json_object_get(answer, "drivers"), i, driver) {
        const char *said = json_text_of(driver, "why");
        if (*said != '\0' && strcmp(json_text_of(driver, "kind"), "cuda") == 0)
            snprintf(why.text, sizeof(why.text), "%s", said);
    }
    json_t *card = json_incref((json_t *)(uintptr_t)cards_find(answer, "cuda", 0));
    json_decref(answer);
    if (!card)
        card = json_pack("{s:s, s:b, s:s}", "kind", "cuda", "usable", 0, "why", why.text);
    json_object_set_new(card, "uuid", json_string(uuid));
    json_object_set_new(card, "visible", json_string(uuid));
    return card;
}

/* Queries the cards and MIG slices of answer's "apart", each by a process to which only it is visible. They
 * become the first entries of "cards", numbered from 0; the cards that are divided into slices follow. */
static void cards_alone(const char *worker, json_t *answer)
{
    json_t *apart = json_object_get(answer, "apart"), *cards = json_array(), *item;
    json_int_t number = 0;
    size_t i;
    if (!apart) {
        json_decref(cards);
        return;
    }
    json_array_foreach (apart, i, item) {
        if (json_is_string(item) && i < CARDS_ALONE_MAX) {
            json_t *card = card_alone(worker, json_string_value(item));
            json_object_set_new(card, "index", json_integer(number++));
            json_array_append_new(cards, card);
        }
    }
    json_array_foreach (json_object_get(answer, "cards"), i, item) {
        if (!json_object_get(item, "index"))
            json_object_set_new(item, "index", json_integer(number++));
        json_array_append(cards, item);
    }
    json_object_set_new(answer, "cards", cards);
    json_object_del(answer, "apart");
}

/* How many cards this machine may have, by their device nodes; at least 1. */
static uint32_t cards_expected(void)
{
    static const char *const nodes[] = {"/dev/nvidia[0-9]*", "/dev/dri/renderD*"};
    size_t most = 1;
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        glob_t found;
        if (glob(nodes[i], GLOB_NOSORT, NULL, &found) == 0 && found.gl_pathc > most)
            most = found.gl_pathc;
        globfree(&found);
    }
    return most < CARDS_ALONE_MAX ? (uint32_t)most : CARDS_ALONE_MAX;
}

json_t *cards_ask(const char *worker, struct err *err)
{
    const char *argv[] = {worker, "--devices", NULL};
    struct err why = {.text = "the list of cards is no such list"};
    const uint32_t seconds = ANSWER_SECONDS * (1 + cards_expected());
    json_t *answer = program_json(argv, seconds, &why);
    if (!answer && why.code == ERR_TIMEOUT) /* each card has a deadline of its own, but its driver has none */
        err_set(&why, ERR_TIMEOUT,
                "the drivers of the cards did not answer within %u s: does one hang (dmesg, nvidia-smi, "
                "rocminfo)?",
                seconds);
    if (!json_is_array(json_object_get(answer, "cards")) ||
        !json_is_array(json_object_get(answer, "drivers"))) {
        json_decref(answer);
        answer = json_pack("{s:[{s:s, s:s}], s:[]}", "drivers", "kind", "", "why", why.text, "cards");
    }
    cards_alone(worker, answer);
    if (!answer)
        err_set(err, ERR_NOMEM, "no memory for a list of cards");
    return answer;
}

const json_t *cards_find(const json_t *cards, const char *kind, uint32_t index)
{
    const json_t *card;
    size_t i;
    json_array_foreach ((json_t *)json_object_get(cards, "cards"), i, card) {
        const char *own = json_string_value(json_object_get(card, "kind"));
        if (own && strcmp(own, kind) == 0 &&
            json_integer_value(json_object_get(card, "index")) == (json_int_t)index) {
            return card;
        }
    }
    return NULL;
}

uint64_t card_memory_share(uint64_t available)
{
    uint64_t share = available / 100 * 92;
    share = share > 2 * RESERVE_BYTES ? share - RESERVE_BYTES : share / 2;
    return share / STEP_BYTES * STEP_BYTES;
}

int card_lock(const json_t *card, int *file, struct err *err)
{
    const char *uuid = json_string_value(json_object_get(card, "uuid"));
    const char *pci = json_string_value(json_object_get(card, "pci"));
    const char *id = uuid && *uuid != '\0' ? uuid : pci;
    char path[128];
    *file = -1;
    if (!id || *id == '\0')
        return 0; /* an emulated card needs no lock */
    snprintf(path, sizeof(path), "/dev/shm/motley-card-%.80s", id);
    for (char *at = path + strlen("/dev/shm/"); *at != '\0'; at++)
        *at = *at == '/' ? '-' : *at;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        close(fd);
        return err_set(err, ERR_CONFLICT, "another agent of this machine uses it");
    }
    *file = fd; /* if the lock file cannot be made, the card is used without a lock */
    return 0;
}
