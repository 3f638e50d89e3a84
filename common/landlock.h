/* Landlock: which files a thread may reach (Linux 5.13). A set of rules handles every right to files that the
 * kernel knows; what no rule gives is refused. Rules can be added to a thread and never taken away, and what
 * a thread starts has them too. A thread with rules can neither trace nor open /proc/PID/fd of processes
 * beyond them. Makes async-signal-safe calls only. */
#ifndef MOTLEY_COMMON_LANDLOCK_H
#define MOTLEY_COMMON_LANDLOCK_H

#include <linux/landlock.h>
#include <stdbool.h>
#include <stdint.h>

/* Constants that are newer than the headers of our build machines. */
#define LANDLOCK_REFER (1u << 13)
#define LANDLOCK_TRUNCATE (1u << 14)
#define LANDLOCK_IOCTL_DEV (1u << 15)

#define LANDLOCK_MAY_READ ((uint64_t)(LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR))
#define LANDLOCK_MAY_RUN ((uint64_t)LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_MAY_READ)
/* To read and to write, and to make, rename and remove files and folders, but no links, sockets or devices.
 */
#define LANDLOCK_MAY_WRITE                                                                                   \
    (LANDLOCK_MAY_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG |                       \
     LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |          \
     LANDLOCK_REFER | LANDLOCK_TRUNCATE)
#define LANDLOCK_MAY_USE /* devices */                                                                       \
    (LANDLOCK_MAY_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_IOCTL_DEV)

/* Returns the version of Landlock's interface; 0, with errno, if the kernel has none or it is disabled. */
int landlock_version(void);

/* Makes rules that allow nothing. isolated: no TCP, no abstract socket and no signal beyond the rules either,
 * where the kernel can. Returns a descriptor, or -1 with errno. */
int landlock_rules(bool isolated);

/* Allows the rights on a file, or on a folder and everything below it. A path that does not exist or may not
 * be reached is passed over. -1 with errno. */
int landlock_allow(int rules, const char *path, uint64_t rights);

/* Puts the calling thread, which must have no_new_privs, under the rules. -1 with errno. */
int landlock_enter(int rules);

#endif
