/* What a mask says at one symbolic element: a mask tensor, however it was built, as a conjunction of facts, or as a
 * number that takes one of two values by such a conjunction.
 *
 * A fact is either "an index expression is >= 0" (causal order, windows) or "this element of that tensor is not 0" (key
 * masks and whatever stays unknown: the conjunction is always true to the source, only its parts may be coarse).
 * A graph input (integers, or floats with two axes that are not 1) that enters arithmetic, as in (1 - mask) * c, is
 * taken to hold 0 and 1 only, which is what the formula means; comparisons and casts to bool of an input need no such
 * assumption. Facts live in the arena that the caller gives. Nothing here changes the graph. */
#ifndef LATHE_MASK_FORM_H
#define LATHE_MASK_FORM_H

#include "element_view.h"

#define LATHE_MASK_MAX_FACTS 12

enum lathe_mask_fact_kind { LATHE_MASK_INDEX, LATHE_MASK_ELEMENT };

struct lathe_mask_fact {
    enum lathe_mask_fact_kind kind;
    bool negated;                 /* ELEMENT: the element is 0 */
    struct lathe_index index;     /* INDEX: >= 0 */
    struct lathe_element element; /* ELEMENT: not 0 */
};

struct lathe_mask_formula {
    bool never;     /* false whatever the facts say */
    unsigned count; /* of facts that all hold; 0: always true */
    const struct lathe_mask_fact *facts[LATHE_MASK_MAX_FACTS];
    unsigned coarse; /* how many facts are logical expressions that could not be taken apart */
};

struct lathe_mask_number {
    struct lathe_mask_formula when;
    double yes, no; /* the value where `when` holds, and elsewhere */
    bool is_input;  /* an input as it is, taken to be 0 or 1 */
};

struct lathe_mask_reader {
    struct lathe_element_view *view;
    struct lathe_arena *arena;
};

/* The truth of an element (of its negation unless `positive`): bool, or any number read as "not 0". False only when it
 * has too many facts or memory runs out. */
bool lathe_mask_boolean(struct lathe_mask_reader *reader, const struct lathe_element *e, bool positive,
                        struct lathe_mask_formula *out);
/* An element that is one of two numbers. False when that is not proved. */
bool lathe_mask_number(struct lathe_mask_reader *reader, const struct lathe_element *e, struct lathe_mask_number *out);
/* Exchanges `yes` and `no` and negates the formula. False when the negation is no conjunction. */
bool lathe_mask_turn(struct lathe_mask_reader *reader, struct lathe_mask_number *n);
/* *out = a and b */
bool lathe_mask_and(struct lathe_mask_reader *reader, const struct lathe_mask_formula *a,
                    const struct lathe_mask_formula *b, struct lathe_mask_formula *out);
bool lathe_mask_same(struct lathe_mask_reader *reader, const struct lathe_mask_formula *a,
                     const struct lathe_mask_formula *b);
#endif
