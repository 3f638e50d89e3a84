#include "agent/cards.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/program_json.h"

enum { ANSWER_SECONDS = 30 };
static const uint64_t RESERVE_BYTES = 500000000; /* of a card, beside the share that plans use */
static const uint64_t STEP_BYTES = 64 << 20;     /* so that a few bytes more or less are no other device */

json_t *cards_ask(const char *worker, struct err *err)
{
    const char *argv[] = {worker, "--devices", NULL};
    struct err why = {.text = "the list of cards is no such list"};
    json_t *answer = program_json(argv, ANSWER_SECONDS, &why);
    if (!json_is_array(json_object_get(answer, "cards")) ||
        !json_is_array(json_object_get(answer, "drivers"))) {
        json_decref(answer);
        answer = json_pack("{s:[{s:s, s:s}], s:[]}", "drivers", "kind", "", "why", why.text, "cards");
    }
    if (answer == NULL) {
        err_set(err, ERR_NOMEM, "no memory for a list of cards");
    }
    return answer;
}

const json_t *cards_find(const json_t *cards, const char *kind, uint32_t index)
{
    const json_t *card;
    size_t i;
    json_array_foreach((json_t *)json_object_get(cards, "cards"), i, card)
    {
        const char *own = json_string_value(json_object_get(card, "kind"));
        if (own != NULL && strcmp(own, kind) == 0 &&
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
    const char *id = uuid != NULL && *uuid != '\0' ? uuid : pci;
    char path[128];
    *file = -1;
    if (id == NULL || *id == '\0') {
        return 0; /* an emulated one: there are as many as one likes */
    }
    snprintf(path, sizeof(path), "/dev/shm/motley-card-%.80s", id);
    for (char *at = path + strlen("/dev/shm/"); *at != '\0'; at++) {
        *at = *at == '/' ? '-' : *at;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        close(fd);
        return err_set(err, ERR_CONFLICT, "another agent of this machine uses it");
    }
    *file = fd; /* one that cannot be made keeps nobody from training */
    return 0;
}
