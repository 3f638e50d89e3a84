/* motley-parse MEMORY_BYTES SECONDS: motley-api starts it for each file of a user (parse/parse.h). */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "parse/serve.h"

int main(int argc, char **argv)
{
    struct err err = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: motley-parse MEMORY_BYTES SECONDS, with a question on its standard input\n");
        return 2;
    }
    const int result =
        parse_serve(0, 1, strtoull(argv[1], NULL, 10), (uint32_t)strtoul(argv[2], NULL, 10), &err);
    if (result < 0) {
        fprintf(stderr, "%s\n", err.text);
        fflush(stderr);
    }
    _exit(result < 0
              ? 1
              : 0); /* _exit, because libraries' exit handlers may make calls that the sandbox forbids */
}
