/* The blocking of attention_f32 and attention_q8, the same for every instruction set: it decides bits (where the
 * running maximum is taken) and scratch sizes. */
#ifndef LATHE_ATTENTION_SHAPE_H
#define LATHE_ATTENTION_SHAPE_H

#define LATHE_ATTENTION_KEYS    256  /* keys a block */
#define LATHE_ATTENTION_QUERIES 32   /* queries a group: two panels */
#define LATHE_ATTENTION_CHUNK   1024 /* queries a call, for which keys are laid out once: bounds the scratch */
#define LATHE_Q8_BLOCK          256  /* keys a block of attention_q8 */
#define LATHE_Q8_FINE           64   /* up to that many keys the weights have 16 bits, not 8 */
#define LATHE_Q8_QUERIES        32   /* queries of a tile of attention_q8, at most: bounds its scratch */
#endif
