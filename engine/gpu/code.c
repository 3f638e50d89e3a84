/* Code objects inside this build, by architecture. */
#include "engine/gpu/gpu.h"

int gpu_code_find(const char *kind, const char *arch, const void **image, uint64_t *bytes, struct err *err)
{
    *image = NULL;
    *bytes = 0;
    return err_set(err, ERR_UNSUPPORTED, "this build has no %s code for %s", kind, arch);
}
