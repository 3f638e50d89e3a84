/* A few threads that plan one question each, and a memory of the last answers.
 *
 * Questions with the same specification are planned one after the other, so that a class of jobs whose
 * searches are long leaves threads to the other classes.
 *
 * Invariant: a question belongs to the planning threads from when it is in `asked` until it is in `answered`,
 * and to the event loop before and after. The lock guards only that hand-over. Documents are copied deeply,
 * because Jansson's reference counts must not be shared between the threads.
 */
#include "scheduler/placer/planning.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <event2/event.h>

#include "common/digest.h"
#include "common/hash.h"
#include "common/json.h"

/* ANSWERS_MAX: answers that are remembered. QUESTIONS_MAX: questions that wait or are being planned;
 * CLASS_QUESTIONS_MAX: those of one specification. A pass repeats a question that found no room.
 * KEY_BYTES_MAX: most bytes of a question as text. */
enum { ANSWERS_MAX = 64, QUESTIONS_MAX = 16, CLASS_QUESTIONS_MAX = 4, THREADS = 4, KEY_BYTES_MAX = 1 << 28 };

/* Identifies a question: a digest of all of it, and a hash of its specification, which is the class. */
struct question_key {
    uint8_t digest[DIGEST_SIZE];
    uint64_t class;
};

struct question {
    struct question_key key;
    struct placer_request request;
    struct placer_device *devices;
    struct placer_move move;
    double *compute_s; /* measured compute times of the ranks, for move.compute_s */
    struct store_sched_device *rows;
    json_t **links;
    json_t **owned; /* copies of all documents that the request refers to */
    size_t owned_count;
    uint8_t *train, *eval;
    struct placer_answer answer;
    int result;
    struct err err;
};

struct cached_answer {
    uint8_t digest[DIGEST_SIZE];
    struct placer_answer answer;
    int result;
    struct err err;
    uint64_t used;
};

struct planning {
    const struct placer *placer;
    const struct planners *planners;
    int cancel_fd; /* becomes readable when the external planner must end */
    void (*arrived)(void *arg);
    void *arg;
    struct event *news;
    int eventfd;
    pthread_t threads[THREADS];
    size_t started;
    size_t cached_count;
    struct cached_answer cached[ANSWERS_MAX];
    uint64_t clock;

    pthread_mutex_t lock;
    pthread_cond_t wanted;
    struct question *asked[QUESTIONS_MAX]; /* waiting questions in the order in which they were asked */
    struct question *answered[QUESTIONS_MAX];
    size_t asked_count, answered_count;
    uint64_t planned[THREADS]; /* classes of the questions that are being planned */
    size_t planned_count;
    bool stop;
    /* keys of the questions that were asked and whose answers the event loop has not yet taken */
    struct question_key open[QUESTIONS_MAX];
    size_t open_count;
};

/* ---- questions ---- */

static void question_free(struct question *question)
{
    if (!question)
        return;
    for (size_t i = 0; i < question->owned_count; i++)
        json_decref(question->owned[i]);
    placer_answer_fini(&question->answer);
    free(question->owned);
    free(question->links);
    free(question->devices);
    free(question->rows);
    free(question->compute_s);
    free(question->train);
    free(question->eval);
    free(question);
}

static json_t *own(struct question *question, const json_t *document)
{
    json_t *copy = document ? json_deep_copy(document) : NULL;
    if (copy)
        question->owned[question->owned_count++] = copy;
    return copy;
}

static uint8_t *planning_copy_bytes(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    if (copy && size > 0)
        memcpy(copy, bytes, size);
    return copy;
}

