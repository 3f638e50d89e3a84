/* Maps the question's files, enters the sandbox, and then reads them, in this order. */
#include "parse/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/frame.h"
#include "common/sandbox.h"
#include "parse/parse.h"

/* ---- the question ---- */

static int serve_read_all(int fd, struct buf *out, struct err *err)
{
    for (;;) {
        if (buf_reserve(out, 65536, err) < 0)
            return -1;
        const ssize_t got = read(fd, out->data + out->size, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got == 0 ? 0 : err_errno(err, ERR_IO, errno, "could not read the question");
        out->size += (size_t)got;
    }
}

static int upload_map(const char *path, const void **bytes, size_t *size, struct err *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = -1;
    if (fd < 0 || fstat(fd, &st) < 0) {
        err_errno(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "the uploaded file cannot be read");
    } else if (st.st_size == 0) {
        *bytes = "";
        result = 0;
    } else {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            err_errno(err, ERR_IO, errno, "the uploaded file cannot be mapped");
        } else {
            *bytes = data;
            *size = (size_t)st.st_size;
            result = 0;
        }
    }
    if (fd >= 0)
        close(fd);
    return result;
}

/* Maps the files named by the texts [from, end): name and path in turn. The texts are from the caller, which
 * is trusted. */
static int files_map(const char *from, const char *end, struct parse_files *files, struct err *err)
{
    struct model_path *paths = calloc(MODEL_FILES_MAX, sizeof(*paths));
    uint32_t count = 0;
    int result = paths ? 0 : err_set(err, ERR_NOMEM, "no memory for a list of files");
    while (result == 0 && from < end) {
        const char *name = from, *path = memchr(name, '\0', (size_t)(end - name));
        const char *last = path ? memchr(path + 1, '\0', (size_t)(end - path - 1)) : NULL;
        if (!last || count == MODEL_FILES_MAX)
            result = err_set(err, ERR_INTERNAL, "the question's list of files is none");
        else if (strcmp(name, PARSE_UPLOAD) == 0)
            result = upload_map(path + 1, &files->upload, &files->upload_bytes, err);
        else if (strcmp(name, PARSE_WEIGHTS) == 0)
            result = upload_map(path + 1, &files->weights, &files->weights_bytes, err);
        else
            paths[count++] = (struct model_path){name, path + 1};
        from = last ? last + 1 : end;
    }
    if (result == 0 && count > 0)
        result = model_source_open_files(paths, count, &files->model, err);
    free(paths);
    return result;
}

/* Returns the address space in use, in bytes; 0 when unknown. */
static uint64_t mapped_bytes(void)
{
    struct buf text = {.limit = 4096};
    struct err ignored;
    unsigned long long pages = 0;
    if (file_read_all("/proc/self/statm", 4096, &text, &ignored) == 0)
        pages = strtoull(buf_str(&text), NULL, 10);
    buf_fini(&text);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- the answer ---- */

struct out {
    int fd;
};

static int serve_put(void *arg, const void *bytes, size_t size, struct err *err)
{
    const struct out *out = arg;
    const uint8_t *at = bytes;
    while (size > 0) {
        const ssize_t done = write(out->fd, at, size);
        if (done < 0 && errno != EINTR)
            return err_errno(err, ERR_IO, errno, "could not write the answer");
        at += done > 0 ? done : 0;
        size -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

static int put_document(struct out *out, json_t *document, struct err *err)
{
    struct buf bytes;
    buf_init(&bytes, frame_limits_default.bytes_max + 4);
    int result =
        document ? frame_put(document, &bytes, err) : err_set(err, ERR_NOMEM, "no memory for an answer");
    result = result < 0 ? -1 : serve_put(out, bytes.data, bytes.size, err);
    buf_fini(&bytes);
    json_decref(document);
    return result;
}

static int put_rows(struct out *out, const struct rows *rows, struct err *err)
{
    struct row_size *sizes = malloc((size_t)rows->count * sizeof(*sizes));
    if (!sizes)
        return err_set(err, ERR_NOMEM, "no memory for the sizes of %u rows", rows->count);
    rows_sizes(rows, sizes);
    const int result = serve_put(out, sizes, (size_t)rows->count * sizeof(*sizes), err) < 0 ||
                               rows_save_to(rows, serve_put, out, err) < 0
                           ? -1
                           : 0;
    free(sizes);
    return result;
}

static int serve_refuse(struct out *out, const struct err *why, struct err *err)
{
    /* The sandbox's memory limit was exceeded, not the machine's memory, so the file is too big. */
    const enum err_code code = why->code == ERR_NOMEM ? ERR_TOO_BIG : why->code;
    json_t *document = json_pack("{s:{s:s, s:s}}", "error", "code", err_code_name(code), "text", why->text);
    if (!document) { /* the text quotes the file, which need not be valid UTF-8 */
        document = json_pack("{s:{s:s, s:s}}", "error", "code", err_code_name(code), "text",
                             "the file is wrong where it is not UTF-8");
    }
    return put_document(out, document, err);
}

static int serve_answer(struct out *out, const json_t *question, struct parse_files *files, struct err *err)
{
    struct rows *rows = NULL;
    struct err why = {0};
    json_t *document = parse_answer(question, files, &rows, &why);
    if (!document)
        return serve_refuse(out, &why, err);
    const uint64_t bytes = rows ? rows->count * sizeof(struct row_size) + rows_saved_bytes(rows) : 0;
    return put_document(out, json_pack("{s:o, s:I}", "answer", document, "bytes", (json_int_t)bytes), err) < 0
               ? -1
           : rows ? put_rows(out, rows, err)
                  : 0; /* nothing is freed, because the process ends */
}

int parse_serve(int in, int out_fd, uint64_t memory_bytes, uint32_t seconds, struct err *err)
{
    struct out out = {out_fd};
    struct parse_files files = {0};
    struct err why = {0};
    struct buf asked;
    uint8_t warm[DIGEST_SIZE];
    buf_init(&asked, PARSE_QUESTION_BYTES_MAX);
    if (serve_read_all(in, &asked, err) < 0)
        return -1;
    const uint64_t texts = asked.size < 4 ? 0
                                          : (uint64_t)asked.data[0] << 24 | (uint64_t)asked.data[1] << 16 |
                                                (uint64_t)asked.data[2] << 8 | asked.data[3];
    if (asked.size < 8 || texts > asked.size - 8)
        return err_set(err, ERR_INVALID, "%zu bytes are no question", asked.size);
    const char *from = (const char *)asked.data + 4;
    const int mapped = files_map(from, from + texts, &files, &why);
    /* OpenSSL reads its configuration once, which it can do only outside the sandbox */
    const struct sandbox_limits limits = {.memory_bytes = mapped_bytes() + memory_bytes,
                                          .cpu_s = seconds + 1};
    if (digest_sha256("", 0, warm, err) < 0 || sandbox_enter(&limits, err) < 0)
        return -1;
    if (mapped < 0)
        return serve_refuse(&out, &why, err);
    json_t *question =
        frame_decode(asked.data + 8 + texts, asked.size - 8 - texts, &frame_limits_default, err);
    return question ? serve_answer(&out, question, &files, err) : -1;
}
