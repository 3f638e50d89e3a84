/* `motley devices --code`: lists the cards for which this build has kernels, as its worker reports them. */
#include "cli/cli.h"

#include <stdio.h>

#include "common/process.h"
#include "common/program_json.h"

enum { ANSWER_SECONDS = 30 };

static void code_told(const json_t *list)
{
    const json_t *object;
    size_t index;
    printf("compiled by %s\n%-5s %-8s %-6s %10s %10s  %-12s %s\n", show_str(list, "compiler"), "KIND", "ARCH",
           "FORM", "BYTES", "PACKED", "MATRIX UNITS", "FOR CARDS");
    json_array_foreach (json_object_get(list, "objects"), index, object) {
        const char *why = show_str(object, "why");
        if (why[0] != '\0')
            printf("%-5s %-8s %-6s %10s %10s  not inside: %s\n", show_str(object, "kind"),
                   show_str(object, "arch"), show_str(object, "form"), "-", "-", why);
        else
            printf("%-5s %-8s %-6s %10.0f %10.0f  %-12s %s\n", show_str(object, "kind"),
                   show_str(object, "arch"), show_str(object, "form"), show_num(object, "bytes", 0),
                   show_num(object, "packed_bytes", 0), show_str(object, "matrix"),
                   show_str(object, "cards"));
    }
    printf(
        "\nNVIDIA's drivers translate PTX for newer cards, once, and keep the result; AMD's code is for one "
        "architecture each. Without matrix units for its type a product in 16 bits rounds its operands and "
        "multiplies in fp32.\n");
}

int show_code(struct cli *cli, struct err *err)
{
    char program[4096];
    const char *argv[] = {program, "--code", NULL};
    if (process_sibling("motley-worker", program, sizeof(program), err) != 0)
        return -1;
    json_t *list = program_json(argv, ANSWER_SECONDS, err);
    if (!list)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(list, err);
    else
        code_told(list);
    json_decref(list);
    return result;
}