static int copy_devices(struct question *question, const struct placer_request *from)
{
    for (size_t i = 0; i < from->device_count; i++) {
        const struct store_sched_device *device = from->devices[i].device;
        const json_t *const names[] = {json_string(device->name), json_string(device->node),
                                       json_string(device->kind)};
        for (size_t n = 0; n < 3; n++) {
            if (!names[n])
                return -1;
            question->owned[question->owned_count++] = (json_t *)names[n];
        }
        question->rows[i] = (struct store_sched_device){.name = (char *)json_string_value(names[0]),
                                                        .node = (char *)json_string_value(names[1]),
                                                        .kind = (char *)json_string_value(names[2]),
                                                        .inventory = own(question, device->inventory),
                                                        .memory_limit_bytes = device->memory_limit_bytes,
                                                        .present = device->present,
                                                        .drained = device->drained};
        question->devices[i].device = &question->rows[i];
        question->devices[i].memory_bytes = from->devices[i].memory_bytes;
        question->devices[i].heat = from->devices[i].heat;
        question->devices[i].speed = from->devices[i].speed;
        question->devices[i].profile = own(question, from->devices[i].profile);
        question->devices[i].taught = own(question, from->devices[i].taught);
        if ((device->inventory && !question->rows[i].inventory) ||
            (from->devices[i].profile && !question->devices[i].profile) ||
            (from->devices[i].taught && !question->devices[i].taught)) {
            return -1;
        }
    }
    return 0;
}

static struct question *question_copy(const struct placer_request *from, const struct question_key *key)
{
    struct question *question = calloc(1, sizeof(*question));
    if (!question)
        return NULL;
    question->key = *key;
    question->owned = calloc(from->device_count * 6 + from->link_count + 6, sizeof(json_t *));
    question->devices = calloc(from->device_count + 1, sizeof(*question->devices));
    question->rows = calloc(from->device_count + 1, sizeof(*question->rows));
    question->links = calloc(from->link_count + 1, sizeof(json_t *));
    question->train = planning_copy_bytes(from->train_sizes, from->train_bytes);
    question->eval = planning_copy_bytes(from->eval_sizes, from->eval_bytes);
    bool whole = question->owned && question->devices && question->rows && question->links &&
                 question->train && question->eval;
    if (whole) {
        question->request = *from;
        question->request.spec = own(question, from->spec);
        question->request.inputs = own(question, from->inputs);
        question->request.model = own(question, from->model);
        question->request.pinned = own(question, from->pinned);
        question->request.train_sizes = from->train_sizes ? question->train : NULL;
        question->request.eval_sizes = from->eval_sizes ? question->eval : NULL;
        question->request.devices = question->devices;
        question->request.links = (const json_t *const *)question->links;
        whole = (question->request.spec || !from->spec) && (question->request.inputs || !from->inputs) &&
                (question->request.model || !from->model) && (question->request.pinned || !from->pinned) &&
                copy_devices(question, from) == 0;
    }
    if (whole && from->move) {
        question->move = *from->move;
        question->move.plan = own(question, from->move->plan);
        question->compute_s = calloc(from->move->rank_count + 1, sizeof(double));
        question->move.compute_s = question->compute_s;
        question->request.move = &question->move;
        whole = question->move.plan && question->compute_s;
        for (size_t i = 0; whole && i < from->move->rank_count; i++)
            question->compute_s[i] = from->move->compute_s[i];
    }
    for (size_t i = 0; whole && i < from->link_count; i++) {
        question->links[i] = own(question, from->links[i]);
        whole = question->links[i] != NULL;
    }
    if (!whole) {
        question_free(question);
        return NULL;
    }
    return question;
}

/* ---- keys ---- */

static int add_document(struct digest *digest, struct buf *text, const json_t *document, struct err *err)
{
    text->size = 0;
    if (document && json_print(document, true, text, err) < 0)
        return -1;
    uint64_t size = text->size;
    return digest_update(digest, &size, sizeof(size), err) < 0 ||
                   digest_update(digest, text->data, size, err) < 0
               ? -1
               : 0;
}

