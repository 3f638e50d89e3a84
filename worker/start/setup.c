/* Makes a session that can execute its programs from a checked assignment, and closes it. The order matters:
 * cheap checks come first, and the process's own memory is measured before the first large allocation. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/units.h"
#include "model/templates/chat.h"
#include "model/shape/config.h"
#include "model/text/tokenizer.h"
#include "worker/session/method.h"
#include "worker/checkpoint/saver.h"
#include "worker/checkpoint/state.h"
#include "worker/session/report.h"
#include "worker/start/reach.h"
#include "worker/start/start.h"

enum { CONNECT_SECONDS = 60, TRACE_EVENTS_A_STEP = 20000, CLOSE_SECONDS = 20 };
#define ROWS_BYTES_MAX ((uint64_t)2 << 30)

/* Refuses a specification with settings that this worker does not support. */
static int check_supported(const struct assignment *assignment, struct err *err)
{
    const struct job_spec *spec = &assignment->spec;
    if (spec->train.batch_rows != assignment->plan->batch_rows)
        return err_set(err, ERR_INVALID, "the plan is made for %u rows a step and train.batch_rows is %u",
                       assignment->plan->batch_rows, spec->train.batch_rows);
    const struct plan_rank *me = &assignment->plan->ranks[assignment->rank];
    uint64_t allowed = assignment->local.memory_limit_bytes;
    if (allowed != 0 && allowed < me->memory_limit_bytes)
        return err_set(err, ERR_STALE,
                       "the plan counts on %llu bytes of %s and %llu are allowed there now: plan again",
                       (unsigned long long)me->memory_limit_bytes, assignment->local.device,
                       (unsigned long long)allowed);
    return 0;
}

/* --- model, device, stages --- */

static int open_stages(struct session *session, struct err *err)
{
    const struct plan *plan = session->assignment->plan;
    const struct job_spec *spec = &session->assignment->spec;
    const struct local_part *local = &session->assignment->local;
    struct plan_bounds bounds = plan_rank_bounds(plan, session->assignment->rank);
    struct stage_options options = {
        .config = &session->config,
        .mode = STAGE_TRAIN,
        .tokens_max = bounds.tokens,
        .rows_max = bounds.rows,
        .row_tokens_max = plan->sequence_bound < bounds.tokens ? plan->sequence_bound : bounds.tokens,
        .positions_max = plan->sequence_bound,
        .labelled_max = bounds.labelled};
    struct weight_source source = stage_model_source(session->model);
    if (method_options(spec, &options, err) < 0 || local_device_open(local, &session->device, err) < 0 ||
        stages_create(session->device, &source, &options, plan, session->assignment->rank, &session->stages,
                      err) < 0)
        return err_wrap(err, "%s", local->device);
    return 0;
}

/* Logs how much of the model this rank read. */
static int report_fetched(struct session *session, struct err *err)
{
    struct model_source *source = model_get_source(session->model);
    struct model_source_stats stats;
    const char *name = session->assignment->model.name;
    uint64_t bytes = 0;
    char text[400], read_text[32], all_text[32], fetched_text[32];
    model_source_stats(source, &stats);
    for (uint32_t i = 0; i < model_source_file_count(source); i++)
        bytes += model_source_file(source, i)->size;
    snprintf(text, sizeof(text),
             "model %.80s: %s read for these blocks, of %s in its files (%s over the network, %llu chunks "
             "from the "
             "node's cache, the rest from this machine's files); %llu chunks verified",
             name ? name : "", units_bytes(read_text, stats.read_bytes), units_bytes(all_text, bytes),
             units_bytes(fetched_text, stats.fetched_bytes), (unsigned long long)stats.cached_chunks,
             (unsigned long long)stats.verified_chunks);
    if (report_log(session->link, "info", text, err) < 0)
        return -1;
    const char *note = model_get_note(session->model);
    if (session->assignment->rank != 0 || note[0] == '\0')
        return 0;
    char warning[640];
    snprintf(warning, sizeof(warning), "model %.80s: %s", name ? name : "", note);
    return report_log(session->link, "warning", warning, err);
}

/* --- rows and prompt --- */

static int fetch_rows(struct session *session, const char *sha256, const char *what, struct rows **rows,
                      struct err *err)
{
    struct buf bytes;
    buf_init(&bytes, ROWS_BYTES_MAX);
    int result = blobs_get(session->blobs, sha256, &bytes, err);
    if (result == 0)
        result = rows_load(bytes.data, bytes.size, session->config.vocab, rows, err);
    buf_fini(&bytes);
    return result < 0 ? err_wrap(err, "%s", what) : 0;
}

