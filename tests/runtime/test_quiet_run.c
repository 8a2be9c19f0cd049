/* A run allocates nothing and makes no system call but waiting: malloc and its like are counted, and in a child process
 * a seccomp filter ends every thread that calls anything but futex while runs go on. */
#include "built_graph.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static atomic_bool counting;
static atomic_uint allocations;

/* glibc's own allocator, under the names that it keeps for those who replace malloc */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *p);
void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *p, size_t size);
void *aligned_alloc(size_t align, size_t size);
int posix_memalign(void **out, size_t align, size_t size);
void free(void *p);

static void count(void) {
    if (atomic_load_explicit(&counting, memory_order_relaxed))
        atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t size) {
    count();
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
    count();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size) {
    count();
    return __libc_realloc(p, size);
}

void *aligned_alloc(size_t align, size_t size) {
    count();
    return __libc_memalign(align, size);
}

int posix_memalign(void **out, size_t align, size_t size) {
    count();
    *out = __libc_memalign(align, size);
    return *out ? 0 : ENOMEM;
}

void free(void *p) {
    if (p)
        count();
    __libc_free(p);
}

static struct built encoder, bucketed; /* the same graph, bounded and in buckets */
static struct lathe_session *sessions[2];
static struct lathe_fleet *fleets[4];
static int64_t ids[2][8 * 32], mask[8 * 32];

static int set_up(void **state) {
    (void)state;
    build_graph(&encoder, small_encoder, &(struct lathe_emit_options){.jobs = 1, .max_batch = 8, .max_seq = 32});
    for (int i = 0; i < 8 * 32; i++) {
        ids[0][i] = i % 7;
        ids[1][i] = i * 3 % 7;
        mask[i] = i % 3 > 0;
    }
    build_buckets(&bucketed, small_encoder, (struct lathe_bucket[]){{1, 8}, {1, 32}, {3, 32}}, 3, NULL);
    for (int i = 0; i < 4; i++) {
        struct lathe_fleet_options o = {.placement = i % 2 ? LATHE_PLACEMENT_PIPELINE : LATHE_PLACEMENT_REPLICATE,
                                        .cores = 2};
        if (lathe_fleet_new(i < 2 ? encoder.artifact : bucketed.artifact, &o, &fleets[i], NULL) != LATHE_OK)
            return -1;
    }
    for (int i = 0; i < 2; i++)
        if (lathe_session_new(i ? bucketed.artifact : encoder.artifact,
                              &(struct lathe_session_options){.threads = 3, .always_share = true}, &sessions[i],
                              NULL) != LATHE_OK)
            return -1;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        lathe_session_close(&sessions[i]);
    for (int i = 0; i < 4; i++)
        lathe_fleet_close(&fleets[i]);
    free_built(&encoder);
    free_built(&bucketed);
    return 0;
}

static bool many_requests(struct lathe_fleet *f) {
    bool ok = true;
    for (int i = 0; i < 100; i++) {
        struct lathe_request *r[3] = {NULL};
        for (int k = 0; k < 3; k++) {
            int64_t dims[2] = {1 + (i + k) % 8, 1 + i * 7 % 32};
            r[k] = lathe_fleet_take(f);
            ok &= lathe_request_set_input(r[k], 0, LATHE_I64, 2, dims, ids[k % 2], NULL) == LATHE_OK;
            if (i % 10 || k)
                ok &= lathe_request_set_input(r[k], 1, LATHE_I64, 2, dims, mask, NULL) == LATHE_OK;
            lathe_request_submit(r[k]);
        }
        for (int k = 0; k < 3; k++) {
            enum lathe_status want = i % 10 || k ? LATHE_OK : LATHE_INVALID;
            ok &= lathe_request_wait(r[k], NULL) == want && (want || lathe_request_output(r[k], 0)->bytes > 0);
            lathe_request_release(&r[k]);
        }
    }
    return ok;
}

/* Shapes that come and go, both id types, a default filled anew, a refusal. */
static bool many_runs(void) {
    static const int32_t narrow[8] = {1, 2, 3, 4, 5, 6, 0, 1};
    bool ok = true;
    for (int i = 0; i < 400; i++) {
        struct lathe_session *session = sessions[i % 2];
        int64_t dims[2] = {1 + i % 8, 1 + i * 7 % 32};
        ok &= lathe_session_set_input(session, 0, LATHE_I64, 2, dims, ids[i % 2], NULL) == LATHE_OK;
        ok &= lathe_session_set_input(session, 1, LATHE_I64, 2, dims, mask, NULL) == LATHE_OK;
        ok &= lathe_session_run(session, NULL) == LATHE_OK;
        ok &= lathe_session_output(session, 0)->dims[1] == dims[1];
        if (i % 10 == 0) {
            int64_t small[2] = {2, 4};
            ok &= lathe_session_set_input(session, 0, LATHE_I32, 2, small, narrow, NULL) == LATHE_OK;
            ok &= lathe_session_run(session, NULL) == LATHE_INVALID;
        }
    }
    for (int i = 0; i < 4; i++)
        ok &= many_requests(fleets[i]);
    return ok;
}

static void test_no_allocation(void **state) {
    (void)state;
    atomic_store(&allocations, 0);
    atomic_store(&counting, true);
    bool ok = many_runs();
    atomic_store(&counting, false);
    assert_true(ok);
    assert_int_equal(atomic_load(&allocations), 0);
    /* the counter counts */
    atomic_store(&counting, true);
    free(malloc(10));
    atomic_store(&counting, false);
    assert_int_equal(atomic_load(&allocations), 2);
}

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

static bool forbid_calls(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    /* TSYNC: the workers of the session and the cores of the fleets too */
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

/* Waits until every other thread sleeps: a run need not wait for a worker, and one that the machine has not yet let
 * start would make the calls of its birth under the filter. */
static void wait_for_workers(void) {
    for (int tries = 0; tries < 500; tries++) {
        unsigned awake = 0;
        DIR *tasks = opendir("/proc/self/task");
        for (struct dirent *e; tasks && (e = readdir(tasks));) {
            char path[300], line[512] = "";
            if (e->d_name[0] == '.' || atoi(e->d_name) == (int)getpid())
                continue;
            snprintf(path, sizeof path, "/proc/self/task/%s/stat", e->d_name);
            FILE *f = fopen(path, "r");
            const char *end = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
            awake += end && end[1] == ' ' && end[2] != 'S';
            if (f)
                fclose(f);
        }
        if (tasks)
            closedir(tasks);
        usleep(10000);
        if (!awake && tries)
            return;
    }
}

/* 0: done; 77: no filter here; killed otherwise. */
static void child(bool call) {
    if (set_up(NULL) != 0)
        _exit(1);
    many_runs(); /* lazily bound symbols are bound now */
    wait_for_workers();
    many_runs(); /* those of the workers too */
    wait_for_workers();
    if (!forbid_calls())
        _exit(77);
    bool ok = many_runs();
    if (call)
        syscall(SYS_getpid);
    syscall(SYS_exit_group, ok ? 0 : 1);
}

static int child_status(bool call) {
    pid_t pid = fork();
    if (pid == 0)
        child(call);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_no_call(void **state) {
    (void)state;
    int status = child_status(false);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("skipped: seccomp filters are not allowed here\n");
        skip();
    }
    if (WIFSIGNALED(status))
        fail_msg("a run made a system call (signal %d)", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    /* the filter filters */
    status = child_status(true);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_allocation, set_up, tear_down),
        cmocka_unit_test(test_no_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
