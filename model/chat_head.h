/* Where an assistant's answer begins in a rendered conversation whose template has no {% generation %}:
 * behind what is given to the model when the answer is asked for. For chat_learn.c alone. */
#ifndef MOTLEY_MODEL_CHAT_HEAD_H
#define MOTLEY_MODEL_CHAT_HEAD_H

#include "model/chat_private.h"

struct chat_heads;

/* Of normal messages, rendered to text[0..size). All is borrowed until destroy. Returns new. */
int chat_heads_create(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                      const char *text, size_t size, struct chat_heads **heads, struct err *err);
void chat_heads_destroy(struct chat_heads *heads);

/* Bytes at the beginning of text[begin .. begin + size), what was written at messages[index], an assistant's,
 * that are no answer. ERR_UNSUPPORTED when that cannot be told. */
int chat_head_size(struct chat_heads *heads, size_t index, size_t begin, size_t size, size_t *head,
                   struct err *err);

/* The same messages, but that assistants answer otherwise: all of them, or those that 'kept' (NULL: none)
 * does not have. Returns new, or NULL. */
json_t *chat_answered_otherwise(const json_t *messages, const bool *kept);

#endif