/* Logs what will be learnt before training starts: the data format, and the first row with its labelled part
 * marked. */
static int report_rows(struct session *session, struct err *err)
{
    const struct assignment *assignment = session->assignment;
    struct buf text = {.limit = 1 << 20};
    int result = 0;
    if (assignment->rank == 0 && assignment->rows_said)
        result = buf_printf(&text, err, "data.train: %s", assignment->rows_said) < 0
                     ? -1
                     : report_log(session->link, "info", buf_str(&text), err);
    buf_clear(&text);
    if (result == 0 && assignment->rank == 0 && assignment->rows_first)
        result = buf_printf(&text, err, "data.train: the first row, what is learnt between ⟦ and ⟧: %s",
                            assignment->rows_first) < 0
                     ? -1
                     : report_log(session->link, "info", buf_str(&text), err);
    buf_fini(&text);
    return result;
}

static int open_rows(struct session *session, struct err *err)
{
    const struct job_spec *spec = &session->assignment->spec;
    const struct plan *plan = session->assignment->plan;
    if (fetch_rows(session, session->assignment->train, "data.train", &session->data.train, err) < 0 ||
        report_rows(session, err) < 0)
        return -1;
    if (spec->eval.on && session->assignment->eval &&
        plan->ranks[session->assignment->rank].programs[PROGRAM_EVALUATE].instr_count > 0 &&
        fetch_rows(session, session->assignment->eval, "data.eval", &session->data.eval, err) < 0)
        return -1;
    session->data.order = (struct order){.seed = spec->train.seed,
                                         .shuffle = spec->data.shuffle,
                                         .row_count = session->data.train->count,
                                         .batch_rows = spec->train.batch_rows,
                                         .steps = spec->train.steps,
                                         .epochs = spec->train.epochs};
    if (order_check(&session->data.order, err) < 0)
        return -1;
    session->progress.steps = order_step_count(&session->data.order);
    session->data.numbers = calloc(plan->batch_rows, sizeof(*session->data.numbers));
    if (!session->data.numbers)
        return err_set(err, ERR_NOMEM, "no memory for a batch of %u rows", plan->batch_rows);
    return batch_init(&session->data.batch, plan, err);
}

static int set_prompt(struct session *session, const int32_t *ids, size_t count, struct err *err)
{
    const struct plan *plan = session->assignment->plan;
    uint64_t most = plan->sequence_bound < plan->tokens_bound ? plan->sequence_bound : plan->tokens_bound;
    if (count == 0 || count > most || count + session->assignment->spec.sample.tokens > plan->sequence_bound)
        return err_set(err, ERR_TOO_BIG,
                       "sample: a prompt of %zu tokens and %u to come, and the plan allows %u", count,
                       session->assignment->spec.sample.tokens, plan->sequence_bound);
    session->sample.prompt = malloc(count * sizeof(*session->sample.prompt));
    if (!session->sample.prompt)
        return err_set(err, ERR_NOMEM, "no memory for a prompt of %zu tokens", count);
    memcpy(session->sample.prompt, ids, count * sizeof(*ids));
    session->sample.prompt_count = (uint32_t)count;
    return 0;
}

static int prompt_from_document(struct session *session, struct err *err)
{
    const json_t *list = session->assignment->sample_ids;
    size_t count = json_array_size(list);
    int32_t *ids = malloc((count ? count : 1) * sizeof(*ids));
    if (!ids)
        return err_set(err, ERR_NOMEM, "no memory for a prompt of %zu tokens", count);
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= (json_int_t)session->config.vocab)
            result = err_set(err, ERR_INVALID, "sample.ids[%zu]: no token of this model", i);
        ids[i] = (int32_t)id;
    }
    if (result == 0)
        result = set_prompt(session, ids, count, err);
    free(ids);
    return result;
}

static enum spec_format format_of(const struct assignment *assignment)
{
    for (int f = SPEC_FORMAT_ALPACA; f < SPEC_FORMAT_COUNT; f++)
        if (assignment->format && strcmp(spec_format_name((enum spec_format)f), assignment->format) == 0)
            return (enum spec_format)f;
    return assignment->spec.data.format != SPEC_FORMAT_AUTO ? assignment->spec.data.format : SPEC_FORMAT_TEXT;
}

