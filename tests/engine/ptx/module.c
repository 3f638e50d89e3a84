/* Holds the module of PTX that was loaded last. */
#include "engine/ptx/module.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS_MAX = 128 };

__attribute__((visibility("default"))) struct ptx_control ptx_control;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *module_text;
static struct ptx_kernel *kernels[KERNELS_MAX];
static uint32_t kernel_count;

/* Makes the edit that the test asks for, with `room` bytes for the text. */
static void text_edit(char *text)
{
    char heading[128];
    if (!ptx_control.edit.kernel)
        return;
    snprintf(heading, sizeof(heading), ".entry %s(", ptx_control.edit.kernel);
    size_t length = strlen(ptx_control.edit.find), with = strlen(ptx_control.edit.with);
    char *at = strstr(text, heading), *end = !at ? NULL : strstr(at, "\n}");
    for (uint32_t i = 0; at && i <= ptx_control.edit.which; i++)
        at = strstr(at + 1, ptx_control.edit.find);
    ptx_control.edit.done = at && at < end;
    if (!ptx_control.edit.done)
        return;
    memmove(at + with, at + length, strlen(at + length) + 1);
    memcpy(at, ptx_control.edit.with, with);
}

const char *ptx_module_load(const char *text)
{
    size_t room = strlen(text) + 1 + (ptx_control.edit.kernel ? strlen(ptx_control.edit.with) : 0);
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < kernel_count; i++)
        ptx_free(kernels[i]);
    kernel_count = 0;
    free(module_text);
    module_text = malloc(room);
    if (module_text) {
        memcpy(module_text, text, strlen(text) + 1);
        text_edit(module_text);
    }
    pthread_mutex_unlock(&lock);
    return module_text ? NULL : "out of memory";
}

struct ptx_kernel *ptx_module_kernel(const char *name, struct err *err)
{
    struct ptx_kernel *found = NULL;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < kernel_count && !found; i++)
        if (strcmp(kernels[i]->name, name) == 0)
            found = kernels[i];
    if (!module_text || (!found && kernel_count == KERNELS_MAX))
        err_set(err, ERR_INVALID, "no module of PTX, or too many kernels");
    else if (!found && (found = ptx_parse(module_text, name, err)) != NULL)
        kernels[kernel_count++] = found;
    pthread_mutex_unlock(&lock);
    return found;
}