static int add_device(struct digest *digest, struct buf *text, const struct placer_device *device,
                      struct err *err)
{
    const struct store_sched_device *row = device->device;
    const char *const names[] = {row->name, row->node, row->kind};
    for (size_t i = 0; i < 3; i++)
        if (digest_update(digest, names[i], strlen(names[i]) + 1, err) < 0)
            return -1;
    return digest_update(digest, &device->memory_bytes, sizeof(device->memory_bytes), err) < 0 ||
                   digest_update(digest, &device->heat, sizeof(device->heat), err) < 0 ||
                   digest_update(digest, &device->speed, sizeof(device->speed), err) < 0 ||
                   add_document(digest, text, row->inventory, err) < 0 ||
                   add_document(digest, text, device->profile, err) < 0 ||
                   add_document(digest, text, device->taught, err) < 0
               ? -1
               : 0;
}

static int add_bytes(struct digest *digest, const uint8_t *bytes, size_t size, struct err *err)
{
    uint64_t all = bytes ? size : UINT64_MAX;
    return digest_update(digest, &all, sizeof(all), err) < 0 ||
                   (bytes && size > 0 && digest_update(digest, bytes, size, err) < 0)
               ? -1
               : 0;
}

static int add_move(struct digest *digest, struct buf *text, const struct placer_move *move, struct err *err)
{
    return digest_update(digest, &move->steps_left, sizeof(move->steps_left), err) < 0 ||
                   digest_update(digest, &move->restart_s, sizeof(move->restart_s), err) < 0 ||
                   digest_update(digest, &move->windows, sizeof(move->windows), err) < 0 ||
                   digest_update(digest, move->compute_s, move->rank_count * sizeof(double), err) < 0 ||
                   add_document(digest, text, move->plan, err) < 0
               ? -1
               : 0;
}

static int planning_key_of(const struct placer_request *request, struct question_key *key, struct err *err)
{
    struct digest *digest = digest_create(err);
    struct buf text = {.limit = KEY_BYTES_MAX};
    int result = digest && buf_reserve(&text, 1, err) == 0 ? 0 : -1;
    const json_t *const documents[] = {request->spec, request->inputs, request->model, request->pinned};
    for (size_t i = 0; i < 4 && result == 0; i++) {
        result = add_document(digest, &text, documents[i], err);
        if (i == 0)
            key->class = hash_bytes(HASH_BEGIN, text.data, text.size);
    }
    if (result == 0)
        result = add_bytes(digest, request->train_sizes, request->train_bytes, err);
    if (result == 0)
        result = add_bytes(digest, request->eval_sizes, request->eval_bytes, err);
    for (size_t i = 0; i < request->device_count && result == 0; i++)
        result = add_device(digest, &text, &request->devices[i], err);
    for (size_t i = 0; i < request->link_count && result == 0; i++)
        result = add_document(digest, &text, request->links[i], err);
    if (result == 0 && request->move)
        result = add_move(digest, &text, request->move, err);
    if (result == 0)
        result = digest_final(digest, key->digest, err);
    digest_destroy(digest);
    buf_fini(&text);
    return result;
}

/* ---- the threads ---- */

/* Takes the first waiting question of a class of which no question is being planned; NULL when there is
 * none. */
static struct question *take_question(struct planning *planning)
{
    for (size_t i = 0; i < planning->asked_count; i++) {
        struct question *question = planning->asked[i];
        bool busy = false;
        for (size_t k = 0; k < planning->planned_count; k++)
            busy = busy || planning->planned[k] == question->key.class;
        if (busy)
            continue;
        memmove(planning->asked + i, planning->asked + i + 1,
                (--planning->asked_count - i) * sizeof(question));
        planning->planned[planning->planned_count++] = question->key.class;
        return question;
    }
    return NULL;
}

/* Notes that the class's question has been planned, so that the class's next question may be planned. */
static void end_class(struct planning *planning, uint64_t class)
{
    size_t at = 0;
    while (planning->planned[at] != class)
        at++;
    planning->planned[at] = planning->planned[--planning->planned_count];
    pthread_cond_signal(&planning->wanted);
}

