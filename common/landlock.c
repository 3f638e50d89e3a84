#include "common/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NET_ALL 3u
#define SCOPE_ALL 3u
#define OF_FILE                                                                                              \
    ((uint64_t)(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |  \
                LANDLOCK_TRUNCATE | LANDLOCK_IOCTL_DEV))

struct handled_rights { /* struct landlock_ruleset_attr of ABI 6 */
    uint64_t access_fs, access_net, scoped;
};

int landlock_version(void)
{
    const long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    return version > 0 ? (int)version : 0;
}

/* Returns the rights to files that this version knows. */
static uint64_t rights_known(int version)
{
    return ((1u << 13) - 1) | (version >= 2 ? LANDLOCK_REFER : 0u) | (version >= 3 ? LANDLOCK_TRUNCATE : 0u) |
           (version >= 5 ? LANDLOCK_IOCTL_DEV : 0u);
}

int landlock_rules(bool isolated)
{
    const int version = landlock_version();
    if (version == 0)
        return -1;
    const struct handled_rights want = {.access_fs = rights_known(version),
                                        .access_net = isolated && version >= 4 ? NET_ALL : 0,
                                        .scoped = isolated && version >= 6 ? SCOPE_ALL : 0};
    const size_t size = version >= 6 ? sizeof(want) : version >= 4 ? 16 : 8;
    return (int)syscall(SYS_landlock_create_ruleset, &want, size, 0);
}

int landlock_allow(int rules, const char *path, uint64_t rights)
{
    struct landlock_path_beneath_attr beneath = {.allowed_access = rights & rights_known(landlock_version())};
    beneath.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (beneath.parent_fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : -1;
    long added = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0);
    if (added < 0 && errno == EINVAL) { /* a file does not accept the rights of a folder */
        beneath.allowed_access &= OF_FILE;
        added = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0);
    }
    const int number = errno;
    close(beneath.parent_fd);
    errno = number;
    return added < 0 ? -1 : 0;
}

int landlock_enter(int rules)
{
    return (int)syscall(SYS_landlock_restrict_self, rules, 0);
}
