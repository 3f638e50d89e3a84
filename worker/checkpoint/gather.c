/* Gathers a checkpoint over the tree of all ranks. A rank sends its parent one message after another: files
 * with adapters' values (its own, and those of the ranks below as they arrive), and at last the list of files
 * that it and those ranks stored. So no rank has more than one file of another rank in memory. */
#include "worker/checkpoint/gather.h"

#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "worker/checkpoint/adapter.h"
#include "worker/checkpoint/adapter_file.h"

enum { PART_FAILED, PART_ADAPTER, PART_FILES };
enum { TAG_HEAD = 1, TAG_BODY, TAG_TAKEN };
/* Most bytes of a message: a file with its header and its index lines, or a list of files. */
#define PART_BYTES_MAX ((uint64_t)48 << 20)

/* The header sent before the bytes of a message. */
struct part_head {
    uint64_t kind, lines_size, size;
};

struct gathering {
    struct session *session;
    struct snapshot *snapshot;
    struct adapter_log *log; /* on rank 0, if adapters are trained */
    struct buf body;         /* bytes of the message being sent or received */
    int result;
    struct err *err; /* the first failure */
};

static void gather_failed(struct gathering *g, const struct err *err)
{
    if (g->result == 0)
        *g->err = *err;
    g->result = -1;
}

/* --- messages --- */

static struct mesh_post part_post(const struct session *session, uint32_t rank)
{
    return (struct mesh_post){.peer = rank,
                              .queue = OPS_QUEUE_WORKER,
                              .deadline_ns = clock_mono_ns() + session->assignment->save_wait_ns};
}

static int gather_part_send(struct gathering *g, const struct part_head *head, struct err *err)
{
    struct mesh_meta first = {.tag = TAG_HEAD}, second = {.tag = TAG_BODY};
    struct mesh_post post = part_post(g->session, (uint32_t)g->session->tree.parent);
    if (mesh_send_wait(g->session->mesh, &post, &first, head, sizeof(*head), NULL, err) < 0)
        return -1;
    if (head->lines_size + head->size == 0)
        return 0;
    return mesh_send_wait(g->session->mesh, &post, &second, g->body.data, head->lines_size + head->size, NULL,
                          err);
}

static int part_receive(struct gathering *g, uint32_t child, struct part_head *head, struct err *err)
{
    struct mesh_post post = part_post(g->session, child);
    struct mesh_done done;
    if (mesh_recv_wait(g->session->mesh, &post, TAG_HEAD, head, sizeof(*head), &done, err) < 0)
        return -1;
    uint64_t size = head->lines_size + head->size;
    if (done.size != sizeof(*head) || head->kind > PART_FILES || head->lines_size > PART_BYTES_MAX ||
        head->size > PART_BYTES_MAX || size > PART_BYTES_MAX)
        return err_set(err, ERR_PEER, "rank %u announced a checkpoint part of %llu bytes, the limit is %llu",
                       child, (unsigned long long)size, (unsigned long long)PART_BYTES_MAX);
    buf_clear(&g->body);
    if (size == 0)
        return 0;
    if (buf_reserve(&g->body, size, err) < 0 ||
        mesh_recv_wait(g->session->mesh, &post, TAG_BODY, g->body.data, size, &done, err) < 0)
        return -1;
    if (done.size != size)
        return err_set(err, ERR_PEER, "rank %u announced %llu bytes and sent %zu", child,
                       (unsigned long long)size, done.size);
    g->body.size = size;
    return 0;
}

/* Tells the child that its last message has arrived or is no longer expected, so that its process may end. */
static void part_acknowledge(struct session *session, uint32_t child)
{
    struct err ignored; /* sending fails only when the child's process has ended */
    uint64_t taken = 1;
    struct mesh_meta meta = {.tag = TAG_TAKEN};
    struct mesh_post post = part_post(session, child);
    (void)mesh_send_wait(session->mesh, &post, &meta, &taken, sizeof(taken), NULL, &ignored);
}

/* --- what a rank takes from its children and sends to its parent --- */

static int files_merge(struct gathering *g, struct err *err)
{
    json_t *more = json_parse_limited(buf_str(&g->body), g->body.size, 4, err), *value;
    const char *name;
    int result = json_is_object(more) ? 0 : err_set(err, ERR_PEER, "no list of files");
    json_object_foreach (more, name, value)
        json_object_set(g->snapshot->blobs, name, value);
    json_decref(more);
    return result;
}

/* Takes a file of adapters' values from a child: rank 0 keeps it in its spool, other ranks send it to their
 * parent. */
static int adapter_pass(struct gathering *g, const struct part_head *head, struct err *err)
{
    uint64_t at;
    if (!g->log)
        return gather_part_send(g, head, err);
    if (head->lines_size == 0 || spool_append(g->snapshot->spool, g->body.data, g->body.size, &at, err) < 0)
        return -1;
    return adapter_log_add(g->log, (const char *)g->body.data, head->lines_size, at + head->lines_size, err);
}

static void child_take(struct gathering *g, uint32_t child)
{
    struct part_head head = {.kind = PART_ADAPTER};
    struct err err;
    while (head.kind == PART_ADAPTER) {
        int result = part_receive(g, child, &head, &err);
        bool over = result < 0; /* true: this child sends no further message */
        if (result == 0 && head.kind == PART_FAILED)
            result = err_set(&err, ERR_IO, "it could not write its part");
        else if (result == 0 && g->result == 0)
            result = head.kind == PART_FILES ? files_merge(g, &err) : adapter_pass(g, &head, &err);
        if (result < 0) {
            err_wrap(&err, "checkpoint part of rank %u", child);
            gather_failed(g, &err);
        }
        if (over)
            return;
    }
}