static int render_prompt(struct session *session, const struct tokenizer *tokenizer, struct err *err)
{
    const struct job_spec *spec = &session->assignment->spec;
    struct chat_template *chat = NULL;
    struct err chat_err = {.code = ERR_NONE};
    struct ids ids = {0};
    const struct chat_given given = chat_given_by(tokenizer, spec->data.day);
    if (chat_template_choose(spec->data.chat_template, &given, &chat, &chat_err) < 0)
        chat = NULL; /* rows_render_prompt reports the error if this format needs a template */
    struct rows_options options = {.format = format_of(session->assignment),
                                   .learn = spec->data.learn,
                                   .sequence_tokens = spec->data.sequence_tokens,
                                   .vocab = session->config.vocab,
                                   .tokenizer = tokenizer,
                                   .chat = chat,
                                   .chat_error = chat_err};
    int result = rows_render_prompt(spec->sample.prompt, options.format, &options, &ids, err);
    if (result == 0)
        result = set_prompt(session, ids.data, ids.count, err);
    ids_fini(&ids);
    chat_template_destroy(chat);
    return result < 0 ? err_wrap(err, "sample") : 0;
}

/* Opens the sample prompt and, on the rank that reports samples, the tokenizer that turns ids into text. */
static int open_prompt(struct session *session, struct err *err)
{
    const struct assignment *assignment = session->assignment;
    if (!assignment->spec.sample.prompt ||
        assignment->plan->ranks[assignment->rank].programs[PROGRAM_PREFILL].instr_count == 0)
        return 0;
    bool reports = session_reports(session);
    if (assignment->sample_ids && prompt_from_document(session, err) < 0)
        return -1;
    if (assignment->sample_ids && !reports)
        return 0;
    struct tokenizer *tokenizer = NULL;
    if (tokenizer_open(session->model, &tokenizer, err) < 0) {
        if (assignment->sample_ids) { /* a sample may consist of ids without text */
            err_clear(err);
            return 0;
        }
        return err_wrap(err, "sample");
    }
    int result = assignment->sample_ids ? 0 : render_prompt(session, tokenizer, err);
    if (result == 0 && reports)
        session->sample.tokenizer = tokenizer;
    else
        tokenizer_destroy(tokenizer);
    return result;
}

/* --- mesh --- */

/* Marks the ranks to connect to. */
static uint32_t mark_peers(const struct session *session, bool *peers)
{
    uint32_t count = 0;
    plan_rank_peers(session->assignment->plan, session->assignment->rank, peers);
    for (uint32_t r = 0; r < session->assignment->rank_count; r++)
        count += peers[r];
    return count;
}

/* Writes `address` ("host:port") with its host replaced. */
static int advertise(const char *address, const char *host, char *out, size_t size, struct err *err)
{
    const char *port = strrchr(address, ':');
    const char *open = strchr(host, ':') && host[0] != '[' ? "[" : "", *close = *open ? "]" : "";
    if (!port || snprintf(out, size, "%s%s%s%s", open, host, close, port) >= (int)size)
        return err_set(err, ERR_INVALID, "local.advertise: \"%.100s\" cannot be announced", host);
    return 0;
}

/* Makes the mesh, which reads the node's certificate and key, if this rank has peers. */
static int make_mesh(struct session *session, struct err *err)
{
    const struct assignment *assignment = session->assignment;
    const struct local_part *local = &assignment->local;
    const struct plan_group *all = &assignment->plan->groups[0];
    int position = plan_group_position(all, assignment->rank);
    session->tree.parent = session->tree.children[0] = session->tree.children[1] = PLAN_NONE;
    if (position < 0)
        return err_set(err, ERR_INVALID, "group 0 of the plan lacks rank %u", assignment->rank);
    plan_group_tree(all, (uint32_t)position, &session->tree.parent, session->tree.children);
    bool *peers = calloc(assignment->rank_count, sizeof(*peers));
    if (!peers)
        return err_set(err, ERR_NOMEM, "no memory for %u peers", assignment->rank_count);
    uint32_t count = mark_peers(session, peers);
    free(peers);
    if (count == 0)
        return 0;
    if (!local->listen || !local->identity || !local->cert || !local->key || !local->ca)
        return err_set(err, ERR_INVALID,
                       "local: listen, identity, cert, key and ca are needed to meet %u peers", count);
    struct mesh_options options = {.rank = assignment->rank,
                                   .epoch = (uint64_t)assignment->epoch,
                                   .run = (uint64_t)assignment->run,
                                   .cert_file = local->cert,
                                   .key_file = local->key,
                                   .ca_file = local->ca};
    return mesh_create(&options, &session->mesh, err);
}

