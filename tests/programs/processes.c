/* What programs do with processes, threads and signals while they use a CUDA driver: each case is a process of its own, which has to
 * end with 0. Results that CUDA leaves open are named where they are checked. Needs nothing but `libcuda.so.1`; built with
 * `gcc processes.c -ldl -lpthread`.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 3, DEINITIALIZED = 4, BYTES = 1 << 16 };

static void *driver;
static char *self;

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #condition);         \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

/* The result of a function of the driver. */
#define RESULT(name, ...) (((int (*)())found(#name))(__VA_ARGS__))
#define CALL(name, ...)                                                             \
    do {                                                                            \
        int code_ = RESULT(name, __VA_ARGS__);                                      \
        if (code_) {                                                                \
            fprintf(stderr, "%s:%d: %s: %d\n", __func__, __LINE__, #name, code_);   \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

static void *found(const char *name) {
    void *entry = dlsym(driver, name);
    if (!entry) {
        fprintf(stderr, "no %s\n", name);
        _exit(1);
    }
    return entry;
}

static void attach(void) {
    int device;
    void *context;
    CHECK((driver = dlopen("libcuda.so.1", RTLD_NOW)));
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
}

/* Bytes there and back, with calls that wait and calls that do not. */
static void work(unsigned seed) {
    uint64_t memory;
    unsigned char out[BYTES], in[BYTES];
    for (int i = 0; i < BYTES; i++) out[i] = (unsigned char)(i * 31 + seed);
    CALL(cuMemAlloc_v2, &memory, (size_t)BYTES);
    CALL(cuMemcpyHtoD_v2, memory, out, (size_t)BYTES);
    CALL(cuMemsetD8Async, memory + 100, seed & 0xff, (size_t)50, NULL);
    CALL(cuMemcpyDtoH_v2, in, memory, (size_t)BYTES);
    memset(out + 100, (int)(seed & 0xff), 50);
    CHECK(!memcmp(in, out, BYTES));
    CALL(cuMemFree_v2, memory);
}

/* How a child ended: as a shell's $?. */
static int ended(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A child that is forked from a session has none, and its parent's goes on. */
static void fork_after(void) {
    attach();
    work(1);
    pid_t child = fork();
    if (child == 0) {
        uint64_t memory;
        CHECK(RESULT(cuMemAlloc_v2, &memory, (size_t)16) == NOT_INITIALIZED);
        CHECK(RESULT(cuInit, 0) == NOT_INITIALIZED);
        exit(0);
    }
    work(2);
    CHECK(ended(child) == 0);
    work(3);
}

/* One that is forked before has one of its own. */
static void fork_before(void) {
    pid_t child = fork();
    attach();
    for (unsigned i = 0; i < 20; i++) work(i);
    if (child == 0) exit(0);
    CHECK(ended(child) == 0);
    work(1);
}

static void become_another_program(void) {
    uint64_t memory;
    attach();
    CALL(cuMemAlloc_v2, &memory, (size_t)1 << 20);
    execl(self, self, "work alone", NULL);
    CHECK(!"exec");
}

static void work_alone(void) {
    attach();
    work(1);
}

static void other_programs(void) {
    attach();
    for (unsigned i = 0; i < 5; i++) {
        CHECK(WEXITSTATUS(system("exit 7")) == 7);
        work(i);
    }
}

static void a_child_is_killed(void) {
    int ends[2];
    char byte;
    CHECK(!pipe(ends));
    pid_t child = fork();
    attach();
    if (child == 0) {
        work(1);
        CHECK(write(ends[1], "", 1) == 1);
        for (unsigned i = 0;; i++) work(i);
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    kill(child, SIGKILL);
    CHECK(ended(child) == 128 + SIGKILL);
    work(2);
}

/* The library may stay, but not half of it: neither its handlers nor its threads may run code that is gone. */
static void library_closed(void) {
    for (unsigned i = 0; i < 3; i++) {
        attach();
        work(i);
        CHECK(!dlclose(driver));
        pid_t child = fork();
        if (child == 0) exit(0);
        CHECK(ended(child) == 0);
    }
}

static void *one_of_many(void *number) {
    attach();
    work((unsigned)(uintptr_t)number);
    return NULL;
}

/* Threads that come and go, eight at a time; none takes its context off its stack. */
static void threads(void) {
    pthread_t wave[8];
    attach();
    for (uintptr_t round = 0; round < 25; round++) {
        for (uintptr_t i = 0; i < 8; i++) CHECK(!pthread_create(&wave[i], NULL, one_of_many, (void *)(round * 8 + i)));
        for (int i = 0; i < 8; i++) CHECK(!pthread_join(wave[i], NULL));
    }
}

static void *the_last(void *main_thread) {
    CHECK(!pthread_join(*(pthread_t *)main_thread, NULL));
    attach();
    for (unsigned i = 0; i < 20; i++) work(i);
    exit(0);
}

static void first_thread_ends(void) {
    static pthread_t main_thread;
    pthread_t last;
    attach();
    work(1);
    main_thread = pthread_self();
    CHECK(!pthread_create(&last, NULL, the_last, &main_thread));
    pthread_exit(NULL);
}

static atomic_int handled, started;

static void on_signal(int number) {
    (void)number;
    atomic_fetch_add(&handled, 1);
}

/* Signals end system calls early, those of waiting calls, too: nothing may be lost, repeated or taken for an error. */
static void signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    struct itimerval often = {.it_interval = {.tv_usec = 300}, .it_value = {.tv_usec = 300}};
    attach();
    CHECK(!sigaction(SIGALRM, &action, NULL));
    CHECK(!setitimer(ITIMER_REAL, &often, NULL));
    for (unsigned i = 0; i < 100 || atomic_load(&handled) < 100; i++) work(i);
    memset(&often, 0, sizeof often);
    CHECK(!setitimer(ITIMER_REAL, &often, NULL));
}

static void *without_end(void *nothing) {
    (void)nothing;
    attach();
    for (unsigned i = 0;; i++) {
        uint64_t memory;
        /* While the process ends its driver may answer that it does so, too. */
        if (RESULT(cuMemAlloc_v2, &memory, (size_t)BYTES)) pause();
        RESULT(cuMemFree_v2, memory);
        atomic_fetch_add(&started, 1);
    }
    return NULL;
}

static void *work_until_cancelled(void *nothing) {
    (void)nothing;
    attach();
    for (unsigned i = 0;; i++) {
        work(i);
        atomic_fetch_add(&started, 1);
        pthread_testcancel();
    }
    return NULL;
}

/* The process ends while other threads are in the middle of calls. */
static void exit_amid_calls(void) {
    pthread_t thread;
    attach();
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&thread, NULL, without_end, NULL));
    while (atomic_load(&started) < 100) work(1);
    exit(0);
}

static void end_in_handler(int number) {
    (void)number;
    exit(0);
}

static void at_the_end(void);

/* The usual handler of Ctrl-C, in whatever call it comes. */
static void exit_in_a_handler(void) {
    struct itimerval once = {.it_value = {.tv_usec = 30000}};
    CHECK(!atexit(at_the_end));
    attach();
    CHECK(signal(SIGALRM, end_in_handler) != SIG_ERR);
    CHECK(!setitimer(ITIMER_REAL, &once, NULL));
    for (unsigned i = 0;; i++) work(i);
}

/* As where only what waits is a place to end at: a thread that is cancelled ends between calls. */
static void a_thread_is_cancelled(void) {
    pthread_t thread;
    void *result;
    attach();
    for (int i = 0; i < 20; i++) {
        int before = atomic_load(&started);
        CHECK(!pthread_create(&thread, NULL, work_until_cancelled, NULL));
        while (atomic_load(&started) < before + 20) work(1);
        CHECK(!pthread_cancel(thread));
        CHECK(!pthread_join(thread, &result));
        CHECK(result == PTHREAD_CANCELED);
    }
    work(2);
}

static void exit_with_work_queued(void) {
    uint64_t memory;
    attach();
    CALL(cuMemAlloc_v2, &memory, (size_t)1 << 20);
    for (int i = 0; i < 1000; i++) CALL(cuMemsetD8Async, memory, i & 0xff, (size_t)1 << 20, NULL);
    _exit(0);
}

static uint64_t kept;

/* After the library's own end, if it has one; CUDA answers then that it is no more. */
static void at_the_end(void) {
    int code = kept ? RESULT(cuMemFree_v2, kept) : SUCCESS;
    if (code) fprintf(stderr, "cuMemFree: %d\n", code);
    CHECK(code == SUCCESS || code == DEINITIALIZED);
    kept = 0;
    code = RESULT(cuCtxSynchronize);
    if (code) fprintf(stderr, "cuCtxSynchronize: %d\n", code);
    CHECK(code == SUCCESS || code == DEINITIALIZED);
}

static void calls_at_exit(void) {
    CHECK(!atexit(at_the_end));
    attach();
    work(1);
    CALL(cuMemAlloc_v2, &kept, (size_t)BYTES);
    CHECK(!atexit(at_the_end));
    exit(0);
}

static int is_static;

/* glibc hands constructors the words of the command line. */
__attribute__((constructor)) static void before_main(int count, char **words) {
    is_static = count == 2 && !strcmp(words[1], "before and after main");
    if (!is_static) return;
    attach();
    work(1);
    CALL(cuMemAlloc_v2, &kept, (size_t)BYTES);
}

__attribute__((destructor)) static void after_main(void) {
    if (is_static) at_the_end();
}

static void before_and_after_main(void) {
    CHECK(kept);
    work(2);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"work alone", work_alone},
    {"fork after", fork_after},
    {"fork before", fork_before},
    {"become another program", become_another_program},
    {"other programs", other_programs},
    {"a child is killed", a_child_is_killed},
    {"library closed", library_closed},
    {"threads", threads},
    {"first thread ends", first_thread_ends},
    {"signals", signals},
    {"exit amid calls", exit_amid_calls},
    {"exit in a handler", exit_in_a_handler},
    {"a thread is cancelled", a_thread_is_cancelled},
    {"exit with work queued", exit_with_work_queued},
    {"calls at exit", calls_at_exit},
    {"before and after main", before_and_after_main},
};

int main(int count, char **words) {
    int failed = 0;
    self = words[0];
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (count == 2) {
            if (strcmp(words[1], CASES[i].name)) continue;
            CASES[i].run();
            return 0;
        }
        pid_t child = fork();
        if (child == 0) {
            execl(self, self, CASES[i].name, NULL);
            _exit(127);
        }
        int code = ended(child);
        failed += code != 0;
        printf("%s %s: %d\n", code ? "FAIL" : "ok  ", CASES[i].name, code);
        fflush(stdout);
    }
    if (count == 2) return 2;
    printf("%s: %d failed\n", failed ? "FAIL" : "PASS", failed);
    return failed != 0;
}
