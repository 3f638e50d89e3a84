/* Runs examples/train.c as a newcomer would: full fine-tuning of the tiny Llama prints PyTorch's losses, and
 * a file of rows in the wrong format gives a clear error. */
#include <sys/wait.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/process.h"
#include "support/must.h"
#include "support/scratch.h"

static const char *const llama = MOTLEY_TEST_DATA "/golden/llama";

/* Runs the example to its end and returns its exit status; what it printed is in "DIR/said". */
static int example_run(const struct scratch *scratch, const char *const *arguments)
{
    struct err err;
    const char *argv[8] = {EXAMPLE_TRAIN}, *said = scratch_path(scratch, "said");
    pid_t pid;
    int status;
    for (size_t i = 0; arguments[i] != NULL; i++)
        argv[i + 1] = arguments[i];
    struct process_options options = {.argv = argv, .stdout_path = said, .stderr_path = said};
    check(process_spawn(&options, &pid, &err));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Writes the rows of all golden batches in order, one a line. */
static void rows_write(const json_t *expected, const char *path)
{
    const json_t *batch, *ids;
    size_t i, row;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    json_array_foreach (json_object_get(expected, "batches"), i, batch)
        json_array_foreach (json_object_get(batch, "ids"), row, ids) {
            json_t *line = json_pack("{s:O, s:O}", "ids", ids, "labels",
                                     json_array_get(json_object_get(batch, "labels"), row));
            assert_int_equal(json_dumpf(line, file, JSON_COMPACT), 0);
            fputc('\n', file);
            json_decref(line);
        }
    fclose(file);
}

/* The bound is the one in tests/engine/golden.h. */
static void the_example_prints_the_losses_of_pytorch(void **state)
{
    (void)state;
    struct scratch scratch;
    json_error_t why;
    json_t *expected = json_load_file(MOTLEY_TEST_DATA "/golden/llama/expected.json", 0, &why);
    const json_t *want = json_object_get(json_object_get(expected, "full_fp64"), "loss");
    unsigned step, count = 0;
    double loss;
    assert_int_equal(scratch_make(&scratch), 0);
    const char *rows = scratch_path(&scratch, "rows.jsonl");
    rows_write(expected, rows);
    assert_int_equal(example_run(&scratch, (const char *[]){llama, rows, "20", "1e-3", "4", NULL}), 0);
    FILE *said = fopen(scratch_path(&scratch, "said"), "r");
    assert_non_null(said);
    for (; fscanf(said, "step %u loss %lf ", &step, &loss) == 2; count++) {
        double wanted = json_real_value(json_array_get(want, step));
        assert_int_equal(step, count);
        if (!(loss - wanted <= 1e-6 * wanted && wanted - loss <= 1e-6 * wanted))
            fail_msg("step %u: loss %.9f, PyTorch has %.9f", step, loss, wanted);
    }
    assert_int_equal(count, 20);
    fclose(said);
    json_decref(expected);
    scratch_remove(&scratch);
}

static void the_example_names_the_row_that_is_wrong(void **state)
{
    (void)state;
    struct scratch scratch;
    struct err err;
    struct buf said;
    assert_int_equal(scratch_make(&scratch), 0);
    const char *rows = scratch_path(&scratch, "rows.jsonl");
    FILE *file = fopen(rows, "w");
    assert_non_null(file);
    fputs("{\"ids\": [5, 6, 7]}\n{\"ids\": [5, 6, 7], \"labels\": [5]}\n", file);
    fclose(file);
    assert_int_equal(example_run(&scratch, (const char *[]){llama, rows, NULL}), 1);
    buf_init(&said, 4096);
    check(file_read_all(scratch_path(&scratch, "said"), 4096, &said, &err));
    assert_int_equal(buf_append(&said, "", 1, &err), 0);
    assert_non_null(strstr((const char *)said.data, "row 1: two or more ids, and as many labels"));
    buf_fini(&said);
    scratch_remove(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_prints_the_losses_of_pytorch),
        cmocka_unit_test(the_example_names_the_row_that_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
