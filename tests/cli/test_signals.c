/* Temporary files and the signals that end a process. */
#include "signal_cleanup.h"
#include "write_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], wanted[96];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/lathe-signals-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(wanted, sizeof wanted, "%s/out.lathe", folder);
    return 0;
}

/* Fails when anything but out.lathe is left; the folder is removed. */
static int remove_folder(void **state) {
    (void)state;
    unlink(wanted);
    if (!rmdir(folder))
        return 0;
    fprintf(stderr, "%s: %s\n", folder, strerror(errno));
    return -1;
}

/* What a child does with a temporary file before the signal comes. */
enum deed { HOLDS_TWO, PUBLISHED, IGNORES };

static void child(enum deed deed, int number) {
    struct lathe_diag diag;
    char *a, *b;
    int fd;
    lathe_diag_reset(&diag);
    signal(number, deed == IGNORES ? SIG_IGN : SIG_DFL);
    if (lathe_temporary_beside(wanted, &a, &fd, &diag) != LATHE_OK || close(fd) ||
        lathe_temporary_beside(wanted, &b, &fd, &diag) != LATHE_OK || close(fd) || access(a, F_OK) || access(b, F_OK))
        _exit(1);
    if (deed == PUBLISHED) {
        if (rename(a, wanted) || unlink(b))
            _exit(1);
        lathe_temporary_end(&a);
        lathe_temporary_end(&b);
    }
    raise(number);
    unlink(a);
    unlink(b);
    _exit(2); /* came through */
}

static int ends(enum deed deed, int number) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        child(deed, number);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

static void removed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int status = ends(HOLDS_TWO, numbers[i]);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), numbers[i]);
        assert_int_equal(rmdir(folder), 0); /* empty */
        assert_non_null(mkdtemp(strcpy(folder, "/tmp/lathe-signals-XXXXXX")));
        snprintf(wanted, sizeof wanted, "%s/out.lathe", folder);
    }
}

static void published_stays(void **state) {
    (void)state;
    int status = ends(PUBLISHED, SIGTERM);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(access(wanted, F_OK), 0);
}

static void ignored_stays_ignored(void **state) {
    (void)state;
    int status = ends(IGNORES, SIGHUP); /* nohup */
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(removed, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(published_stays, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(ignored_stays_ignored, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