static void *plan_all(void *arg)
{
    struct planning *planning = arg;
    pthread_mutex_lock(&planning->lock);
    while (!planning->stop) {
        struct question *question = take_question(planning);
        if (!question) {
            pthread_cond_wait(&planning->wanted, &planning->lock);
            continue;
        }
        pthread_mutex_unlock(&planning->lock);
        question->result = planning->placer->plan(&question->request, &question->answer, &question->err);
        uint64_t one = 1;
        pthread_mutex_lock(&planning->lock);
        end_class(planning, question->key.class);
        planning->answered[planning->answered_count++] = question;
        while (write(planning->eventfd, &one, sizeof(one)) < 0 && errno == EINTR) {
        }
    }
    pthread_mutex_unlock(&planning->lock);
    return NULL;
}

/* ---- answers ---- */

static struct cached_answer *cache_slot(struct planning *planning)
{
    if (planning->cached_count < ANSWERS_MAX)
        return &planning->cached[planning->cached_count++];
    struct cached_answer *oldest = &planning->cached[0];
    for (size_t i = 1; i < planning->cached_count; i++)
        if (planning->cached[i].used < oldest->used)
            oldest = &planning->cached[i];
    placer_answer_fini(&oldest->answer);
    return oldest;
}

static void planning_keep_answer(struct planning *planning, struct question *question)
{
    struct cached_answer *cached = cache_slot(planning);
    *cached = (struct cached_answer){.answer = question->answer,
                                     .result = question->result,
                                     .err = question->err,
                                     .used = ++planning->clock};
    memcpy(cached->digest, question->key.digest, sizeof(cached->digest));
    question->answer = (struct placer_answer){0};
    size_t kept = 0;
    for (size_t i = 0; i < planning->open_count; i++)
        if (memcmp(planning->open[i].digest, question->key.digest, DIGEST_SIZE) != 0)
            planning->open[kept++] = planning->open[i];
    planning->open_count = kept;
    question_free(question);
}

static void planning_on_news(evutil_socket_t fd, short what, void *arg)
{
    struct planning *planning = arg;
    struct question *answered[QUESTIONS_MAX];
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof(count)) < 0)
        return;
    pthread_mutex_lock(&planning->lock);
    size_t answered_count = planning->answered_count;
    memcpy(answered, planning->answered, answered_count * sizeof(answered[0]));
    planning->answered_count = 0;
    pthread_mutex_unlock(&planning->lock);
    for (size_t i = 0; i < answered_count; i++)
        planning_keep_answer(planning, answered[i]);
    if (answered_count > 0)
        planning->arrived(planning->arg);
}

static int answer_copy(struct placer_answer *to, const struct placer_answer *from, struct err *err)
{
    *to = *from;
    to->plan = json_incref(from->plan);
    to->answer = json_incref(from->answer);
    to->timeline = json_incref(from->timeline);
    to->rivals = json_incref(from->rivals);
    to->rank_count = 0;
    to->ranks = calloc(from->rank_count + 1, sizeof(*to->ranks));
    while (to->ranks && to->rank_count < from->rank_count) {
        to->ranks[to->rank_count].device = strdup(from->ranks[to->rank_count].device);
        if (!to->ranks[to->rank_count].device)
            break;
        to->rank_count++;
    }
    if (!to->ranks || to->rank_count < from->rank_count) {
        placer_answer_fini(to);
        return err_set(err, ERR_NOMEM, "no memory for a plan of %zu ranks", from->rank_count);
    }
    return 1;
}

