/* Runs files, or all files of folders, through a target; `make test` replays the corpus with it. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz/fuzz.h"

static int file_run(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(FUZZ_BYTES_MAX);
    if (!file || !data) {
        fprintf(stderr, "could not open %s\n", path);
        return -1;
    }
    size_t size = fread(data, 1, FUZZ_BYTES_MAX, file);
    fclose(file);
    uint8_t *exact =
        malloc(size ? size : 1); /* exact size, so that a sanitizer notices reads behind its end */
    if (!exact)
        return -1;
    memcpy(exact, data, size);
    free(data);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 0;
}

int main(int argc, char **argv)
{
    unsigned count = 0;
    for (int i = 1; i < argc; i++) {
        struct stat about;
        char path[4096];
        DIR *folder = stat(argv[i], &about) == 0 && S_ISDIR(about.st_mode) ? opendir(argv[i]) : NULL;
        if (!folder) {
            if (file_run(argv[i]) < 0)
                return 1;
            count++;
            continue;
        }
        for (struct dirent *entry; (entry = readdir(folder));) {
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            if (entry->d_name[0] == '.')
                continue;
            if (file_run(path) < 0)
                return 1;
            count++;
        }
        closedir(folder);
    }
    printf("%u inputs\n", count);
    return count ? 0 : 1;
}