static int listen_mesh(struct session *session, char *address, size_t size, struct err *err)
{
    const struct local_part *local = &session->assignment->local;
    char bound[256];
    address[0] = '\0';
    if (!session->mesh)
        return 0;
    if (mesh_listen(session->mesh, local->listen, bound, sizeof(bound), err) < 0)
        return -1;
    if (local->advertise)
        return advertise(bound, local->advertise, address, size, err);
    snprintf(address, size, "%s", bound);
    return 0;
}

static int read_peer(const struct session *session, const json_t *item, struct mesh_peer *peer)
{
    json_int_t rank = json_integer_value(json_object_get(item, "rank"));
    if (!json_is_integer(json_object_get(item, "rank")) || rank < 0 ||
        rank >= session->assignment->rank_count)
        return -1;
    peer->rank = (uint32_t)rank;
    peer->address = json_string_value(json_object_get(item, "address"));
    peer->identity = json_string_value(json_object_get(item, "identity"));
    peer->link = assignment_link(session->assignment, peer->rank);
    return 0;
}

/* Whether the lower of two ranks cannot connect to the higher one, as the higher one's entry says. */
static bool is_turned(const json_t *peers, uint32_t a, uint32_t b)
{
    const json_int_t low = a < b ? a : b, high = a < b ? b : a;
    size_t i, k;
    json_t *item, *rank;
    json_array_foreach ((json_t *)(uintptr_t)peers, i, item)
        json_array_foreach (json_object_get(item, "dials"), k, rank)
            if (json_integer_value(json_object_get(item, "rank")) == high && json_integer_value(rank) == low)
                return true;
    return false;
}

int session_connect(struct session *session, const json_t *message, struct err *err)
{
    if (!session->mesh)
        return 0;
    uint32_t ranks = session->assignment->rank_count, count = 0;
    bool *wanted = calloc(ranks, sizeof(*wanted));
    struct mesh_peer *peers = calloc(ranks, sizeof(*peers));
    int result = wanted && peers ? 0 : err_set(err, ERR_NOMEM, "no memory for %u peers", ranks);
    uint32_t missing = result == 0 ? mark_peers(session, wanted) : 0;
    size_t index;
    json_t *item;
    json_array_foreach (json_object_get(message, "peers"), index, item) {
        struct mesh_peer peer;
        if (result < 0 || read_peer(session, item, &peer) < 0 || !wanted[peer.rank] || !peer.address ||
            !peer.identity)
            continue;
        peer.turned = is_turned(json_object_get(message, "peers"), peer.rank, session->assignment->rank);
        wanted[peer.rank] = false;
        missing--;
        peers[count++] = peer;
    }
    if (result == 0 && missing > 0)
        result = err_set(err, ERR_INVALID, "peers: %u of those the program names are missing", missing);
    uint64_t deadline_ns = clock_mono_ns() + CONNECT_SECONDS * 1000000000ull;
    if (result == 0)
        result = mesh_connect(session->mesh, peers, count, deadline_ns, &session->stop->kill, err);
    if (result == 0)
        result = ops_connect(session->ops, deadline_ns, err);
    free(wanted);
    free(peers);
    return result;
}

/* --- opening and closing --- */

/* A failure to log does not end the run: its cause, a lost agent, does. */
static void log_line(void *arg, const char *level, const char *text)
{
    const struct session *session = arg;
    struct err ignored;
    (void)report_log(session->link, level, text, &ignored);
}

static void report_waits(void *arg, const char *what)
{
    const struct session *session = arg;
    struct err ignored;
    (void)worker_link_emit(session->link, "waiting", json_pack("{s:s?}", "text", what), &ignored);
}

static int open_ops(struct session *session, struct err *err)
{
    struct ops_options options = {.plan = session->assignment->plan,
                                  .rank = session->assignment->rank,
                                  .device = session->device,
                                  .stages = &session->stages,
                                  .mesh = session->mesh,
                                  .hidden = session->config.hidden,
                                  .vocab = session->config.vocab,
                                  .wait_ns = session->assignment->wait_ns,
                                  .save = saver_copy_op,
                                  .save_arg = session,
                                  .log = log_line,
                                  .waits = report_waits,
                                  .log_arg = session};
    return ops_create(&options, &session->ops, err);
}

/* Closes the model once its weights are on the device. The memory of chunks, headers and names returns to the
 * system before anything else is allocated, so that the process's peak stays near the device's. */
