/* A CUDA driver of which one call never returns: the one that the file $HANG_FILE names, if there is one. All others are
 * those of the driver that it is linked with. `NAME deep` sleeps in the kernel, where no signal wakes it but SIGKILL.
 * `cuEventQuery callbacks` waits while a host function runs; that it does is told by the file $HANG_FILE.waits. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A parent is asleep in that way until the child that borrows its memory has ended. */
static void sleep_deep(void) {
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        for (;;) pause();
    }
}

/* Host functions that run. */
static atomic_int running;

static void wait_for_callbacks(const char *path) {
    char waits[4096];
    if (running == 0 || snprintf(waits, sizeof waits, "%s.waits", path) >= (int)sizeof waits) return;
    FILE *file = fopen(waits, "w");
    if (file) fclose(file);
    while (running > 0) usleep(1000);
}

static void call(const char *name) {
    const char *path = getenv("HANG_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    char named[64] = "", how[16] = "";
    int words = fscanf(file, "%63s %15s", named, how);
    fclose(file);
    if (words < 1 || strcmp(name, named) != 0) return;
    if (strcmp(how, "callbacks") == 0) return wait_for_callbacks(path);
    if (strcmp(how, "deep") == 0) sleep_deep();
    for (;;) pause();
}

#define MAY_HANG(name, parameters, arguments)                              \
    int name parameters {                                                  \
        int(*real) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #name); \
        call(#name);                                                       \
        return real arguments;                                             \
    }

typedef void (*host_function)(void *);

struct callback {
    host_function function;
    void *data;
};

static void run(void *data) {
    struct callback callback = *(struct callback *)data;
    free(data);
    running++;
    callback.function(callback.data);
    running--;
}

int cuLaunchHostFunc(void *stream, host_function function, void *data) {
    int (*real)(void *, host_function, void *) = (int (*)(void *, host_function, void *))dlsym(RTLD_NEXT, "cuLaunchHostFunc");
    struct callback *callback = malloc(sizeof *callback);
    if (!callback) return 2;
    *callback = (struct callback){function, data};
    int result = real(stream, run, callback);
    if (result != 0) free(callback);
    return result;
}

MAY_HANG(cuInit, (unsigned flags), (flags))
MAY_HANG(cuCtxSynchronize, (void), ())
MAY_HANG(cuEventQuery, (void *event), (event))
MAY_HANG(cuMemMap,
         (unsigned long long address, size_t size, size_t offset, unsigned long long handle, unsigned long long flags),
         (address, size, offset, handle, flags))
MAY_HANG(cuLaunchKernel,
         (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
          void *stream, void **parameters, void **extra),
         (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
