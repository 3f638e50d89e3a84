/* Changes letters' case and classifies characters as Python's str does. Only the files of model/templates
 * include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_CASE_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_CASE_H

#include "model/templates/jinja_args.h"

enum jinja_letters {
    LETTERS_UPPER,
    LETTERS_LOWER,
    LETTERS_CAPITAL,
    LETTERS_TITLE,
    LETTERS_TITLE_FILTER,
    LETTERS_SWAP,
    LETTERS_FOLD
};

/* Writes the text in another case to *out. ERR_UNSUPPORTED: the lower case of a capital sigma depends on more
 * than its neighbours. */
int jinja_letters(struct jinja_arena *arena, const struct jv *text, enum jinja_letters how, struct jv *out,
                  struct err *err);
/* Returns true if \w of Python's re matches the character. */
bool jinja_is_word(uint32_t code);

/* These functions are called by rows of the tables of str's methods and of Jinja's filters. */
jinja_fn jinja_do_upper, jinja_do_lower, jinja_do_capitalize, jinja_do_title_method, jinja_do_title_filter;
jinja_fn jinja_do_swapcase, jinja_do_casefold;
jinja_fn jinja_is_alpha, jinja_is_digit, jinja_is_decimal, jinja_is_numeric, jinja_is_alnum, jinja_is_space;
jinja_fn jinja_is_ascii, jinja_is_printable_text, jinja_is_identifier;
jinja_fn jinja_is_lower, jinja_is_upper, jinja_is_title;

#endif
