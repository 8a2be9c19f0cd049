/* Slots between threads. The lock is held for a few instructions; glibc's mutex and condition make no system call but
 * futex, and none while nobody waits. */
#include "slot_queue.h"

#include "threads.h"

#include <stdlib.h>

bool lathe_slot_queue_init(struct lathe_slot_queue *q, uint32_t capacity, bool newest_first) {
    q->slots = calloc(capacity, sizeof *q->slots);
    if (!q->slots)
        return false;
    q->capacity = capacity;
    q->newest_first = newest_first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->filled, NULL);
    return true;
}

void lathe_slot_queue_end(struct lathe_slot_queue *q) {
    if (!q->slots)
        return;
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->lock);
    free(q->slots);
    q->slots = NULL;
}

void lathe_slot_queue_put(struct lathe_slot_queue *q, uint32_t slot) {
    pthread_mutex_lock(&q->lock);
    unsigned count = atomic_load_explicit(&q->count, memory_order_relaxed);
    q->slots[(q->head + count) % q->capacity] = slot;
    atomic_store_explicit(&q->count, count + 1, memory_order_relaxed);
    pthread_mutex_unlock(&q->lock);
    pthread_cond_signal(&q->filled);
}

/* With the lock held, and something in it. */
static uint32_t take_one(struct lathe_slot_queue *q) {
    unsigned count = atomic_load_explicit(&q->count, memory_order_relaxed);
    uint32_t slot = q->slots[(q->head + (q->newest_first ? count - 1 : 0)) % q->capacity];
    if (!q->newest_first)
        q->head = (q->head + 1) % q->capacity;
    atomic_store_explicit(&q->count, count - 1, memory_order_relaxed);
    return slot;
}

static bool is_empty(struct lathe_slot_queue *q) {
    return atomic_load_explicit(&q->count, memory_order_relaxed) == 0;
}

bool lathe_slot_queue_take(struct lathe_slot_queue *q, unsigned spins, uint32_t *slot) {
    for (unsigned i = 0; i < spins && is_empty(q) && !atomic_load_explicit(&q->closed, memory_order_relaxed); i++)
        lathe_pause();
    pthread_mutex_lock(&q->lock);
    while (is_empty(q) && !atomic_load_explicit(&q->closed, memory_order_relaxed))
        pthread_cond_wait(&q->filled, &q->lock);
    bool any = !is_empty(q);
    if (any)
        *slot = take_one(q);
    pthread_mutex_unlock(&q->lock);
    return any;
}

bool lathe_slot_queue_try_take(struct lathe_slot_queue *q, uint32_t *slot) {
    pthread_mutex_lock(&q->lock);
    bool any = !is_empty(q);
    if (any)
        *slot = take_one(q);
    pthread_mutex_unlock(&q->lock);
    return any;
}

void lathe_slot_queue_close(struct lathe_slot_queue *q) {
    pthread_mutex_lock(&q->lock);
    atomic_store_explicit(&q->closed, true, memory_order_relaxed);
    pthread_mutex_unlock(&q->lock);
    pthread_cond_broadcast(&q->filled);
}