int planning_get(struct planning *planning, const struct placer_request *request,
                 struct placer_answer *answer, struct err *err)
{
    struct question_key key = {0};
    size_t alike = 0; /* number of open questions of the same class */
    *answer = (struct placer_answer){0};
    if (planning_key_of(request, &key, err) < 0)
        return -1;
    for (size_t i = 0; i < planning->cached_count; i++) {
        struct cached_answer *cached = &planning->cached[i];
        if (memcmp(cached->digest, key.digest, sizeof(key.digest)) == 0) {
            cached->used = ++planning->clock;
            if (cached->result < 0) {
                *err = cached->err;
                /* another try may succeed, so a temporary failure is not remembered */
                if (err->code == ERR_NOMEM || err->code == ERR_INTERNAL)
                    *cached = planning->cached[--planning->cached_count];
                return -1;
            }
            return answer_copy(answer, &cached->answer, err);
        }
    }
    for (size_t i = 0; i < planning->open_count; i++) {
        if (memcmp(planning->open[i].digest, key.digest, sizeof(key.digest)) == 0)
            return 0;
        alike += planning->open[i].class == key.class ? 1 : 0;
    }
    if (planning->open_count == QUESTIONS_MAX || alike == CLASS_QUESTIONS_MAX)
        return 0;
    struct question *question = question_copy(request, &key);
    if (!question)
        return err_set(err, ERR_NOMEM, "no memory for planning");
    question->request.planners = planning->planners;
    question->request.cancel_fd = planning->cancel_fd;
    planning->open[planning->open_count++] = key;
    pthread_mutex_lock(&planning->lock);
    planning->asked[planning->asked_count++] = question;
    pthread_cond_signal(&planning->wanted);
    pthread_mutex_unlock(&planning->lock);
    return 0;
}

/* ---- creating and destroying ---- */

struct planning *planning_create(struct event_base *base, const struct placer *placer,
                                 const struct planners *planners, void (*arrived)(void *arg), void *arg,
                                 struct err *err)
{
    struct planning *planning = calloc(1, sizeof(*planning));
    if (!planning) {
        err_set(err, ERR_NOMEM, "no memory for planning");
        return NULL;
    }
    planning->placer = placer;
    planning->planners = planners;
    planning->arrived = arrived;
    planning->arg = arg;
    pthread_mutex_init(&planning->lock, NULL);
    pthread_cond_init(&planning->wanted, NULL);
    planning->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    planning->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    planning->news = planning->eventfd >= 0 ? event_new(base, planning->eventfd, EV_READ | EV_PERSIST,
                                                        planning_on_news, planning)
                                            : NULL;
    if (planning->cancel_fd < 0 || !planning->news || event_add(planning->news, NULL) < 0) {
        err_set(err, ERR_NOMEM, "no memory for planning");
        planning_destroy(planning);
        return NULL;
    }
    while (planning->started < THREADS) {
        int error = pthread_create(&planning->threads[planning->started], NULL, plan_all, planning);
        if (error != 0) {
            err_errno(err, ERR_NOMEM, error, "could not start a thread for planning");
            planning_destroy(planning);
            return NULL;
        }
        planning->started++;
    }
    return planning;
}

void planning_destroy(struct planning *planning)
{
    if (!planning)
        return;
    pthread_mutex_lock(&planning->lock);
    planning->stop = true;
    pthread_cond_broadcast(&planning->wanted);
    pthread_mutex_unlock(&planning->lock);
    uint64_t one = 1;
    while (planning->cancel_fd >= 0 && write(planning->cancel_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    while (planning->started > 0)
        pthread_join(planning->threads[--planning->started], NULL);
    for (size_t i = 0; i < planning->asked_count; i++)
        question_free(planning->asked[i]);
    for (size_t i = 0; i < planning->answered_count; i++)
        question_free(planning->answered[i]);
    for (size_t i = 0; i < planning->cached_count; i++)
        placer_answer_fini(&planning->cached[i].answer);
    if (planning->news)
        event_free(planning->news);
    if (planning->eventfd >= 0)
        close(planning->eventfd);
    if (planning->cancel_fd >= 0)
        close(planning->cancel_fd);
    pthread_cond_destroy(&planning->wanted);
    pthread_mutex_destroy(&planning->lock);
    free(planning);
}