/* Sends this rank's files of adapters' values to the parent; on rank 0 adds them to the log. */
static int own_adapters(struct gathering *g, struct err *err)
{
    struct snapshot *snapshot = g->snapshot;
    for (size_t f = 0; f < snapshot->adapter_count; f++) {
        const struct adapter_file *file = &snapshot->adapters[f];
        struct part_head head = {PART_ADAPTER, file->lines_size, file->size};
        size_t bytes = file->lines_size + (g->log ? 0 : file->size);
        buf_clear(&g->body);
        if (buf_reserve(&g->body, bytes, err) < 0 ||
            spool_read(snapshot->spool, file->at, g->body.data, bytes, err) < 0)
            return -1;
        g->body.size = bytes;
        if ((g->log ? adapter_log_add(g->log, (const char *)g->body.data, file->lines_size,
                                      file->at + file->lines_size, err)
                    : gather_part_send(g, &head, err)) < 0)
            return -1;
    }
    return 0;
}

/* Sends the parent the list of stored files, or that storing failed, and waits until the parent has received
 * it. Only then may this rank's process end, because unsent bytes would be lost with it. */
static int end_send(struct gathering *g, struct err *err)
{
    uint64_t taken = 0;
    struct part_head head = {.kind = PART_FAILED};
    struct err own;
    buf_fini(&g->body);
    if (g->result == 0 && json_print(g->snapshot->blobs, true, &g->body, &own) < 0) {
        buf_fini(&g->body);
        gather_failed(g, &own);
    } else if (g->result == 0)
        head = (struct part_head){.kind = PART_FILES, .size = g->body.size};
    struct mesh_post post = part_post(g->session, (uint32_t)g->session->tree.parent);
    if (gather_part_send(g, &head, err) < 0)
        return -1;
    return mesh_recv_wait(g->session->mesh, &post, TAG_TAKEN, &taken, sizeof(taken), NULL, err);
}

/* --- rank 0 --- */

static int put_json(struct session *session, json_t *blobs, const char *name, json_t *document,
                    struct err *err)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    int result = document ? json_print(document, false, &text, err) : -1;
    if (result == 0)
        result = checkpoint_put(session, blobs, name, text.data, text.size, err);
    buf_fini(&text);
    json_decref(document);
    return result;
}

/* Makes state.json, which states how far training has come. */
static json_t *position_json(const struct session *session, const struct snapshot *snapshot, struct err *err)
{
    json_t *state =
        json_pack("{s:i, s:I, s:I, s:I, s:i}", "version", 2, "step", (json_int_t)snapshot->step, "updates",
                  (json_int_t)snapshot->updates, "seed", (json_int_t)session->assignment->spec.train.seed,
                  "ranks", (int)session->assignment->rank_count);
    if (state && snapshot->scale.on) {
        json_object_set_new(state, "loss_scale", json_real(snapshot->scale.value));
        json_object_set_new(state, "good_steps", json_integer((json_int_t)snapshot->scale.good));
    }
    if (!state)
        err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    return state;
}

static int end_store(struct gathering *g, struct err *err)
{
    struct session *session = g->session;
    struct snapshot *snapshot = g->snapshot;
    if (g->log) {
        if (adapter_file_store(session, snapshot, g->log, err) < 0)
            return -1;
        const struct model_part *model = &session->assignment->model;
        json_t *config = adapter_config(&session->assignment->spec, &session->config, model->base, err);
        if (config && model->revision)
            json_object_set_new(config, "revision", json_string(model->revision));
        if (put_json(session, snapshot->blobs, "adapter_config.json", config, err) < 0)
            return -1;
    }
    if (snapshot_index_end(snapshot, session, err) < 0 || snapshot_put_waiting(snapshot, session, err) < 0)
        return -1;
    return put_json(session, snapshot->blobs, "state.json", position_json(session, snapshot, err), err);
}

int gather_parts(struct session *session, struct snapshot *snapshot, int result, struct err *err)
{
    struct gathering g = {.session = session, .snapshot = snapshot, .result = result, .err = err};
    bool first = session->tree.parent == PLAN_NONE;
    struct err own;
    buf_init(&g.body, PART_BYTES_MAX);
    if (g.result == 0 && first && !state_is_full(session) &&
        adapter_log_create(snapshot->spool, &g.log, &own) < 0)
        gather_failed(&g, &own);
    if (g.result == 0 && own_adapters(&g, &own) < 0)
        gather_failed(&g, &own);
    for (int c = 0; c < 2; c++)
        if (session->tree.children[c] != PLAN_NONE) {
            child_take(&g, (uint32_t)session->tree.children[c]);
            part_acknowledge(session, (uint32_t)session->tree.children[c]);
        }
    if (first) {
        buf_fini(&g.body);
        if (g.result == 0 && end_store(&g, &own) < 0)
            gather_failed(&g, &own);
    } else if (end_send(&g, &own) < 0)
        gather_failed(&g, &own);
    adapter_log_destroy(g.log);
    buf_fini(&g.body);
    return g.result;
}
