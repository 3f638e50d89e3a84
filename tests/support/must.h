/* Checks for calls that must succeed in a test. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/err.h"

/* Fails the test with the error's text when `status` is below 0. */
static inline void must(int status, const struct err *err)
{
    if (status < 0)
        fail_msg("%s", err->text);
}

/* As must(), for a call that fills an `err` in scope; a failure names the call. */
#define check(call)                                                                                          \
    do {                                                                                                     \
        if ((call) != 0)                                                                                     \
            fail_msg("%s: %s", #call, err.text);                                                             \
    } while (0)
