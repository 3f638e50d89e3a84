/* Assertions that one of our declarations equals one of a vendor's header (tools/vendor_headers.py). */
#pragma once

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is " #theirs)
#define SAME_SIZE(ours, theirs) SAME(sizeof(ours), sizeof(theirs))
#define SAME_FIELD(ours, our_field, theirs, their_field)                                                     \
    SAME(offsetof(ours, our_field), offsetof(theirs, their_field));                                          \
    SAME(sizeof(((ours *)0)->our_field), sizeof(((theirs *)0)->their_field))
