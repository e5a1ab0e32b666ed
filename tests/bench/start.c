/* From the start of a process to its context, from its last line to its end, and what the driver library adds to its memory.
 *
 * The process forks, and the child begins anew as a program of its own. Prints lines "NAME VALUE", which `cargo xtask bench start`
 * reads. Built with `gcc -O2 start.c -ldl`.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { BYTES = 64 << 20 };

/* What the parent learns of its child. */
struct times { double context, context_kib, copies_kib, end; };

/* Resident memory of this process in KiB. */
static double resident_kib(void) {
    char line[256];
    double kib = -1, value;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmRSS: %lf", &value) == 1) kib = value;
    if (status) fclose(status);
    return kib;
}

static int child(int out) {
    struct times times;
    int device;
    void *context;
    uint64_t memory;
    double before = resident_kib();
    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) die(dlerror(), 0);
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuCtxSynchronize);
    times.context = now();
    times.context_kib = resident_kib() - before;
    before = resident_kib() - times.context_kib;
    char *bytes = malloc(BYTES);
    memset(bytes, 1, BYTES);
    before += BYTES / 1024;
    CALL(cuMemAlloc_v2, &memory, (size_t)BYTES);
    CALL(cuMemcpyHtoD_v2, memory, bytes, (size_t)BYTES);
    CALL(cuMemcpyDtoH_v2, bytes, memory, (size_t)BYTES);
    times.copies_kib = resident_kib() - before;
    times.end = now();
    if (write(out, &times, sizeof times) != sizeof times) return 1;
    return 0;
}

int main(int count, char **words) {
    if (count == 2) return child(atoi(words[1]));
    int ends[2];
    struct times times;
    if (pipe(ends)) die("pipe", 0);
    double begin = now();
    pid_t pid = fork();
    if (pid == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", ends[1]);
        execl(words[0], words[0], number, NULL);
        _exit(127);
    }
    int status = 1;
    if (read(ends[0], &times, sizeof times) != sizeof times) die("the child has failed", 0);
    waitpid(pid, &status, 0);
    double end = now();
    if (status) die("the child has ended with", status);
    printf("context_ms %.4f\n", (times.context - begin) * 1e3);
    printf("exit_ms %.4f\n", (end - times.end) * 1e3);
    printf("context_mib %.4f\n", times.context_kib / 1024);
    printf("copies_mib %.4f\n", times.copies_kib / 1024);
    return 0;
}
