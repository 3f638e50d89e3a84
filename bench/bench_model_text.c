/* Measures how fast text becomes token ids and rows, on one thread.
 *
 *     bench_model_text MODEL [TEXT]     MODEL: a folder or .gguf with a tokenizer; TEXT: any file
 *
 * Without TEXT it uses a megabyte of words from a seeded generator. It prints the median of 5 runs and their
 * spread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/rand.h"
#include "model/rows/rows.h"
#include "model/shape/tensors.h"

enum { RUNS = 5, TEXT_BYTES_MAX = 256 << 20, WORDS = 160000 };

static int fail(const struct err *err)
{
    fprintf(stderr, "bench_model_text: %s\n", err->text);
    return 1;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, double *seconds, double amount, const char *unit)
{
    qsort(seconds, RUNS, sizeof(*seconds), compare);
    printf("%-14s %8.2f %s (spread %.0f %%)\n", what, amount / seconds[RUNS / 2], unit,
           100 * (seconds[RUNS - 1] - seconds[0]) / seconds[RUNS / 2]);
}

/* Generates words of one to ten letters, drawn unevenly so that some are frequent, as in real text. */
static int make_text(struct buf *text, struct err *err)
{
    struct rand_stream random;
    rand_stream_init(&random, 1, 1);
    for (uint32_t i = 0; i < WORDS; i++) {
        const uint32_t rank = rand_stream_below(&random, 1 + rand_stream_below(&random, 20000));
        struct rand_stream word;
        rand_stream_init(&word, rank, 2);
        char letters[12];
        const uint32_t size = 1 + rand_stream_below(&word, 10);
        for (uint32_t c = 0; c < size; c++)
            letters[c] = (char)('a' + rand_stream_below(&word, 26));
        letters[size] = i % 15 == 14 ? '\n' : ' ';
        if (buf_append(text, letters, size + 1, err) < 0)
            return -1;
    }
    return 0;
}

static int bench_encode(const struct tokenizer *tokenizer, const struct buf *text, struct err *err)
{
    double seconds[RUNS];
    size_t tokens = 0;
    for (int run = 0; run < RUNS; run++) {
        struct ids ids = {0};
        const uint64_t begin = clock_mono_ns();
        if (tokenizer_encode(tokenizer, buf_str(text), text->size, TOKENIZER_PLAIN, &ids, err) < 0)
            return -1;
        seconds[run] = (double)(clock_mono_ns() - begin) * 1e-9;
        tokens = ids.count;
        ids_fini(&ids);
    }
    print("encode", seconds, (double)text->size / 1e6, "MB/s");
    print("", seconds, (double)tokens / 1e6, "Mtoken/s");
    return 0;
}

static int bench_rows(const struct tokenizer *tokenizer, struct err *err)
{
    double seconds[RUNS];
    struct buf lines = {.limit = TEXT_BYTES_MAX};
    const struct rows_options options = {.format = SPEC_FORMAT_ALPACA,
                                         .learn = SPEC_LEARN_ANSWER,
                                         .sequence_tokens = 512,
                                         .tokenizer = tokenizer};
    for (int i = 0; i < 20000; i++) {
        if (buf_printf(&lines, err,
                       "{\"instruction\":\"Say in one line what package %d "
                       "is.\",\"input\":\"\",\"output\":\"It is number "
                       "%d of many.\"}\n",
                       i, i) < 0) {
            return -1;
        }
    }
    for (int run = 0; run < RUNS; run++) {
        struct rows *rows = NULL;
        struct rows_report report;
        const uint64_t begin = clock_mono_ns();
        if (rows_encode(buf_str(&lines), lines.size, &options, &rows, &report, err) < 0)
            return -1;
        seconds[run] = (double)(clock_mono_ns() - begin) * 1e-9;
        rows_destroy(rows);
    }
    buf_fini(&lines);
    print("alpaca rows", seconds, 20, "thousand rows/s");
    return 0;
}

int main(int argc, char **argv)
{
    struct err err = {0};
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    struct buf text = {.limit = TEXT_BYTES_MAX};
    if (argc < 2) {
        fprintf(stderr, "usage: bench_model_text MODEL [TEXT]\n");
        return 2;
    }
    int status = model_open_path(argv[1], &model, &err);
    if (status == 0)
        status = tokenizer_open(model, &tokenizer, &err);
    if (status == 0)
        status = argc > 2 ? file_read_all(argv[2], TEXT_BYTES_MAX, &text, &err) : make_text(&text, &err);
    if (status == 0)
        status = bench_encode(tokenizer, &text, &err);
    if (status == 0)
        status = bench_rows(tokenizer, &err);
    buf_fini(&text);
    tokenizer_destroy(tokenizer);
    model_close(model);
    return status < 0 ? fail(&err) : 0;
}
