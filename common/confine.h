/* Confines a process of ours that reads strangers' data and yet needs threads, the network and drivers, and
 * so cannot enter the sandbox (sandbox.h), which takes all of these away.
 *
 * It keeps the network and its open descriptors. Of files it reaches only those that it was given (Landlock).
 * It can execute no program, start no process, signal, trace or read no other process, and change nothing of
 * the system (seccomp; a list of calls that no worker needs). Of root's capabilities only those stay that
 * files and memory of a device may need. Nobody else of its user can read its memory (it is not dumpable). A
 * process can only be confined further.
 */
#ifndef MOTLEY_COMMON_CONFINE_H
#define MOTLEY_COMMON_CONFINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

/* Returns what this kernel lacks of what confines, for "this kernel has no …"; NULL: nothing. */
const char *confine_lacks(void);

/* Puts the calling thread under Landlock's rules (landlock_rules; −1: none) and takes its capabilities away.
 * Each thread that already runs has to do so. ERR_UNSUPPORTED. */
int confine_thread(int rules, struct err *err);

/* Filters the calls of all threads, which confine_thread has confined. unix_sockets: they may connect to
 * sockets of this machine, as drivers do; else to datagram sockets alone. ERR_UNSUPPORTED. Instrumented
 * builds are not filtered, because their checker of leaks traces its own process. */
int confine_calls(bool unix_sockets, struct err *err);

#endif
