#include "worker/checkpoint/adapter_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/array.h"
#include "common/file.h"
#include "model/adapters/peft.h"
#include "model/adapters/peft_experts.h"

enum { LOG_PARTS = 2, PATH_BYTES = 1024 };

static const char file_name[] = "adapter_model.safetensors";
/* All tensors under their names here, where peft's file has other ones: adapters on tensors of experts. */
static const char own_file_name[] = "adapter_experts.safetensors";
static const struct safetensors_meta file_meta = {.key = "format", .value = "pt"};

struct logged_file {
    char name[PIECE_FILE_NAME_MAX];
    uint64_t at;
};

struct adapter_log {
    struct spool *spool;
    struct piece_reader *reader;
    struct logged_file *files;
    size_t count, capacity;
};

static int log_fetch(void *arg, const char *file, uint64_t offset, size_t size, void *dst, struct err *err)
{
    const struct adapter_log *log = arg;
    for (size_t f = 0; f < log->count; f++)
        if (strcmp(log->files[f].name, file) == 0)
            return spool_read(log->spool, log->files[f].at + offset, dst, size, err);
    return err_set(err, ERR_PEER, "no file %s has come", file);
}

int adapter_log_create(struct spool *spool, struct adapter_log **out, struct err *err)
{
    struct adapter_log *log = calloc(1, sizeof(*log));
    *out = log;
    if (!log)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    log->spool = spool;
    if (piece_reader_create(log_fetch, log, LOG_PARTS, &log->reader, err) == 0)
        return 0;
    free(log);
    *out = NULL;
    return -1;
}

void adapter_log_destroy(struct adapter_log *log)
{
    if (!log)
        return;
    piece_reader_destroy(log->reader);
    free(log->files);
    free(log);
}

/* Checks that the index lines that were sent with a file all name that file. */
static int name_take(void *arg, const struct stored_piece *piece, struct err *err)
{
    struct logged_file *file = arg;
    if (file->name[0] && strcmp(file->name, piece->file) != 0)
        return err_set(err, ERR_PEER, "lines about %s and %s came with one file", file->name, piece->file);
    snprintf(file->name, sizeof(file->name), "%s", piece->file);
    return 0;
}

int adapter_log_add(struct adapter_log *log, const char *lines, size_t lines_size, uint64_t at,
                    struct err *err)
{
    if (ARRAY_RESERVE(log->files, log->capacity, log->count + 1, err) < 0)
        return -1;
    struct logged_file *file = &log->files[log->count];
    *file = (struct logged_file){.at = at};
    if (piece_lines_read(lines, lines_size, name_take, file, err) < 0 ||
        piece_reader_add(log->reader, lines, lines_size, NULL, NULL, err) < 0)
        return -1;
    log->count++;
    return 0;
}

/* --- the file --- */

struct adapter_tensor {
    struct piece_reader *reader;
    const struct stored_piece *piece; /* one of the stored pieces with values of the tensor */
    char name[PIECE_NAME_MAX];        /* the tensor's name in peft's file */
};

struct adapter_items {
    struct adapter_tensor *tensors;
    struct safetensors_item *items; /* [count] */
    uint32_t tensor_count, count;
    uint64_t bytes;   /* bytes of values */
    const char *file; /* the file to write, which the index names */
};

static struct piece_wanted tensor_wanted(const struct adapter_tensor *tensor)
{
    const struct stored_piece *piece = tensor->piece;
    return (struct piece_wanted){.tensor = piece->tensor,
                                 .state = STATE_VALUE,
                                 .whole_rows = piece->whole_rows,
                                 .whole_columns = piece->whole_columns,
                                 .area = area_whole(piece->whole_rows, piece->whole_columns)};
}

static int tensor_fill(void *arg, uint64_t offset, size_t size, void *dst, struct err *err)
{
    const struct adapter_tensor *tensor = arg;
    struct piece_wanted wanted = tensor_wanted(tensor);
    wanted.area.first = offset / sizeof(float);
    wanted.area.count = size / sizeof(float);
    return piece_reader_read(tensor->reader, &wanted, dst, err);
}

static int adapter_file_items_by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_item *)a)->name, ((const struct safetensors_item *)b)->name);
}

static void items_fini(struct adapter_items *all)
{
    free(all->tensors);
    free(all->items);
}

/* Makes one safetensors entry for each tensor, in the order of names. If the model's head is tied to its
 * embedding, the head gets one more entry, under the name by which peft looks for it. */
