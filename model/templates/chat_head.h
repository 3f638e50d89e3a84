/* Finds where an assistant's answer begins in a rendered conversation whose template has no {% generation %}:
 * behind the head that the template writes when it asks for the answer. Only chat_learn.c includes this
 * header. */
#ifndef MOTLEY_MODEL_TEMPLATES_CHAT_HEAD_H
#define MOTLEY_MODEL_TEMPLATES_CHAT_HEAD_H

#include "model/templates/chat_private.h"

struct chat_heads;

/* Writes a new object to *heads. 'rendering' is borrowed until destroy. */
int chat_heads_create(const struct chat_rendering *rendering, struct chat_heads **heads, struct err *err);
void chat_heads_destroy(struct chat_heads *heads);

/* Text bytes [begin, begin + size) were written for messages[index], an assistant's. Writes to *head how many
 * of them, from the first, do not belong to the answer. ERR_UNSUPPORTED: that cannot be determined. */
int chat_head_size(struct chat_heads *heads, size_t index, size_t begin, size_t size, size_t *head,
                   struct err *err);

#endif
