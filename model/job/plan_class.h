/* The class of a job: everything that its plan depends on. Jobs of one class share plans.
 *
 * That is the specification without the keys that concern only people or the course of training (name,
 * account, learning rate, …), and the inputs. A submit computes the class here. For what the database changes
 * by itself (a resume, an edit, an array's elements) motley_class (migrations/0011_notices.sql) computes it,
 * with the same keys but over another text: two jobs with equal digests have equal plans, while the reverse
 * holds only among jobs whose digests were computed in the same place.
 */
#ifndef MOTLEY_MODEL_JOB_PLAN_CLASS_H
#define MOTLEY_MODEL_JOB_PLAN_CLASS_H

#include <jansson.h>

#include "common/digest.h"
#include "common/err.h"

/* Returns a new specification without the keys that no plan depends on, or NULL without memory. */
json_t *plan_class_spec(const json_t *spec);

/* Computes the digest of a specification that plan_class_spec returned, with the inputs. */
int plan_class_digest(const json_t *class_spec, const json_t *inputs, uint8_t digest[DIGEST_SIZE],
                      struct err *err);

#endif
