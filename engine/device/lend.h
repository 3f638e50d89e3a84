/* Memory files that a process lends to others of its node: who has the words of a loan gets the file.
 *
 * A lender has a datagram socket with a name of its own and a thread that answers: a request with the
 * lender's secret gets the memory file whose number it names. So no process needs to reach into another's
 * /proc, which workers may not (common/confine.h), and only who was told the secret gets a file. */
#ifndef MOTLEY_ENGINE_DEVICE_LEND_H
#define MOTLEY_ENGINE_DEVICE_LEND_H

#include <stdint.h>

struct lender;

/* The words of a loan, to be sent to the process that borrows. */
struct loan {
    uint8_t name[8];   /* of the lender's socket, in the abstract name space */
    uint8_t secret[8]; /* of the lender */
    int32_t file;      /* the lender's descriptor */
};

/* Starts a lender; NULL without memory, threads or sockets. */
struct lender *lender_create(void);
/* Ends the lender; the files stay the caller's. NULL is a no-op. */
void lender_destroy(struct lender *lender);
/* Lends a memory file (memfd_create), until it is closed or the lender ends. */
void lender_lend(const struct lender *lender, int file, struct loan *loan);

/* Asks the lender for its file. Returns a descriptor; -1 if it is gone, refuses, or does not answer in 5 s.
 */
int loan_take(const struct loan *loan);

#endif
