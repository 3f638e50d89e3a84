/* First come first served, backwards first, is a good order and seldom the best: who waits a little for a
 * backward, or takes a forward before it, may keep others from waiting. The order that is run also hangs on
 * the last digit of costs, so that something slightly faster may bring a slower one; said outright it stays.
 */
#include "planner/hybrid/deal_order.h"

#include "planner/hybrid/deal_moves.h"
#include "planner/search/moves.h"

#define ORDER_BETTER 0.999999 /* a change must be worth this much */

/* One pass by quick looks alone. */
static bool order_pass(struct polish *polish, const struct problem *p, struct place_choice *c, double *quick)
{
    uint32_t a_count, b_count;
    bool any = false;
    move_range(p, c, MOVE_TURN, &a_count, &b_count);
    for (uint32_t n = 0; n < a_count * b_count && !polish_spent(polish); n++) {
        uint32_t a = n / b_count, b = n % b_count;
        if (!deal_order_move(c, a, b))
            continue;
        double now = polish_quick(polish, c);
        if (now > 0 && now < *quick * ORDER_BETTER && polish_fits(polish, c)) {
            *quick = now;
            any = true;
        } else {
            deal_order_move(c, a, b);
        }
    }
    return any;
}

void deal_order(struct polish *polish, const struct problem *problem, struct place_choice *choice,
                double *seconds, struct err *err)
{
    struct place_choice trial;
    if (choice->placement != PLACE_HYBRID || choice_copy(&trial, choice, err) < 0)
        return;
    bool said = deal_fix(problem, &trial, err) > 0 && deal_order_fix(problem, &trial, err) > 0;
    double quick = said ? polish_quick(polish, &trial) : -1, now = -1;
    while (quick > 0 && order_pass(polish, problem, &trial, &quick))
        ;
    if (said)
        now = polish_seconds(polish, &trial);
    if (now > 0)
        polish_settle(polish, &trial, &now);
    if (now > 0 && now < *seconds * ORDER_BETTER) {
        choice_fini(choice);
        *choice = trial;
        *seconds = now;
    } else {
        choice_fini(&trial);
    }
}
