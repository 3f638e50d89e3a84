/* What clang's analyser, which reads one file at a time, has to know of functions in other files.
 * tools/analyse.py includes it before every file but those that define them. */
#include <dirent.h>

#include "common/err.h"
#include "common/json.h"

/* They always return -1. */
#define err_set(...) (err_set(__VA_ARGS__), -1)
#define err_errno(...) (err_errno(__VA_ARGS__), -1)
#define err_wrap(...) (err_wrap(__VA_ARGS__), -1)
#define jr_fail(...) (jr_fail(__VA_ARGS__), -1)

/* An open folder has a descriptor. */
static inline int analysed_dirfd(DIR *folder)
{
    int fd = dirfd(folder);
    if (fd < 0)
        __builtin_unreachable();
    return fd;
}
#define dirfd analysed_dirfd
