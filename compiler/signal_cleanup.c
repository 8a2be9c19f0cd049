#include "signal_cleanup.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#define FILES 8
static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
#define SIGNALS (sizeof signals / sizeof *signals)

static _Atomic(char *) files[FILES];
static struct sigaction old_actions[SIGNALS];
static unsigned watched;

/* Only what POSIX allows in a handler: unlink and raise. */
static void remove_and_die(int number) {
    for (unsigned i = 0; i < FILES; i++) {
        char *path = atomic_load(&files[i]);
        if (path)
            unlink(path);
    }
    /* the default action is back (SA_RESETHAND): let it have the process */
    raise(number);
}

static void install(void) {
    for (size_t i = 0; i < SIGNALS; i++) {
        struct sigaction now = {.sa_handler = remove_and_die, .sa_flags = (int)SA_RESETHAND};
        sigemptyset(&now.sa_mask);
        sigaction(signals[i], NULL, &old_actions[i]);
        /* who ignores a signal, or has plans of his own, keeps them */
        if (old_actions[i].sa_handler == SIG_DFL)
            sigaction(signals[i], &now, NULL);
    }
}

static void uninstall(void) {
    for (size_t i = 0; i < SIGNALS; i++)
        if (old_actions[i].sa_handler == SIG_DFL)
            sigaction(signals[i], &old_actions[i], NULL);
}

void lathe_remove_on_signal(char *path) {
    for (unsigned i = 0; i < FILES; i++)
        if (!atomic_load(&files[i])) {
            atomic_store(&files[i], path);
            if (watched++ == 0)
                install();
            return;
        }
}

void lathe_keep_on_signal(const char *path) {
    for (unsigned i = 0; path && i < FILES; i++)
        if (atomic_load(&files[i]) == path) {
            atomic_store(&files[i], NULL);
            if (--watched == 0)
                uninstall();
            return;
        }
}