static int items_make(const struct session *session, struct adapter_log *log, struct adapter_items *all,
                      struct err *err)
{
    const struct peft_config config = peft_config_of(&session->assignment->spec, &session->config);
    uint32_t pieces = piece_reader_count(log->reader);
    all->tensors = calloc((size_t)pieces + 1, sizeof(*all->tensors));
    all->items = calloc((size_t)pieces + 1, sizeof(*all->items));
    if (!all->tensors || !all->items)
        return err_set(err, ERR_NOMEM, "no memory for an adapter of %u pieces", pieces);
    for (uint32_t p = 0; p < pieces; p++) {
        const struct stored_piece *piece = piece_reader_at(log->reader, p);
        struct adapter_tensor *tensor = &all->tensors[all->tensor_count];
        if (p > 0 && strcmp(piece->tensor, piece_reader_at(log->reader, p - 1)->tensor) == 0)
            continue;
        *tensor = (struct adapter_tensor){.reader = log->reader, .piece = piece};
        struct piece_wanted wanted = tensor_wanted(tensor);
        if (piece->state != STATE_VALUE || piece_reader_check(log->reader, &wanted, err) < 0)
            return -1;
        if (peft_name(&session->config, piece->tensor, tensor->name, sizeof(tensor->name)) < 0)
            return err_set(err, ERR_TOO_BIG, "the parameter name %.64s… is too long", piece->tensor);
        all->items[all->tensor_count++] =
            (struct safetensors_item){.name = tensor->name,
                                      .type = TENSOR_F32,
                                      .rank = piece->vector ? 1 : 2,
                                      .shape = {piece->whole_rows, piece->vector ? 0 : piece->whole_columns},
                                      .fill = tensor_fill,
                                      .arg = tensor};
    }
    if (all->tensor_count > 0)
        qsort(all->items, all->tensor_count, sizeof(*all->items), adapter_file_items_by_name);
    all->count = all->tensor_count + peft_add_head(&config, all->items, all->tensor_count);
    for (uint32_t i = 0; i < all->count; i++)
        all->bytes += sizeof(float) * tensor_wanted(all->items[i].arg).area.count;
    return 0;
}

/* The finished file, in memory or on the disk. */
struct made_adapter {
    struct buf bytes;
    char path[PATH_BYTES];
    int fd; /* -1: the file is in memory */
    uint64_t size;
};

static int made_read(const struct made_adapter *made, uint64_t offset, void *dst, size_t size,
                     struct err *err)
{
    if (made->fd >= 0)
        return file_pread_all(made->fd, dst, size, offset, made->path, err);
    memcpy(dst, made->bytes.data + offset, size);
    return 0;
}

static int made_put(struct session *session, struct snapshot *snapshot, const struct adapter_items *all,
                    struct made_adapter *made, struct err *err)
{
    char sha256[DIGEST_HEX_SIZE];
    if (all->bytes <= snapshot->memory_bytes / 2) {
        if (safetensors_encode(all->items, all->count, &file_meta, 1, &made->bytes, err) < 0)
            return -1;
        made->size = made->bytes.size;
        return checkpoint_put(session, snapshot->blobs, all->file, made->bytes.data, made->bytes.size, err);
    }
    const char *dir = session->dir;
    if (file_mkdirs(dir, 0700, err) < 0 ||
        file_path(made->path, sizeof(made->path), err, "%s/adapter-%ld", dir, (long)getpid()) < 0 ||
        safetensors_write(made->path, all->items, all->count, &file_meta, 1, err) < 0)
        return -1;
    made->fd = open(made->path, O_RDONLY | O_CLOEXEC);
    if (made->fd < 0)
        return err_set(err, ERR_IO, "%s cannot be opened", made->path);
    if (blobs_put_file(session->blobs, made->path, sha256, &made->size, err) < 0)
        return -1;
    return json_object_set_new(snapshot->blobs, all->file,
                               json_pack("{s:s, s:I}", "sha256", sha256, "size", (json_int_t)made->size)) < 0
               ? err_set(err, ERR_NOMEM, "no memory for a checkpoint")
               : 0;
}

static void made_fini(struct made_adapter *made)
{
    if (made->fd >= 0)
        close(made->fd);
    if (made->path[0])
        (void)unlink(made->path);
    buf_fini(&made->bytes);
}