static int close_model(struct session *session, struct err *err)
{
    if (report_fetched(session, err) < 0)
        return -1;
    model_close(session->model);
    session->model = NULL;
    malloc_trim(0);
    return 0;
}

/* Confines the process once its certificate and key are read, and before it opens what strangers made. */
static int confine(const struct session *session, struct err *err)
{
    const struct assignment *assignment = session->assignment;
    const struct reach reach = {
        .local = &assignment->local, .model = &assignment->model, .dir = session->dir};
    return reach_limit(&reach, session->link, err);
}

static int open_all(struct session *session, bool confined, char *address, size_t size, struct err *err)
{
    const struct local_part *local = &session->assignment->local;
    struct blobs_options blobs = {
        .api = local->api, .ca = local->api_ca, .token = local->token, .cancel = &session->stop->kill};
    if (check_supported(session->assignment, err) < 0 || blobs_open(&blobs, &session->blobs, err) < 0 ||
        make_mesh(session, err) < 0 || (confined && confine(session, err) < 0) ||
        session_model_open(session, err) < 0 || open_rows(session, err) < 0 ||
        open_prompt(session, err) < 0 || open_stages(session, err) < 0 || close_model(session, err) < 0 ||
        listen_mesh(session, address, size, err) < 0 || open_ops(session, err) < 0 ||
        saver_create(session, &session->saver, err) < 0)
        return -1;
    return state_load(session, err);
}

/* What a node lacks is no fault of the job: no peer is connected yet, so a connection that fails is that to
 * the artifact store, and a file that cannot be written is one of this node. */
static void blame_node(struct err *err)
{
    if (err->code == ERR_IO || err->code == ERR_NET || err->code == ERR_TIMEOUT || err->code == ERR_AUTH ||
        err->code == ERR_DENIED)
        err->code = ERR_NODE;
}

int session_open(const struct session_place *place, struct assignment *assignment, struct session **out,
                 struct err *err)
{
    struct session *session = calloc(1, sizeof(*session));
    char address[256];
    if (!session) {
        assignment_destroy(assignment);
        return err_set(err, ERR_NOMEM, "no memory for a run");
    }
    session->link = place->link;
    session->stop = place->stop;
    session->dir = place->dir;
    session->assignment = assignment;
    session->progress.best_loss = assignment->best_loss;
    session->progress.steps_done = assignment->start_step;
    loss_scale_init(&session->scale, &assignment->spec, assignment->plan);
    session->process_base_bytes = process_resident_bytes();
    trace_init(&session->trace, TRACE_EVENTS_A_STEP);
    int result = open_all(session, place->confined, address, sizeof(address), err);
    if (result < 0)
        blame_node(err);
    if (result == 0) {
        const char *identity = assignment->local.identity;
        result = worker_link_emit(place->link, "worker_ready",
                                  json_pack("{s:s, s:s}", "address", *address ? address : "none", "identity",
                                            identity ? identity : "none"),
                                  err);
    }
    if (result < 0) {
        session_close(session, false);
        return -1;
    }
    *out = session;
    return 0;
}

void session_close(struct session *session, bool clean)
{
    struct err ignored;
    if (!session)
        return;
    if (!saver_drain(session->saver, clock_mono_ns() + CLOSE_SECONDS * 1000000000ull)) {
        blobs_give_up(session->blobs);
        if (session->mesh)
            mesh_abort(session->mesh);
    }
    saver_destroy(session->saver);
    ops_stop(session->ops);
    if (session->mesh &&
        clean) /* closing fails only when a peer failed, which the scheduler hears from the peer */
        (void)mesh_close(session->mesh, clock_mono_ns() + CLOSE_SECONDS * 1000000000ull, &ignored);
    mesh_destroy(session->mesh);
    ops_destroy(session->ops);
    stages_fini(&session->stages);
    device_close(session->device);
    tokenizer_destroy(session->sample.tokenizer);
    model_close(session->model);
    rows_destroy(session->data.train);
    rows_destroy(session->data.eval);
    batch_fini(&session->data.batch);
    trace_fini(&session->trace);
    free(session->data.numbers);
    free(session->sample.prompt);
    blobs_close(session->blobs);
    assignment_destroy(session->assignment);
    free(session);
}

void session_kill(struct session *session)
{
    struct err failure;
    err_set(&failure, ERR_CANCELLED, "told to end at once");
    if (session->mesh)
        mesh_abort(session->mesh);
    if (session->ops)
        ops_fail(session->ops, &failure);
}
