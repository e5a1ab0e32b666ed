/* Calls of a CUDA driver that must succeed, and the times that they take. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static void *driver;

static void die(const char *what, long code) {
    fprintf(stderr, "%s: %ld\n", what, code);
    exit(1);
}

#define CALL(name, ...)                                                             \
    do {                                                                            \
        static int (*resolved_)();                                                   \
        if (!resolved_) *(void **)&resolved_ = dlsym(driver, #name);                  \
        if (!resolved_) die(#name " is missing", 0);                                 \
        int code = resolved_(__VA_ARGS__);                                           \
        if (code) die(#name, code);                                                 \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* User and system time of all threads of this process. */
static double cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}