/* Where adapters are on tensors of all experts, stores peft's file, which has other tensors than the index
 * does; these then go into a file of their own. */
static int joined_put(struct session *session, struct snapshot *snapshot, struct adapter_items *all,
                      struct err *err)
{
    const struct job_spec *spec = &session->assignment->spec;
    struct lora_sites sites;
    struct made_adapter made = {.fd = -1,
                                .bytes = {.limit = SAFETENSORS_HEADER_MAX + snapshot->memory_bytes}};
    struct adapter_items joined = {.count = all->count, .bytes = all->bytes, .file = file_name};
    struct peft_experts *experts = NULL;
    if (spec_lora_sites(&spec->method, &session->config, &sites, err) < 0)
        return -1;
    if (!(lora_sites_targets(&sites) & LORA_EXPERTS))
        return 0;
    joined.items = calloc((size_t)all->count + 1, sizeof(*joined.items));
    int result = joined.items ? 0 : err_set(err, ERR_NOMEM, "no memory for an adapter");
    if (result == 0) {
        memcpy(joined.items, all->items, all->count * sizeof(*joined.items));
        result = peft_experts_join(&session->config, &sites, joined.items, &joined.count, &experts, err);
    }
    if (result == 0)
        result = made_put(session, snapshot, &joined, &made, err);
    all->file = own_file_name;
    made_fini(&made);
    free(joined.items);
    peft_experts_close(experts);
    return result;
}

/* Appends the index line of one tensor, whose values begin at byte `offset` of the file. */
static int tensor_line(const struct made_adapter *made, const char *file, const struct safetensors_item *item,
                       uint64_t offset, struct buf *lines, struct err *err)
{
    const struct adapter_tensor *tensor = item->arg;
    struct stored_piece line = *tensor->piece;
    bool head = strcmp(item->name, PEFT_HEAD) == 0;
    line.area = area_whole(line.whole_rows, line.whole_columns);
    line.offset = offset;
    line.sum_count = piece_sum_count(line.area.count);
    line.sums = calloc(line.sum_count + 1ull, sizeof(*line.sums));
    uint8_t *part = malloc(PIECE_SUM_BYTES);
    int result = line.sums && part ? 0 : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    snprintf(line.file, sizeof(line.file), "%s", file);
    if (head)
        snprintf(line.tensor, sizeof(line.tensor), "lm_head.weight");
    for (uint32_t s = 0; s < line.sum_count && result == 0; s++) {
        uint64_t at = (uint64_t)s * PIECE_SUM_BYTES, left = line.area.count * sizeof(float) - at;
        size_t size = left < PIECE_SUM_BYTES ? (size_t)left : PIECE_SUM_BYTES;
        result = made_read(made, offset + at, part, size, err);
        if (result == 0)
            result = digest_sha256(part, size, line.sums[s], err);
    }
    if (result == 0)
        result = piece_line_add(lines, &line, err);
    free(part);
    free(line.sums);
    return result;
}

static int made_index(struct session *session, struct snapshot *snapshot, const struct adapter_items *all,
                      const struct made_adapter *made, struct err *err)
{
    struct buf lines;
    uint64_t offset = made->size - all->bytes;
    int result = 0;
    buf_init(&lines, 1 << 24);
    for (uint32_t i = 0; i < all->count && result == 0; i++) {
        buf_clear(&lines);
        result = tensor_line(made, all->file, &all->items[i], offset, &lines, err);
        if (result == 0)
            result = snapshot_index_add(snapshot, session, lines.data, lines.size, err);
        offset += sizeof(float) * tensor_wanted(all->items[i].arg).area.count;
    }
    buf_fini(&lines);
    return result;
}

int adapter_file_store(struct session *session, struct snapshot *snapshot, struct adapter_log *log,
                       struct err *err)
{
    struct adapter_items all = {.file = file_name};
    struct made_adapter made = {.fd = -1};
    buf_init(&made.bytes, SAFETENSORS_HEADER_MAX + snapshot->memory_bytes);
    int result = piece_reader_ready(log->reader, err);
    if (result == 0)
        result = items_make(session, log, &all, err);
    if (result == 0)
        result = joined_put(session, snapshot, &all, err);
    if (result == 0)
        result = made_put(session, snapshot, &all, &made, err);
    if (result == 0)
        result = made_index(session, snapshot, &all, &made, err);
    made_fini(&made);
    items_fini(&all);
    return result < 0 ? err_wrap(err, "%s", file_name) : 0;
}
