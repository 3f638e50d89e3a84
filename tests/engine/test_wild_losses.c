/* Tests folders whose files repeat or omit settings: the loss of one row of the ids 5 to 14 equals that of
 * transformers 5.24. Folders without weights use those of "tied". */
#include "engine/trainer.h"

#include "support/scratch.h"

static char note[512]; /* the note about the model that loss_of() opened last */

static double loss_of(const char *folder)
{
    int32_t ids[10], labels[10];
    struct dataset data = {.count = 1,
                           .batches = {{.rows = 1, .row_start = {0, 10}, .ids = ids, .labels = labels}}};
    struct trainer trainer;
    struct train_result result;
    for (int i = 0; i < 10; i++)
        ids[i] = labels[i] = 5 + i;
    struct train_options o = {
        .model = folder, .data = &data, .steps = 1, .warmup = 1, .peak_lr = 1e-3, .full = true};
    struct device *device = device_make("cpu", 1);
    trainer_init(&trainer, device, &o);
    snprintf(note, sizeof(note), "%s", model_get_note(trainer.model));
    trainer_run(&trainer, &result);
    trainer_fini(&trainer);
    device_close(device);
    return result.loss[0];
}

static void copy(const struct scratch *scratch, const char *folder, const char *name)
{
    char path[600];
    struct buf bytes = {.limit = 1 << 22};
    struct err err;
    snprintf(path, sizeof(path), "%s/wild/models/%s/%s", MOTLEY_TEST_DATA, folder, name);
    check(file_read_all(path, bytes.limit, &bytes, &err));
    check(file_write_atomic(scratch_path(scratch, name), bytes.data, bytes.size, 0600, &err));
    buf_fini(&bytes);
}

static void folders_have_the_losses_of_transformers(void **state)
{
    static const struct {
        const char *config, *weights;
        double loss;
    } cases[] = {{"tied", "tied", 5.819846},
                 {"body", "body", 5.442900},
                 {"null-heads", "null-heads", 5.844052},
                 {"twice", "tied", 5.819846},
                 {"far-end", "tied", 5.819846}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct scratch scratch;
        assert_int_equal(scratch_make(&scratch), 0);
        copy(&scratch, cases[i].config, "config.json");
        copy(&scratch, cases[i].weights, "model.safetensors");
        double loss = loss_of(scratch.dir);
        print_message("    %s: %.6f\n", cases[i].config, loss);
        if (!(fabs(loss - cases[i].loss) <= 1e-5))
            fail_msg("%s: loss %.7f, transformers has %.6f", cases[i].config, loss, cases[i].loss);
        assert_int_equal(strstr(note, "differs from the embedding") != NULL, i == 0);
        scratch_remove(&scratch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(folders_have_the_losses_of_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
