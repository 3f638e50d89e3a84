/* Where an assistant's answer begins in a rendered conversation whose template has no {% generation %}:
 * behind what is given to the model when the answer is asked for. For chat_learn.c alone. */
#ifndef MOTLEY_MODEL_TEMPLATES_CHAT_HEAD_H
#define MOTLEY_MODEL_TEMPLATES_CHAT_HEAD_H

#include "model/templates/chat_private.h"

struct chat_heads;

/* 'rendering' is borrowed until destroy. Returns new. */
int chat_heads_create(const struct chat_rendering *rendering, struct chat_heads **heads, struct err *err);
void chat_heads_destroy(struct chat_heads *heads);

/* Bytes at the beginning of the text's [begin, begin + size), what was written at messages[index], an
 * assistant's, that are no answer. ERR_UNSUPPORTED when that cannot be told. */
int chat_head_size(struct chat_heads *heads, size_t index, size_t begin, size_t size, size_t *head,
                   struct err *err);

#endif
