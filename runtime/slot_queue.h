/* A queue of slot numbers between threads, first in, first out, or the newest first. It never holds more than it was
 * made for, so putting never waits. Taking spins a little, then sleeps on a futex. */
#ifndef LATHE_SLOT_QUEUE_H
#define LATHE_SLOT_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct lathe_slot_queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    atomic_uint count; /* read without the lock only to end a spin */
    uint32_t *slots;   /* a ring of `capacity` */
    uint32_t capacity, head;
    bool newest_first; /* what was used last is in the caches */
    atomic_bool closed;
};

/* False: no memory. */
bool lathe_slot_queue_init(struct lathe_slot_queue *q, uint32_t capacity, bool newest_first);
void lathe_slot_queue_end(struct lathe_slot_queue *q);
void lathe_slot_queue_put(struct lathe_slot_queue *q, uint32_t slot);
/* Waits until there is one; false when the queue is closed. */
bool lathe_slot_queue_take(struct lathe_slot_queue *q, unsigned spins, uint32_t *slot);
/* False when there is none now. */
bool lathe_slot_queue_try_take(struct lathe_slot_queue *q, uint32_t *slot);
/* Everybody who waits returns. */
void lathe_slot_queue_close(struct lathe_slot_queue *q);
#endif
